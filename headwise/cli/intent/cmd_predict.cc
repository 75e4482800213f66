// headwise predict: the intents of texts, with the words and heads that carried the decision.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>

#include "headwise/analysis/answer_json.h"
#include "headwise/cli/args/args.h"
#include "headwise/cli/args/device.h"
#include "headwise/cli/intent/surface.h"
#include "headwise/cli/ranks/rank_models.h"

namespace headwise::cli {
namespace {

struct Request {
  std::string model, label, language;
  DeviceChoice device;
  std::vector<std::string> texts;
  Index top = 3;
  double abstain = 0;
  int threads = 0;
  bool json = false, explain = false;
  RankRequest ranks;
};

struct HeadWeight {
  Index layer = 0, head = 0;
  double importance = 0;
};

/// The strongest first, for or against.
std::vector<HeadWeight> heads_of(const Explanation& e) {
  std::vector<HeadWeight> heads;
  for (Index layer = 0; layer < e.layers; ++layer)
    for (Index h = 0; h < e.heads; ++h) heads.push_back({layer, h, e.head(layer, h)});
  std::stable_sort(heads.begin(), heads.end(), [](const HeadWeight& a, const HeadWeight& b) {
    return std::abs(a.importance) > std::abs(b.importance);
  });
  return heads;
}

std::string piece_of(const std::string& text, const TextSpan& span) {
  return text.substr(static_cast<std::size_t>(span.begin), static_cast<std::size_t>(span.end - span.begin));
}

class Answers {
 public:
  Answers(const Request& r, const Ranks& ranks)
      : request_(r),
        say_(predict_words(surface_language(r.language))),
        session_({.threads = r.threads}),
        model_(load_on_ranks(r.model, texts_crc(r.texts), ranks, session_.ctx)) {
    place_model(model_, r.device, "predict", ranks.world().ranks(), session_.ctx);
    const RecognizerConfig& c = model_.config();
    if (r.abstain > c.out_of_scope) model_.set_thresholds(c.threshold, r.abstain);
  }

  void answer(std::span<const std::string> texts) {
    const std::vector<Prediction> all = model_.predict(texts, session_);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      std::vector<Explanation> why;
      if (request_.explain) why = explain_labels(model_, texts[i], all[i], request_.label, session_);
      if (request_.json)
        fmt::print("{}\n", answer_json(model_.config(), texts[i], all[i], request_.top, why));
      else
        print(texts[i], all[i], why);
    }
    std::fflush(stdout);  // a program that feeds us line by line waits for this one
  }

 private:
  const std::string& name(Index label) const {
    return model_.config().labels[static_cast<std::size_t>(label)];
  }
  static double probability(const Prediction& p, Index label) {
    return static_cast<double>(p.probability[static_cast<std::size_t>(label)]);
  }

  /// Why a label was not given: what it has, what it would have needed, and the words that stand in its way.
  void print_missed(const std::string& text, const Explanation& e) const {
    const bool behind = e.rival >= 0 && e.needed <= probability(e.prediction, e.rival);
    fmt::print("    {}\n",
               filled(say_.missed, 100 * e.probability, e.rival >= 0 ? say_.more_than : "", 100 * e.needed,
                      behind ? filled(say_.which_has, name(e.rival)) : "", e.lacks()));
    std::string against, freed;
    for (const WordWeight& w : words_of(e)) {
      if (w.importance < 0)
        against +=
            fmt::format("{}{} {:+.2f}", against.empty() ? "" : ", ", piece_of(text, w.span), w.importance);
      if (w.frees) freed += fmt::format("{}\"{}\"", freed.empty() ? "" : say_.either, piece_of(text, w.span));
    }
    fmt::print("    {}\n", filled(say_.against, against.empty() ? say_.no_word : against));
    if (!freed.empty()) fmt::print("    {}\n", filled(say_.without, freed));
  }

  void print(const std::string& text, const Explanation& e) const {
    std::vector<WordWeight> words = words_of(e);
    double most = 0;
    for (const WordWeight& w : words) most = std::max(most, std::abs(w.importance));
    std::string shaded;
    Index at = 0;
    for (const WordWeight& w : words) {
      shaded += piece_of(text, {at, w.span.begin});
      shaded += paint_.shade(most > 0 ? w.importance / most : 0, piece_of(text, w.span));
      at = w.span.end;
    }
    shaded += piece_of(text, {at, static_cast<Index>(text.size())});
    fmt::print("  {}\n    {}\n", name(e.label), filled(say_.reasons, shaded));
    if (!e.given) print_missed(text, e);
    std::stable_sort(words.begin(), words.end(), [](const WordWeight& a, const WordWeight& b) {
      return std::abs(a.importance) > std::abs(b.importance);
    });
    words.resize(std::min<std::size_t>(words.size(), 6));
    std::string list;
    for (const WordWeight& w : words)
      list += fmt::format("{}{} {:+.2f}", list.empty() ? "" : ", ", piece_of(text, w.span), w.importance);
    fmt::print("    {}\n", filled(say_.words, list));
    list.clear();
    std::vector<HeadWeight> heads = heads_of(e);
    heads.resize(std::min<std::size_t>(heads.size(), 4));
    for (const HeadWeight& h : heads)
      list += (list.empty() ? "" : ", ") + filled(say_.head, h.layer, h.head, h.importance);
    fmt::print("    {}\n", filled(say_.heads, list.empty() ? say_.no_heads : list));
  }

  void print(const std::string& text, const Prediction& p, std::span<const Explanation> why) const {
    fmt::print("{}\n", paint_.bold(text));
    if (p.out_of_scope)
      fmt::print("  {}\n",
                 paint_.warn(filled(say_.none, 100 * p.confidence, 100 * model_.config().out_of_scope)));
    for (const Index label : likeliest(p, request_.top)) {
      const bool given = std::find(p.labels.begin(), p.labels.end(), label) != p.labels.end();
      const std::string line =
          fmt::format("{} {:<32}{:>6.1f} %", given ? "*" : " ", name(label), 100 * probability(p, label));
      fmt::print("  {}\n", given ? paint_.good(line) : line);
    }
    for (const IntentSpan& s : p.spans)
      if (!p.out_of_scope) fmt::print("  {}\n", filled(say_.said_by, name(s.label), piece_of(text, s.span)));
    for (const Explanation& e : why) print(text, e);
  }

  template <class... Parts>
  static std::string filled(const char* sentence, const Parts&... parts) {
    return fmt::format(fmt::runtime(sentence), parts...);
  }

  const Request& request_;
  const PredictWords& say_;
  Session session_;
  Recognizer model_;
  Paint paint_ = Paint::for_stdout();
};

int predict(const Request& r) {
  const Ranks ranks("predict", r.ranks, Order::one_rank);
  require(
      ranks.world().ranks() == 1 || (!r.texts.empty() && !r.explain), ErrorKind::unsupported, "predict",
      "over ranks it reads no lines and explains nothing; give the texts as arguments, without --explain");
  require(r.label.empty() || r.explain, ErrorKind::bad_argument, "predict",
          "--label says which label to explain; give --explain too");
  Answers answers(r, ranks);
  if (!r.texts.empty()) {
    answers.answer(r.texts);
    return kDone;
  }
  if (isatty(STDIN_FILENO) != 0) fmt::print(stderr, "{}", predict_words(surface_language(r.language)).lines);
  for (std::string line; std::getline(std::cin, line);) answers.answer(std::span(&line, 1));
  return kDone;
}

}  // namespace

void add_predict(CLI::App& app, int& exit_code) {
  CLI::App* word =
      app.add_subcommand("predict", "The intents of texts, and the words and heads that decided");
  word->footer(
      "Example: headwise predict model \"how much to close my loan early?\" --explain\n"
      "         headwise predict model --json < texts.txt\n"
      "Without a text it reads lines; a star marks the intents that are given.");
  const auto r = std::make_shared<Request>();
  word->add_option("model", r->model, "Folder that headwise train wrote")->required();
  word->add_option("texts", r->texts, "Texts; none: lines of the standard input");
  word->add_option("--top", r->top, "Likeliest labels to show beside the given ones")
      ->check(size_check())
      ->capture_default_str();
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  add_device_options(*word, r->device);
  word->add_flag("--explain", r->explain,
                 "What speaks for each label: words and heads, in log-odds; below 0 against it");
  word->add_option("--abstain", r->abstain, "Claims nothing below this confidence")
      ->check(CLI::Range(0.0, 0.999999));
  word->add_option("--label", r->label,
                   "With --explain: this label instead, given or not: why it was missed, and what it needed");
  word->add_flag("--json", r->json, "One JSON object a line");
  add_language_option(*word, r->language);
  add_tensor_option(*word, r->ranks);
  add_context_option(*word, r->ranks);
  add_order_option(*word, r->ranks);
  word->callback([r, &exit_code] { exit_code = predict(*r); });
}

}  // namespace headwise::cli
