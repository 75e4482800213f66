#include "headwise/server/model/intent_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "headwise/analysis/explain.h"
#include "headwise/server/http/http_response.h"

namespace headwise::server {
namespace {

std::string number(double value) { return json_number(static_cast<float>(value)); }

/// "labels": [...], "confidence": ..., "out_of_scope": ..., "top": [...].
std::string prediction_fields(const Prediction& p, const std::vector<std::string>& names, Index top) {
  const auto name = [&](Index label) { return page_string(names[static_cast<std::size_t>(label)]); };
  std::string out = "\"labels\": [";
  for (std::size_t i = 0; i < p.labels.size(); ++i) out += (i == 0 ? "" : ", ") + name(p.labels[i]);
  out += "], \"confidence\": " + number(p.confidence) +
         ", \"out_of_scope\": " + (p.out_of_scope ? "true" : "false");
  if (!p.spans.empty()) {  // of recognisers that cut: which bytes of the text said each intent
    out += ", \"spans\": [";
    for (std::size_t i = 0; i < p.spans.size(); ++i)
      out += (i == 0 ? "" : ", ") + text("{\"label\": ", name(p.spans[i].label),
                                         ", \"begin\": ", p.spans[i].span.begin,
                                         ", \"end\": ", p.spans[i].span.end,
                                         ", \"probability\": ", json_number(p.spans[i].probability), "}");
    out += "]";
  }
  std::vector<Index> order(p.probability.size());
  std::iota(order.begin(), order.end(), Index{0});
  const auto of = [&](Index label) { return p.probability[static_cast<std::size_t>(label)]; };
  const auto n = std::min(order.size(), static_cast<std::size_t>(top));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n), order.end(),
                    [&](Index a, Index b) { return of(a) != of(b) ? of(a) > of(b) : a < b; });
  out += ", \"top\": [";
  for (std::size_t i = 0; i < n; ++i)
    out += std::string(i == 0 ? "" : ", ") + "{\"label\": " + name(order[i]) +
           ", \"probability\": " + json_number(of(order[i])) + "}";
  return out + "]";
}

std::string explanation_json(const Explanation& e, const std::vector<std::string>& names, Index top) {
  std::string out = "{" + prediction_fields(e.prediction, names, top) +
                    ", \"explained\": " + page_string(names[static_cast<std::size_t>(e.label)]) +
                    ", \"given\": " + (e.given ? "true" : "false") +
                    ", \"probability\": " + number(e.probability) + ", \"needed\": " + number(e.needed) +
                    ", \"lacks\": " + number(e.lacks()) + ", \"words\": [";
  const std::vector<WordWeight> words = words_of(e);
  for (std::size_t i = 0; i < words.size(); ++i)
    out += (i == 0 ? "" : ", ") + text("{\"begin\": ", words[i].span.begin, ", \"end\": ", words[i].span.end,
                                       ", \"importance\": ", number(words[i].importance), "}");
  out += "], \"tokens\": [";
  for (std::size_t i = 0; i < e.tokens.size(); ++i) {
    const ExplainedToken& t = e.tokens[i];
    out += (i == 0 ? "" : ", ") + text("{\"piece\": ", page_string(t.piece), ", \"begin\": ", t.span.begin,
                                       ", \"end\": ", t.span.end, ", \"importance\": ", number(t.importance),
                                       "}");
  }
  out += "], \"heads\": [";
  for (Index layer = 0; layer < e.layers; ++layer) {
    out += layer == 0 ? "[" : ", [";
    for (Index h = 0; h < e.heads; ++h) out += (h == 0 ? "" : ", ") + number(e.head(layer, h));
    out += "]";
  }
  return out + "]}";
}

/// Members of GET /v1/labels.
std::string about_json(const RecognizerConfig& c) {
  std::string out = "\"labels\": [";
  for (std::size_t i = 0; i < c.labels.size(); ++i) out += (i == 0 ? "" : ", ") + page_string(c.labels[i]);
  return out + "], \"multi_label\": " + (c.multi_label ? "true" : "false") +
         ", \"threshold\": " + number(c.threshold) + ", \"out_of_scope\": " + number(c.out_of_scope);
}

/// What the batcher's thread runs with.
struct Runner {
  std::shared_ptr<const Recognizer> recognizer;
  Session session;
  Index top;
};

}  // namespace

Served serve_recognizer(std::shared_ptr<const Recognizer> recognizer, const IntentModelOptions& options) {
  const auto runner = std::make_shared<Runner>(
      Runner{std::move(recognizer), Session({.threads = options.threads}), options.top});
  Served served;
  served.name = options.name;
  served.tokens = [runner](std::string_view s) {
    return static_cast<Index>(runner->recognizer->encode(s).ids.size());
  };
  served.intents = [runner](std::span<const std::string> texts) {
    std::vector<std::string> answers;
    for (const Prediction& p : runner->recognizer->predict(texts, runner->session))
      answers.push_back("{" + prediction_fields(p, runner->recognizer->config().labels, runner->top) + "}");
    return answers;
  };
  served.explain = [runner](const std::string& s, const std::atomic<bool>& stop) {
    return explanation_json(explain_text(*runner->recognizer, s, runner->session, {.stop = &stop}),
                            runner->recognizer->config().labels, runner->top);
  };
  served.about = about_json(runner->recognizer->config());
  return served;
}

}  // namespace headwise::server
