// headwise predict: the intents of texts, with the words and heads that carried the decision.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "headwise/analysis/explain.h"
#include "headwise/cli/args.h"

namespace headwise::cli {
namespace {

struct Request {
  std::string model;
  std::vector<std::string> texts;
  Index top = 3;
  int threads = 0;
  bool json = false, explain = false;
};

/// A word of the text: its pieces together.
struct WordWeight {
  TextSpan span;
  double importance = 0;
};

std::vector<WordWeight> words_of(const Explanation& e) {
  std::vector<WordWeight> words;
  for (const ExplainedToken& t : e.tokens) {
    if (t.word < 0) continue;  // [CLS] and [SEP]
    if (t.word == static_cast<Index>(words.size())) words.push_back({t.span, 0});
    words.back().span.end = t.span.end, words.back().importance += t.importance;
  }
  return words;
}

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
  explicit Answers(const Request& r)
      : request_(r), model_(Recognizer::load(r.model)), session_({.threads = r.threads}) {}

  void answer(std::span<const std::string> texts) {
    const std::vector<Prediction> all = model_.predict(texts, session_);
    for (std::size_t i = 0; i < texts.size(); ++i)
      request_.json ? as_json(texts[i], all[i]) : print(texts[i], all[i]);
    std::fflush(stdout);  // a program that feeds us line by line waits for this one
  }

 private:
  const std::string& name(Index label) const {
    return model_.config().labels[static_cast<std::size_t>(label)];
  }
  static double probability(const Prediction& p, Index label) {
    return static_cast<double>(p.probability[static_cast<std::size_t>(label)]);
  }

  /// What was given, and the likeliest others, at most `top` of all.
  std::vector<Index> ranked(const Prediction& p) const {
    std::vector<Index> order(p.probability.size());
    std::iota(order.begin(), order.end(), Index{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](Index a, Index b) { return probability(p, a) > probability(p, b); });
    order.resize(std::min(order.size(), std::max(static_cast<std::size_t>(request_.top), p.labels.size())));
    return order;
  }

  /// Of each label that was given; of the likeliest where none was.
  std::vector<Explanation> explanations(const std::string& text, const Prediction& p) {
    std::vector<Explanation> all;
    if (!request_.explain) return all;
    for (const Index label : p.labels) all.push_back(explain_text(model_, text, session_, {.label = label}));
    if (p.labels.empty()) all.push_back(explain_text(model_, text, session_));
    return all;
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
    fmt::print("  {}\n    said by  {}\n", name(e.label), shaded);
    std::stable_sort(words.begin(), words.end(), [](const WordWeight& a, const WordWeight& b) {
      return std::abs(a.importance) > std::abs(b.importance);
    });
    words.resize(std::min<std::size_t>(words.size(), 6));
    std::string list;
    for (const WordWeight& w : words)
      list += fmt::format("{}{} {:+.2f}", list.empty() ? "" : ", ", piece_of(text, w.span), w.importance);
    fmt::print("    words    {}\n", list);
    list.clear();
    std::vector<HeadWeight> heads = heads_of(e);
    heads.resize(std::min<std::size_t>(heads.size(), 4));
    for (const HeadWeight& h : heads)
      list +=
          fmt::format("{}layer {} head {} {:+.2f}", list.empty() ? "" : ", ", h.layer, h.head, h.importance);
    fmt::print("    heads    {}\n", list.empty() ? "this kind of head has no outputs of its own" : list);
  }

  void print(const std::string& text, const Prediction& p) {
    fmt::print("{}\n", paint_.bold(text));
    if (p.out_of_scope)
      fmt::print("  {}\n",
                 paint_.warn(fmt::format("none of its intents: the likeliest has {:.1f} %, below {:.1f} %",
                                         100 * p.confidence, 100 * model_.config().out_of_scope)));
    for (const Index label : ranked(p)) {
      const bool given = std::find(p.labels.begin(), p.labels.end(), label) != p.labels.end();
      const std::string line =
          fmt::format("{} {:<32}{:>6.1f} %", given ? "*" : " ", name(label), 100 * probability(p, label));
      fmt::print("  {}\n", given ? paint_.good(line) : line);
    }
    for (const Explanation& e : explanations(text, p)) print(text, e);
  }

  nlohmann::ordered_json facts_of(const std::string& text, const Explanation& e) const {
    nlohmann::ordered_json j = {{"label", name(e.label)},
                                {"words", nlohmann::ordered_json::array()},
                                {"heads", nlohmann::ordered_json::array()}};
    for (const WordWeight& w : words_of(e))
      j["words"].push_back({{"text", piece_of(text, w.span)},
                            {"begin", w.span.begin},
                            {"end", w.span.end},
                            {"importance", w.importance}});
    for (const HeadWeight& h : heads_of(e))
      j["heads"].push_back({{"layer", h.layer}, {"head", h.head}, {"importance", h.importance}});
    return j;
  }

  void as_json(const std::string& text, const Prediction& p) {
    nlohmann::ordered_json j;
    j["text"] = text;
    j["labels"] = nlohmann::ordered_json::array();
    for (const Index label : p.labels) j["labels"].push_back(name(label));
    j["confidence"] = p.confidence;
    j["out_of_scope"] = p.out_of_scope;
    for (const Index label : ranked(p))
      j["likeliest"].push_back({{"label", name(label)}, {"probability", probability(p, label)}});
    for (const Explanation& e : explanations(text, p)) j["explanations"].push_back(facts_of(text, e));
    // Bytes of a text that are no UTF-8 become U+FFFD: one object a line, whatever came in.
    fmt::print("{}\n", j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }

  const Request& request_;
  Recognizer model_;
  Session session_;
  Paint paint_ = Paint::for_stdout();
};

int predict(const Request& r) {
  Answers answers(r);
  if (!r.texts.empty()) {
    answers.answer(r.texts);
    return kDone;
  }
  if (isatty(STDIN_FILENO) != 0) fmt::print(stderr, "texts, one a line; Ctrl-D ends\n");
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
  word->add_flag("--explain", r->explain,
                 "What speaks for each label: words and heads, in log-odds; below 0 against it");
  word->add_flag("--json", r->json, "One JSON object a line");
  word->callback([r, &exit_code] { exit_code = predict(*r); });
}

}  // namespace headwise::cli
