// headwise cut: a model without the heads it needs least.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "headwise/cli/args.h"
#include "headwise/cli/corpora.h"
#include "headwise/intent/training/evaluation.h"
#include "headwise/lab/cut.h"
#include "headwise/lab/texts.h"
#include "headwise/model/file.h"

namespace headwise::cli {
namespace {

constexpr const char* kOp = "cut";
constexpr Index kMostBytes = Index{1} << 24;  // of a plan

struct Request {
  std::string model, out, plan, rank = "off", sum = "text", within;
  CorpusChoice data;
  Index keep = 0, texts = 400, least = 1;
  int threads = 0;
  bool across = false, json = false;
};

template <class E>
E named(const char* option, const std::string& word, std::span<const std::string_view> names) {
  std::string all;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == word) return static_cast<E>(i);
    all += text(i ? ", " : "", names[i]);
  }
  throw Error(ErrorKind::bad_argument, text(kOp, ": ", option, " is ", word, "; give one of ", all));
}

/// "1%" or "0.01".
double share_of(const std::string& words) {
  std::size_t end = 0;
  double x = -1;
  try {
    x = std::stod(words, &end);
  } catch (const std::exception&) {
  }
  const std::string rest = words.substr(end);
  require(x >= 0 && x < 1e6 && (rest.empty() || rest == "%"), ErrorKind::bad_argument, kOp,
          "--loss-within is ", words, "; give a share such as 1% or 0.01");
  return rest == "%" ? x / 100 : x;
}

std::string list_of(const std::vector<Index>& all) {
  std::string s;
  for (const Index i : all) s += text(s.empty() ? "" : " ", i);
  return s.empty() ? "none" : s;
}

/// Exact matches of labelled texts; -1 for an encoder.
double right_share(const LabModel& model, const Corpus& corpus, Session& session) {
  if (!model.labels()) return -1;
  return evaluate(model.recognizer(), corpus, session, {}).exact.value();
}

void print(const Request& r, const LabModel& model, const ChosenCut& cut, const EditedModel& edited,
           Session& session, const Corpus* corpus) {
  const LabModel small(r.out);
  const Index before = model.params().count(), after = model.count_after(edited);
  const double was = corpus ? right_share(model, *corpus, session) : -1,
               is = corpus ? right_share(small, *corpus, session) : -1;
  if (r.json) {
    nlohmann::ordered_json j = {{"heads_before", HeadPlan(cut.plan.heads).left()},
                                {"heads_after", cut.plan.left()},
                                {"parameters_before", before},
                                {"parameters_after", after},
                                {"plan", nlohmann::ordered_json::parse(plan_text(cut.plan))}};
    if (corpus) j.update({{"loss_before", cut.loss_before}, {"loss_after", cut.loss_after}});
    if (was >= 0) j.update({{"exact_before", was}, {"exact_after", is}});
    for (const CutPoint& p : cut.curve) j["curve"].push_back({{"heads", p.left}, {"loss", p.loss}});
    fmt::print("{}\n", j.dump(2));
    return;
  }
  for (std::size_t i = 0; i < cut.plan.heads.size(); ++i)
    fmt::print("  layer {:<3} keeps {:>3} of {:<3} cut: {}\n", i, cut.plan.left(static_cast<Index>(i)),
               cut.plan.heads[i], list_of(cut.plan.cut[i]));
  fmt::print("  heads      {} -> {}\n  parameters {} -> {}\n", HeadPlan(cut.plan.heads).left(),
             cut.plan.left(), before, after);
  if (corpus)
    fmt::print("  {} {:.4f} -> {:.4f}\n", model.labels() ? "loss      " : "1 - cosine", cut.loss_before,
               cut.loss_after);
  if (was >= 0) fmt::print("  right      {:.2f} % -> {:.2f} %\n", 100 * was, 100 * is);
  fmt::print("wrote {}; {} is as it was\n", r.out, r.model);
}

/// Labelled texts of a recogniser; of an encoder any texts, one a line.
Corpus corpus_of(const Request& r, bool labels) {
  if (labels || r.data.builtin) {
    Corpora all = read_corpora_of(r.data, kOp);
    return r.data.builtin ? std::move(all.dev) : std::move(all.train);
  }
  Corpus c;
  for (const std::string& path : r.data.files) {
    c.name = path;
    for (std::string& one : read_texts(path)) c.rows.push_back({std::move(one), {}, {}, 0});
  }
  return c;
}

int cut(const Request& r) {
  const int wishes = (r.keep > 0) + !r.within.empty() + !r.plan.empty();
  require(wishes == 1, ErrorKind::bad_argument, kOp, "got ", wishes,
          " of --keep, --loss-within and --plan; give one of them");
  std::error_code none;
  require(!std::filesystem::equivalent(r.model, r.out, none), ErrorKind::bad_argument, kOp, r.out,
          ": is the model's own folder, which is never changed; choose another name");
  const LabModel model(r.model);
  const std::vector<Index> heads = model.heads(kOp);
  Session session({.threads = r.threads});
  const bool told = r.data.builtin || !r.data.files.empty();
  require(told || !r.plan.empty(), ErrorKind::bad_argument, kOp,
          "heads are ranked on texts; give files of texts, or --builtin, or a --plan");
  const Corpus corpus = told ? corpus_of(r, model.labels()) : Corpus{};
  ChosenCut chosen{.plan = HeadPlan(heads)};
  std::unique_ptr<HeadTrial> trial;
  if (told) trial = std::make_unique<HeadTrial>(model, corpus, r.texts, session);
  if (!r.plan.empty()) {
    chosen.plan = parse_plan(read_text(r.plan, kMostBytes, kOp), text(kOp, ": ", r.plan), heads);
    if (trial) chosen.loss_before = trial->loss(), chosen.loss_after = trial->loss_without(chosen.plan);
  } else {
    RankOptions o{.rank = named<HeadRank>("--rank", r.rank, kRankNames),
                  .sum = named<MichelSum>("--michel-sum", r.sum, kMichelNames),
                  .by_layer = !r.across,
                  .least_in_layer = r.least};
    if (isatty(STDERR_FILENO) != 0)
      o.progress = [](double share) {
        fmt::print(stderr, "\rranking heads: {:3.0f} %{}", 100 * share, share < 1 ? "" : "\n");
      };
    const Index most = r.keep > 0 ? chosen.plan.left() - r.keep : chosen.plan.left();
    chosen = choose_cut(*trial, rank_heads(*trial, o, max_of(0, most)), r.keep,
                        r.within.empty() ? 0 : share_of(r.within));
  }
  const EditedModel edited = cut_heads(model, chosen.plan);
  model.save(edited, r.out, kOp);
  print(r, model, chosen, edited, session, told ? &corpus : nullptr);
  return kDone;
}

}  // namespace

void add_cut(CLI::App& app, int& exit_code) {
  CLI::App* word = app.add_subcommand("cut", "A smaller model without the heads it needs least");
  word->footer(
      "Example: headwise cut model test.tsv --keep 9 --rank michel --out small\n"
      "         headwise cut model --builtin --loss-within 1% --rank greedy --out small\n"
      "         headwise cut model --plan plan.json --out small");
  const auto r = std::make_shared<Request>();
  word->add_option("model", r->model, "Folder that headwise train wrote, or a BERT-style encoder")
      ->required();
  word->add_option("data", r->data.files,
                   "Files of texts on which heads are ranked; a recogniser needs labels");
  word->add_flag("--builtin", r->data.builtin, "The built-in corpus instead");
  word->add_option("--out", r->out, "Folder of the smaller model")->required();
  word->add_option("--keep", r->keep, "Heads that stay, of all layers together")->check(size_check(1));
  word->add_option("--loss-within", r->within, "As many go as the loss allows: 1% above the whole model's");
  word->add_option("--plan", r->plan, "File that says which heads go");
  word->add_option("--rank", r->rank,
                   "off: by the loss without the head; michel: by its slope; greedy: anew after each")
      ->capture_default_str();
  word->add_option("--michel-sum", r->sum, "What |dL/dgate| is summed over: text, token or batch")
      ->capture_default_str();
  word->add_flag("--across-layers", r->across, "michel: compare scores of layers as they are");
  word->add_option("--least", r->least, "Heads every layer keeps")
      ->check(size_check(1))
      ->capture_default_str();
  word->add_option("--texts", r->texts, "Texts heads are ranked on, at most")
      ->check(size_check(1))
      ->capture_default_str();
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  word->add_flag("--json", r->json, "One JSON object");
  word->callback([r, &exit_code] { exit_code = cut(*r); });
}

}  // namespace headwise::cli
