// headwise generate: texts from a decoder model, as they come or whole, with what its heads did.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "headwise/base/context.h"
#include "headwise/cli/args/args.h"
#include "headwise/cli/decoder/head_plan.h"
#include "headwise/cli/ranks/ranks.h"
#include "headwise/decoder/decoder_host.h"
#include "headwise/decoder/forward/kv_file.h"
#include "headwise/train/checkpoints/checkpoint.h"

namespace headwise::cli {
namespace {

struct Request {
  std::string model, dtype = "stored", rows = "exact", kv_dtype = "f32";
  std::vector<std::string> prompts, stop;
  Index max_tokens = 256, kv_mib = 256;
  double temperature = 0, top_p = 1, min_p = 0, repetition = 1;
  Index top_k = 0;
  std::optional<std::uint64_t> seed;
  std::string draft, kv_file, policy;
  int threads = 0;
  bool stream = false, stats = false, json = false;
  RankRequest ranks;
};

DecoderOptions decoder_options(const Request& r) {
  return {.dtype = weights_dtype_named("generate: --dtype", r.dtype),
          .rounded_rows = rounded_rows_named("generate: --rows", r.rows)};
}

DecoderOptions cut_options(const Request& r, const Ranks& ranks) {
  DecoderOptions o = decoder_options(r);
  o.team = ranks.teams().tensor, o.context = ranks.teams().context;
  return o;
}

KvOptions kv_options(const Request& r, const Decoder& model) {
  const KvShape shape = model.kv_shape();
  KvOptions o;
  o.share = model.key_share();
  o.bytes = r.kv_mib << 20, o.dtype = kv_dtype_named("generate: --kv-dtype", r.kv_dtype);
  if (!r.policy.empty()) o.heads = read_head_plan(r.policy, shape);
  return o;
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What guesses tokens: nothing, the text itself, or a smaller model.
struct Guesses {
  Guesses(const Request& r, const Decoder& model, Context& ctx) {
    if (r.draft.empty()) return;
    if (r.draft == "ngram") {
      drafter = std::make_unique<NgramDrafter>();
      return;
    }
    const std::unique_ptr<DecoderSource> source = open_decoder(r.draft);
    require(source->config().vocabulary == model.config().vocabulary, ErrorKind::bad_argument, "--draft",
            r.draft, " has ", source->config().vocabulary, " tokens and the model ",
            model.config().vocabulary, "; a draft model has the same");
    small.emplace(*source, decoder_options(r), ctx);
    drafter = std::make_unique<ModelDrafter>(*small, r.kv_mib << 20);
  }
  std::optional<Decoder> small;
  std::unique_ptr<Drafter> drafter;
};

/// One prompt's answer so far.
struct Answer {
  std::size_t prompt = 0;
  std::string text, error;
  std::vector<TokenId> tokens;
  Finish finish = Finish::none;
  HeadStats sum;  // over its tokens
};

class Talk {
 public:
  Talk(const Request& r, const Ranks& ranks)
      : request_(r),
        ctx_({.threads = r.threads}),
        source_(open_decoder(r.model)),
        model_(*source_, cut_options(r, ranks), ctx_),
        cache_(model_.kv_shape(), kv_options(r, model_)),
        guesses_(r, model_, ctx_),
        generator_(model_, source_->tokenizer(), cache_, {.drafter = guesses_.drafter.get()}) {
    require(source_->tokenizer() != nullptr, ErrorKind::bad_argument, "generate", r.model,
            ": no tokenizer lies beside the model; put its tokenizer.bin or tokenizer.json there");
    if (!r.seed.has_value()) seed_ = std::random_device{}();
    agree(ranks);
  }

  int run() {
    load_beginning();
    const double begin = seconds();
    for (std::size_t i = 0; i < request_.prompts.size(); ++i) add(i);
    while (generator_.step(ctx_))
      for (const GenerateEvent& e : generator_.events()) take(e);
    const double took = seconds() - begin;
    bool failed = false;
    for (const auto& [id, a] : answers_) {
      failed = failed || a.finish == Finish::error;
      show(a);
    }
    if (request_.stats) show_speed(took);
    save_beginning();
    return failed ? kFailed : kDone;
  }

 private:
  /// Ranks draw the same tokens from the same logits.
  void agree(const Ranks& ranks) {
    const Request& r = request_;
    ranks.world().share(&seed_, sizeof seed_, "the seed");
    std::string said =
        text(r.kv_dtype, ' ', r.draft, ' ', r.max_tokens, ' ', r.kv_mib, ' ', r.temperature, ' ', r.top_p,
             ' ', r.min_p, ' ', r.repetition, ' ', r.top_k, ' ', r.seed.value_or(0));
    for (const auto* list : {&r.prompts, &r.stop})
      for (const std::string& one : *list) said += text(" | ", one);
    ranks.agree({{"options and prompts", said}, {"numerics", numerics_id(ctx_)}});
  }
  /// What was saved goes to the cache's tree, where the prompt finds it.
  void load_beginning() {
    std::error_code code;
    if (request_.kv_file.empty() || !std::filesystem::exists(request_.kv_file, code)) return;
    const SequenceId id = load_kv(cache_, model_, request_.kv_file);
    require(id >= 0, ErrorKind::bad_argument, "--kv-file", request_.kv_file, ": does not fit ",
            request_.kv_mib, " MiB; raise --kv-mib");
    cache_.close(id);
  }
  /// The full pages of prompt and answer, as far as the cache still has them.
  void save_beginning() {
    if (request_.kv_file.empty()) return;
    const Answer& a = answers_.begin()->second;
    std::vector<TokenId> all = source_->tokenizer()->encode(request_.prompts[0]);
    all.insert(all.end(), a.tokens.begin(), a.tokens.end());
    const SequenceId id = cache_.open();
    if (cache_.adopt(id, all) > 0) save_kv(cache_, id, model_, request_.kv_file);
    cache_.close(id);
  }
  void add(std::size_t i) {
    GenerateRequest g;
    g.prompt = source_->tokenizer()->encode(request_.prompts[i]);
    const Index room = model_.config().positions - static_cast<Index>(g.prompt.size()) + 1;
    g.max_tokens = std::min(request_.max_tokens, std::max<Index>(room, 1));
    g.sampling.temperature = request_.temperature, g.sampling.top_k = request_.top_k;
    g.sampling.top_p = request_.top_p, g.sampling.min_p = request_.min_p;
    g.sampling.repetition_penalty = request_.repetition;
    g.sampling.seed = request_.seed.value_or(seed_);
    g.stop = request_.stop, g.watch = request_.stats;
    answers_[generator_.add(std::move(g))].prompt = i;
  }

  void take(const GenerateEvent& e) {
    Answer& a = answers_[e.id];
    a.text += e.text, a.error = e.error, a.finish = e.finish;
    a.tokens.insert(a.tokens.end(), e.tokens.begin(), e.tokens.end());
    for (const HeadStats& h : e.heads) {
      const auto add = [](std::vector<float>& to, const std::vector<float>& from) {
        to.resize(from.size());
        for (std::size_t i = 0; i < from.size(); ++i) to[i] += from[i];
      };
      add(a.sum.entropy, h.entropy), add(a.sum.top_weight, h.top_weight), add(a.sum.first_mass, h.first_mass);
    }
    if (request_.stream && !request_.json && !e.text.empty()) {
      fmt::print("{}", e.text);
      std::fflush(stdout);
    }
  }

  void show(const Answer& a) const {
    if (a.finish == Finish::error) fmt::print(stderr, "headwise: {}\n", a.error);
    if (request_.json) return show_json(a);
    fmt::print("{}\n", request_.stream ? "" : a.text);
    if (request_.stats) show_heads(a);
  }
  void show_json(const Answer& a) const {
    nlohmann::ordered_json j = {{"prompt", request_.prompts[a.prompt]},
                                {"text", a.text},
                                {"tokens", a.tokens},
                                {"finish", name_of(a.finish)},
                                {"seed", request_.seed.value_or(seed_)}};
    if (!a.error.empty()) j["error"] = a.error;
    if (request_.stats)
      j["heads"] = {{"entropy", mean(a.sum.entropy, a)},
                    {"top_weight", mean(a.sum.top_weight, a)},
                    {"first_mass", mean(a.sum.first_mass, a)}};
    fmt::print("{}\n", j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  /// [layers heads] means over the tokens.
  std::vector<std::vector<float>> mean(const std::vector<float>& sum, const Answer& a) const {
    std::vector<std::vector<float>> rows;
    const auto heads = static_cast<std::size_t>(model_.config().heads);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      if (i % heads == 0) rows.emplace_back();
      rows.back().push_back(sum[i] / static_cast<float>(a.tokens.size()));
    }
    return rows;
  }
  void show_heads(const Answer& a) const {
    const std::pair<const char*, const std::vector<float>*> tables[] = {
        {"entropy of the weights, in nats", &a.sum.entropy},
        {"largest weight", &a.sum.top_weight},
        {"weight on the first token", &a.sum.first_mass}};
    for (const auto& [title, sum] : tables) {
      fmt::print("\n{}: a row a layer, a column a head, means over {} tokens\n", title, a.tokens.size());
      Index layer = 0;
      for (const std::vector<float>& row : mean(*sum, a)) {
        fmt::print("{:>4} ", layer++);
        for (const float x : row) fmt::print(" {:>5.2f}", x);
        fmt::print("\n");
      }
    }
  }
  void show_speed(double took) const {
    const GeneratorStats s = generator_.stats();
    fmt::print(stderr, "{} tokens drawn, {} rows in {} steps, {:.2f} s, {:.1f} tokens/s; weights {:.1f} MB\n",
               s.drawn, s.rows, s.steps, took, static_cast<double>(s.drawn) / took,
               static_cast<double>(model_.weight_bytes()) / 1e6);
    if (guesses_.drafter != nullptr) fmt::print(stderr, "{} tokens guessed, {} right\n", s.guessed, s.right);
    if (!request_.kv_file.empty()) fmt::print(stderr, "{} tokens taken from --kv-file\n", s.adopted);
  }

  const Request& request_;
  Context ctx_;
  std::unique_ptr<DecoderSource> source_;
  Decoder model_;
  KvCache cache_;
  Guesses guesses_;
  Generator generator_;
  std::map<RequestId, Answer> answers_;
  std::uint64_t seed_ = 0;
};

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  CLI::App* word = app.add_subcommand("generate", "Texts from a decoder model, and what its heads did");
  word->footer(
      "Example: headwise generate model.gguf \"Once upon a time\" --temperature 0.8 --seed 7 --stream\n"
      "The text depends on model, prompt, options and seed alone, not on the other prompts.");
  const auto r = std::make_shared<Request>();
  word->add_option("model", r->model, "Folder with config.json, a .gguf file or a llama2.c .bin file")
      ->required();
  word->add_option("prompts", r->prompts, "Prompts; several are continued at once")->required();
  word->add_option("--max-tokens", r->max_tokens, "Tokens to draw, at most")
      ->check(size_check())
      ->capture_default_str();
  word->add_option("--temperature", r->temperature, "0: the likeliest token always")->capture_default_str();
  word->add_option("--top-k", r->top_k, "Draw among the k likeliest; 0: all")
      ->check(size_check())
      ->capture_default_str();
  word->add_option("--top-p", r->top_p, "Draw among the likeliest that sum up to it")->capture_default_str();
  word->add_option("--min-p", r->min_p, "Drop tokens below it times the likeliest")->capture_default_str();
  word->add_option("--repetition-penalty", r->repetition, "Above 1: what was said gets less likely")
      ->capture_default_str();
  word->add_option("--seed", r->seed, "Of the noise; none: one is drawn");
  word->add_option("--stop", r->stop, "Text that ends the answer; may stand several times");
  word->add_option("--dtype", r->dtype, "Of the weights: stored, as the file has them, or f32, bf16, f16")
      ->capture_default_str();
  word->add_option("--rows", r->rows,
                   "That meet quantized weights: exact, or i8, rounded to 8 bits and faster")
      ->capture_default_str();
  word->add_option("--kv-dtype", r->kv_dtype, "Of keys and values: f32, bf16, f16, i8 or e4m3")
      ->capture_default_str();
  word->add_option("--kv-mib", r->kv_mib, "MiB for keys and values")
      ->check(size_check(1))
      ->capture_default_str();
  word->add_option("--draft", r->draft,
                   "Guess tokens: ngram, from the text itself, or a smaller model's path");
  word->add_option("--policy", r->policy, "JSON plan with a policy for every kv head, from headwise policy");
  word->add_option("--kv-file", r->kv_file,
                   "Keys and values of the text: read where it exists, written at the end");
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  add_tensor_option(*word, r->ranks);
  word->add_option("--context", r->ranks.context,
                   "Ranks that share out the keys of every text: mpirun -n 2 headwise ... --context 2")
      ->check(size_check(1, 64));
  word->add_flag("--stream", r->stream, "Print the text as it comes; for one prompt");
  word->add_flag("--stats", r->stats, "Entropy, largest weight and weight on the first token of every head");
  word->add_flag("--json", r->json, "One JSON object a prompt");
  word->callback([r, &exit_code] {
    require(!r->stream || r->prompts.size() == 1, ErrorKind::bad_argument, "generate",
            "--stream shows one text as it comes; give one prompt");
    require(r->kv_file.empty() || r->prompts.size() == 1, ErrorKind::bad_argument, "generate",
            "--kv-file keeps one text; give one prompt");
    require(r->kv_file.empty() || r->policy.empty(), ErrorKind::unsupported, "generate",
            "--kv-file keeps all tokens of all heads; leave --policy away");
    require(r->ranks.tensor < 2 || (r->kv_file.empty() && r->policy.empty() && !r->stats),
            ErrorKind::unsupported, "generate",
            "--kv-file, --policy and --stats know all heads, and --tensor cuts them; use one rank");
    require(r->ranks.context < 2 || (r->kv_file.empty() && r->policy.empty() && !r->stats),
            ErrorKind::unsupported, "generate",
            "--kv-file, --policy and --stats know all keys, and --context shares them out; use one rank");
    const Ranks ranks("generate", r->ranks, Order::one_rank);
    exit_code = Talk(*r, ranks).run();
  });
}

}  // namespace headwise::cli
