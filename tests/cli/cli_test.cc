// The command line from outside: words, exit codes, one sentence on stderr, JSON that parses.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "headwise/base/version.h"
#include "headwise/cli/attention/tested.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "tests/cli/program.h"
#include "tests/model/scratch_folder.h"

namespace {

/// Runs `headwise words`, with `before` (variables) in front of it.
Answer headwise_says(const std::string& words, const std::string& before = "") {
  Answer a;
  const std::string program = before + " " HEADWISE_PROGRAM " " + words;
  FILE* out = popen((program + " 2>/dev/null").c_str(), "r");
  a.out = read_all(out);
  a.code = WEXITSTATUS(pclose(out));
  FILE* err = popen((program + " 2>&1 >/dev/null").c_str(), "r");
  a.err = read_all(err);
  pclose(err);
  return a;
}

TEST(Cli, Version) {
  const Answer a = headwise_says("--version");
  EXPECT_EQ(a.code, 0);
  EXPECT_EQ(a.out, std::string("headwise ") + headwise::kVersion + "\n");
}

TEST(Cli, EveryWordHelpsWithAnExample) {
  for (const std::string word :
       {"", "explain ", "doctor ", "heads ", "bench ", "train ", "eval ", "predict ", "report ", "serve "}) {
    const Answer a = headwise_says(word + "--help");
    EXPECT_EQ(a.code, 0) << word;
    EXPECT_NE(a.out.find("Example: headwise "), std::string::npos) << word;
    EXPECT_EQ(a.err, "") << word;
  }
}

TEST(Cli, WrongUseIsTwo) {
  for (const std::string words :
       {"", "dance", "explain --batch x", "explain --batch -1", "explain --nonsense", "doctor 3",
        "explain --batch 99999999999999999999", "explain --rim 9223372036854775807", "heads --tokens -1",
        "heads --heads 99999999999999999999", "heads --model-dim -4", "predict", "report", "serve"}) {
    const Answer a = headwise_says(words);
    EXPECT_EQ(a.code, 2) << words;
    EXPECT_EQ(a.out, "") << words;
    EXPECT_EQ(a.err.rfind("headwise: ", 0), 0u) << words << ": " << a.err;
    EXPECT_EQ(a.err.find('\n'), a.err.size() - 1) << words << ": " << a.err;
  }
}

TEST(Cli, WrongUseIsNamed) {
  EXPECT_EQ(headwise_says("trian x").err, "headwise: there is no command \"trian\"; see headwise --help\n");
  EXPECT_EQ(headwise_says("--bogus").err, "headwise: there is no option \"--bogus\"; see headwise --help\n");
  const std::string said = headwise_says("explain --nonsense").err;
  EXPECT_NE(said.find("--nonsense"), std::string::npos) << said;
  EXPECT_NE(said.find("; see headwise explain --help\n"), std::string::npos) << said;
}

TEST(Cli, AnErrorIsOneAndOneSentence) {
  const auto says = [](const std::string& words, const std::string& sentence) {
    const Answer a = headwise_says(words);
    EXPECT_EQ(a.code, 1) << words;
    EXPECT_EQ(a.err, "headwise: " + sentence + "\n");
    EXPECT_EQ(a.out, "");
  };
  says("explain --heads 6 --kv-heads 4",
       "explain: --heads (6) must be a multiple of --kv-heads (4); change one of them");
  says("explain --dtype f31", "--dtype: \"f31\" is no float type; use f32, bf16, f16 or f64");
  says("explain --mask \"causal)\"", "mask: column 7: expected \"&\", \"|\" or the end, got \")\"");
  says("explain --probe rows,topless", "--probe: \"topless\" needs a number from 1 up, as in top8");
  says("explain --probe mood",
       "--probe: \"mood\" is no probe; use rows, top<k>, classes<n>, columns, picked<n> or scores=<stage>");
  for (const std::string p : {"2", "1", "-0.1", "nan"})
    says("explain --dropout " + p,
         "explain: --dropout is " + p + "; give a probability from 0 up and below 1");
  for (const std::string cap : {"nan", "-1", "inf"})
    says("explain --softcap " + cap,
         "explain: --softcap is " + cap + "; give a number from 1e-30 to 1e30, or 0 for none");
  says("explain --heads 99999999999999999999",
       "explain: --heads is 9223372036854775807; give a number from 0 to 2147483648, or a head such as "
       "gqa:heads=8,kv_heads=2");
  says("explain --heads mha:heads=0",
       "mha: got 0 heads of dim 0; heads start at 1, and dim 0 stands for model_dim / heads");
  says("explain --q-start now",
       "explain: --q-start is \"now\"; give a position or \"end\" (the last query meets the last key)");
}

TEST(Cli, OutputThatIsLostIsOne) {
  const headwise::ScratchFolder folder;
  for (const std::string words : {"heads", "heads --json", "doctor --json --no-measure", "--help",
                                  "explain --q-tokens 16 --threads 1", "--version"}) {
    const Answer a = shell(HEADWISE_PROGRAM " " + words + " > /dev/full", folder / "err");
    EXPECT_EQ(a.code, 1) << words;
    const bool early = words == "--version";  // written before the end, where the reason is not kept
    EXPECT_EQ(a.err, std::string("headwise: stdout: cannot write: ") +
                         (early ? "a part was lost" : "No space left on device") + "; send it elsewhere\n")
        << words;
  }
  // Whoever reads may have read enough.
  const Answer cut = shell("{ trap '' PIPE; sleep 0.2; " HEADWISE_PROGRAM
                           " heads; echo $? >&2; " HEADWISE_PROGRAM " --help; echo $? >&2; } | true",
                           folder / "err");
  EXPECT_EQ(cut.err, "0\n0\n");
}

TEST(Cli, ExplainNamesTheKernelAndItsRefusals) {
  const Answer a =
      headwise_says("explain --q-tokens 64 --dtype f64 --mask 'causal & window(7, 0)' --threads 1");
  EXPECT_EQ(a.code, 0) << a.err;
  EXPECT_NE(a.out.find("cpu/online       refused: "), std::string::npos) << a.out;
  EXPECT_NE(a.out.find("cpu/f64          chosen"), std::string::npos) << a.out;
  EXPECT_NE(a.out.find("mask        causal & window(7, 0): 11.8 % of the pairs are open"), std::string::npos)
      << a.out;
  EXPECT_EQ(a.out.find('\033'), std::string::npos) << "colours went into a pipe";
}

TEST(Cli, ExplainSaysWhatAHeadAddsToAttention) {
  const auto facts = [](const std::string& words) {
    const Answer a = headwise_says("explain --q-tokens 1024 --threads 1 --json --heads " + words);
    EXPECT_EQ(a.code, 0) << a.err;
    return nlohmann::json::parse(a.out);
  };
  const auto local = facts("dcmha:heads=8,dim=64,window=65 --layer 0"),
             global = facts("dcmha:heads=8,dim=64,window=65 --layer 1");
  EXPECT_EQ(local.at("mask").at("text"), "window(64, 64)");
  EXPECT_LT(local.at("mask").at("open_share"), 0.13);
  EXPECT_EQ(global.at("mask").at("open_share"), 1);
  // Two mixes of 2 (2 rank + 1) multiply-adds a head and pair.
  EXPECT_EQ(local.at("head_work").at("mixing_flops"), 2.0 * 2 * 2 * 5 * 8 * 1024 * 1024);
  EXPECT_GT(local.at("head_work").at("own_flops"), 0);
  const auto routed = facts("moh:heads=8,shared=2,k=2,dim=64");
  EXPECT_EQ(routed.at("head_work").at("head_share"), 0.5);
  EXPECT_GT(routed.at("head_work").at("own_flops"), 0);
  const Answer words =
      headwise_says("explain --q-tokens 64 --threads 1 --heads moh:heads=8,shared=2,k=2,dim=64");
  EXPECT_NE(words.out.find("a token is worked on by 50.0 % of the heads"), std::string::npos) << words.out;
  EXPECT_EQ(facts("talking:heads=4,dim=16 --backward --scale").at("gradients"),
            "q, k, v, scale, mix_before, mix_after");
  EXPECT_EQ(facts("dcmha:heads=4,dim=16,fixed=true --backward").at("gradients"),
            "q, k, v, mix_before, mix_after, mix_q, mix_k");
  EXPECT_EQ(facts("dcmha:heads=4,dim=16 --backward").at("gradients"), "q, k, v, mix_q, mix_k");
  EXPECT_EQ(facts("entmax:heads=4,dim=16 --backward").at("gradients"), "q, k, v, alpha");
}

TEST(Cli, ExplainTakesAHeadByItsSettings) {
  const Answer a = headwise_says("explain --heads gqa:heads=16,kv_heads=4+gated --q-tokens 32 --threads 1");
  EXPECT_EQ(a.code, 0) << a.err;
  EXPECT_EQ(a.out.rfind("head        gqa:heads=16,kv_heads=4,dim=64+gated:", 0), 0u) << a.out;
  EXPECT_NE(a.out.find("\nheads meet  in the keys and values a group shares"), std::string::npos) << a.out;
  EXPECT_NE(a.out.find("\ncolumns     W_Q 1024, W_K 256, W_V 256, W_O 1024\n"), std::string::npos) << a.out;
  EXPECT_NE(a.out.find("\nparameters  1048576 of its own, at model_dim 1024\n"), std::string::npos) << a.out;
  EXPECT_NE(a.out.find("q [1 32 16 64] x k [1 32 4 64]"), std::string::npos) << a.out;
  const Answer rim =
      headwise_says("explain --heads overlapped:heads=8 --layer 3 --depth 6 --json --threads 1");
  EXPECT_EQ(nlohmann::json::parse(rim.out).at("problem").at("head_dim"), 64 + 2 * 3);
  const Answer none = headwise_says("explain --heads gga:heads=8");
  EXPECT_EQ(none.code, 1);
  EXPECT_EQ(none.err.rfind("headwise: heads: there is no head \"gga\"; there are ", 0), 0u) << none.err;
  const Answer both = headwise_says("explain --heads gqa:heads=8 --kv-heads 2");
  EXPECT_NE(both.err.find("leave the options out"), std::string::npos) << both.err;
}

TEST(Cli, ExplainAsJson) {
  const Answer a = headwise_says(
      "explain --json --batch 2 --q-tokens 8 --kv-tokens 16 --heads 6 --kv-heads 2 --head-dim 32 --value-dim "
      "48 --dtype bf16 "
      "--mask causal --q-start end --softcap 30 --alibi --sinks --dropout 0.1 --probe rows,top8,columns "
      "--threads 1 --shapes");
  ASSERT_EQ(a.code, 0) << a.err;
  const auto j = nlohmann::json::parse(a.out);
  EXPECT_EQ(j.at("problem").at("kv_heads"), 2);
  EXPECT_EQ(j.at("problem").at("value_dim"), 48);
  EXPECT_EQ(j.at("mask").at("text"), "causal");
  EXPECT_NEAR(j.at("mask").at("open_share").get<double>(), (9 + 16) * 8 / 2.0 / 128, 1e-12);
  EXPECT_EQ(j.at("flops").get<double>(), 2.0 * 2 * 6 * 8 * 16 * (32 + 48));
  EXPECT_GT(j.at("peak_gflops").get<double>(), 0);
}

TEST(Cli, ExplainsGradients) {
  const Answer text =
      headwise_says("explain --backward --q-tokens 64 --dtype f64 --sinks --gate --threads 1");
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(text.out.rfind("backward    f64 q [1 64 8 64]", 0), 0u) << text.out;
  EXPECT_NE(text.out.find("\ngradients   q, k, v, sinks, gate\n"), std::string::npos) << text.out;
  const auto facts =
      nlohmann::json::parse(headwise_says("explain --backward --json --q-tokens 8 --threads 1").out);
  EXPECT_EQ(facts["op"], "attention_backward");
  const Answer probed = headwise_says("explain --backward --probe rows");
  EXPECT_EQ(probed.code, 1);
  EXPECT_NE(probed.err.find("probes have no gradient"), std::string::npos) << probed.err;
}

TEST(Cli, ExplainDrawsShapes) {
  const Answer tree = headwise_says("explain --q-tokens 16 --heads 2 --shapes --threads 1");
  EXPECT_NE(tree.out.find("[1 16 2 64]"), std::string::npos) << tree.out;
  const Answer chart = headwise_says("explain --q-tokens 16 --heads 2 --mermaid --threads 1");
  EXPECT_NE(chart.out.find("flowchart"), std::string::npos) << chart.out;
}

TEST(Cli, DoctorKnowsTheLevels) {
  const Answer a = headwise_says("doctor --json --no-measure");
  ASSERT_EQ(a.code, 0) << a.err;
  const auto j = nlohmann::json::parse(a.out);
  EXPECT_EQ(j.at("version"), headwise::kVersion);
  const auto levels = headwise::cpu::isa_levels();
  ASSERT_EQ(j.at("isa_levels").size(), levels.size());
  for (std::size_t i = 0; i < levels.size(); ++i) {
    EXPECT_EQ(j.at("isa_levels")[i].at("name"), levels[i].name);
    EXPECT_EQ(j.at("isa_levels")[i].at("supported"), levels[i].supported());
    if (std::string_view(levels[i].name) == "neon") {
      EXPECT_EQ(j.at("isa_levels")[i].at("trial"), "tested");
    }
  }
  EXPECT_EQ(j.at("chosen_isa"), headwise::cpu::chosen_isa().name);
  EXPECT_TRUE(j.at("problems").empty());
}

TEST(Cli, DoctorFindsBadVariables) {
  for (const std::string variable :
       {"HEADWISE_ISA=steam", "HEADWISE_THREADS=none", "HEADWISE_KERNELS=cpu/onlin"}) {
    const Answer a = headwise_says("doctor --no-measure", variable);
    EXPECT_EQ(a.code, 1) << variable;
    EXPECT_NE(a.err.find(variable.substr(variable.find('=') + 1)), std::string::npos) << a.err;
  }
  const Answer forced = headwise_says("doctor --json --no-measure", "HEADWISE_ISA=plain");
  EXPECT_EQ(nlohmann::json::parse(forced.out).at("chosen_isa"), "plain");
}

TEST(Cli, BenchMeasuresEveryPass) {
  const Answer a = headwise_says("bench --json --seconds 0.001 --threads 1");
  ASSERT_EQ(a.code, 0) << a.err;
  const auto facts = nlohmann::json::parse(a.out);
  std::string passes;
  for (const auto& row : facts.at("rows")) {
    passes += row.at("case").get<std::string>().substr(0, 1);
    EXPECT_GT(row.at("peak_share").get<double>(), 0);
    EXPECT_EQ(row.contains("read_share"), passes.back() == 'd') << row;
  }
  EXPECT_EQ(passes, "ffffbdd");
  EXPECT_EQ(headwise_says("bench --seconds 0").err,
            "headwise: bench: --seconds is 0; give more than 0 and at most 60 for each row\n");
}

TEST(Cli, TheTableOfTestedLevelsBelongsToThisVersion) {
  EXPECT_EQ(headwise::cli::kTestedVersion, headwise::kVersion)
      << "run headwise-selftest at every level, then fill tested.h";
}

}  // namespace
