// headwise eval: how right a model is on labelled texts, and how quick.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "headwise/analysis/report/trust.h"
#include "headwise/analysis/weight_survey.h"
#include "headwise/base/context.h"
#include "headwise/cli/args/args.h"
#include "headwise/cli/args/corpora.h"
#include "headwise/cli/args/device.h"
#include "headwise/cli/ranks/rank_models.h"
#include "headwise/intent/training/evaluation.h"

namespace headwise::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Request {
  std::string model, out_of_scope = "oos";
  DeviceChoice device;
  CorpusChoice data;
  Index wrong = 0;
  double abstain = 0;
  int threads = 0;
  bool latency = false, heads = false, json = false;
  RankRequest ranks;
};

/// One text at a time, then all of them in batches.
struct Latency {
  double p50_ms = 0, p99_ms = 0, texts_per_second = 0;
  std::size_t texts = 0;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Latency measure(const Recognizer& model, const Corpus& corpus, Session& session) {
  constexpr std::size_t kWarmUp = 20, kMost = 2000;
  std::vector<std::string> texts;
  for (const Utterance& row : corpus.rows)
    if (texts.size() < kMost) texts.push_back(row.text);
  for (std::size_t i = 0; i < std::min(kWarmUp, texts.size()); ++i) model.predict(texts[i], session);
  std::vector<double> each;
  for (const std::string& text : texts) {
    const auto start = Clock::now();
    model.predict(text, session);
    each.push_back(1e3 * seconds_since(start));
  }
  std::sort(each.begin(), each.end());
  const auto start = Clock::now();
  model.predict(texts, session);
  return {each[each.size() / 2], each[each.size() * 99 / 100],
          static_cast<double>(texts.size()) / seconds_since(start), texts.size()};
}

nlohmann::ordered_json facts_of(const LayerWeights& w) {
  return {{"self_mass", w.figures.self},          {"entropy", w.figures.entropy},
          {"of_uniform", w.figures.spread},       {"confidence", w.figures.confidence},
          {"token_distance", w.figures.distance}, {"head_distance", w.apart}};
}

nlohmann::ordered_json facts_of(const WeightSurvey& s) {
  nlohmann::ordered_json j = {{"texts", s.texts}, {"heads", s.heads}};
  j.update(facts_of(s.mean()));
  for (const LayerWeights& layer : s.layers) j["layers"].push_back(facts_of(layer));
  return j;
}

void print(const WeightSurvey& s) {
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    const LayerWeights& w = s.layers[i];
    fmt::print(
        "  layer {:<3}     {:.1f} % of the weight on the own token, entropy {:.2f} nats ({:.0f} % of "
        "uniform), "
        "distance between heads {:.3f} nats\n",
        i, 100 * w.figures.self, w.figures.entropy, 100 * w.figures.spread, w.apart);
  }
}

std::string joined(const std::vector<std::string>& labels) {
  std::string all;
  for (const std::string& label : labels) all += (all.empty() ? "" : ", ") + label;
  return all.empty() ? "nothing" : all;
}

/// Texts in scope that were not refused, and how many of them are right.
Coverage answered(const Evaluation& e) {
  const Index refused = e.scope_precision.whole - e.scope_precision.part;
  return {.texts = e.exact.whole, .answered = e.exact.whole - refused, .right = e.exact.part};
}

int eval(const Request& r) {
  require(r.wrong >= 0, ErrorKind::bad_argument, "eval", "--wrong is ", r.wrong, "; give a number from 0 up");
  const Ranks ranks("eval", r.ranks, Order::one_rank);
  require(!r.heads || ranks.world().ranks() == 1, ErrorKind::unsupported, "eval",
          "--heads-figures looks at all heads, and a rank has its own alone; use one rank");
  const Corpora all = read_corpora_of(r.data, "eval");
  const Corpus& corpus = r.data.builtin ? all.test : all.train;
  Session session({.threads = r.threads});
  Recognizer model = load_on_ranks(r.model, corpus_crc(corpus), ranks, session.ctx);
  place_model(model, r.device, "eval", ranks.world().ranks(), session.ctx);
  if (r.abstain > 0)
    model.set_thresholds(model.config().threshold, std::max(r.abstain, model.config().out_of_scope));
  const Evaluation e =
      evaluate(model, corpus, session, {.out_of_scope = r.out_of_scope, .bad_cases = r.wrong});
  const Latency quick = r.latency ? measure(model, corpus, session) : Latency{};
  const WeightSurvey weights = r.heads ? survey_weights(model, corpus, session) : WeightSurvey{};
  if (r.json) {
    nlohmann::ordered_json j = nlohmann::ordered_json::parse(e.json());
    if (r.latency)
      j["latency"] = {{"texts", quick.texts},
                      {"threads", session.ctx.threads()},
                      {"p50_ms", quick.p50_ms},
                      {"p99_ms", quick.p99_ms},
                      {"texts_per_second", quick.texts_per_second}};
    if (r.heads) j["heads"] = facts_of(weights);
    if (r.abstain > 0) {
      const Coverage c = answered(e);
      j["abstain"] = {
          {"below", r.abstain}, {"answered", c.answered}, {"share", c.share()}, {"accuracy", c.accuracy()}};
    }
    fmt::print("{}\n", j.dump(2));
    return kDone;
  }
  fmt::print("{}", e.print());
  if (r.abstain > 0) {
    const Coverage c = answered(e);
    fmt::print("  answered      {:.2f} % ({} of {}) at {:.0f} % or more; {:.2f} % of those are right\n",
               100 * c.share(), c.answered, c.texts, 100 * r.abstain, 100 * c.accuracy());
  }
  if (r.latency)
    fmt::print(
        "  one text      {:.2f} ms, 99 in 100 within {:.2f} ms\n  batches       {:.0f} texts a second\n",
        quick.p50_ms, quick.p99_ms, quick.texts_per_second);
  if (r.heads) print(weights);
  const Paint paint = Paint::for_stdout();
  for (const BadCase& b : e.bad_cases)
    fmt::print("\n{}\n  wanted {}, got {} ({:.1f} %)\n", paint.bold(b.text), paint.good(joined(b.wanted)),
               paint.warn(joined(b.given)), 100 * b.confidence);
  return kDone;
}

}  // namespace

void add_eval(CLI::App& app, int& exit_code) {
  CLI::App* word =
      app.add_subcommand("eval", "How right a model is: exact match by number of intents, F1, confusions");
  word->footer(
      "Example: headwise eval model test.tsv --wrong 5\n"
      "         headwise eval model --builtin --latency --json");
  const auto r = std::make_shared<Request>();
  word->add_option("model", r->model, "Folder that headwise train wrote")->required();
  word->add_option("data", r->data.files, "Files of labelled texts");
  word->add_flag("--builtin", r->data.builtin,
                 "The test of the built-in corpus: patterns that training never shows");
  add_column_options(*word, r->data);
  word->add_option("--out-of-scope", r->out_of_scope, "Label of texts that belong to no intent")
      ->capture_default_str();
  word->add_option("--wrong", r->wrong, "Wrong answers to show, the surest first")
      ->check(size_check())
      ->capture_default_str();
  word->add_option("--abstain", r->abstain,
                   "Holds back answers below this confidence: fewer are given, more of them are right")
      ->check(CLI::Range(0.0, 0.999999));
  word->add_flag("--latency", r->latency, "Times of up to 2000 texts too, one by one and in batches");
  word->add_flag(
      "--heads-figures", r->heads,
      "How the weights of up to 400 texts look: mass on the own token, entropy, distance between heads");
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  add_device_options(*word, r->device);
  word->add_flag("--json", r->json, "One JSON object");
  add_tensor_option(*word, r->ranks);
  add_context_option(*word, r->ranks);
  add_order_option(*word, r->ranks);
  word->callback([r, &exit_code] { exit_code = eval(*r); });
}

}  // namespace headwise::cli
