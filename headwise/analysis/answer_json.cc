#include "headwise/analysis/answer_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "headwise/base/words.h"
#include "headwise/model/json_reader.h"
#include "headwise/text/unicode.h"

namespace headwise {
namespace {

template <class T>
std::string number(T x) {  // the shortest text that reads back as x
  char digits[40];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, x).ptr);
}

std::string said(std::string_view bytes) {
  std::string valid;
  for (Index at = 0; at < static_cast<Index>(bytes.size());) {
    const CodePoint c = decode_utf8(bytes, at);
    append_utf8(valid, c.value);
    at = c.end;
  }
  return json_string(valid);
}

std::string_view part_of(std::string_view text, const TextSpan& span) {
  return text.substr(static_cast<std::size_t>(span.begin), static_cast<std::size_t>(span.end - span.begin));
}

std::string place(const TextSpan& span) {
  return headwise::text("\"begin\":", span.begin, ",\"end\":", span.end);
}

/// [f(0),f(1),...].
template <class F>
std::string list(std::size_t count, F&& f) {
  std::string out = "[";
  for (std::size_t i = 0; i < count; ++i) out += (i == 0 ? "" : ",") + f(i);
  return out + "]";
}

std::string explanation_json(const RecognizerConfig& c, std::string_view said_text, const Explanation& e) {
  const std::vector<WordWeight> words = words_of(e);
  std::vector<Index> heads(e.head_importance.size());
  std::iota(heads.begin(), heads.end(), Index{0});
  const auto weight = [&](Index n) { return e.head_importance[static_cast<std::size_t>(n)]; };
  std::stable_sort(heads.begin(), heads.end(),
                   [&](Index a, Index b) { return std::abs(weight(a)) > std::abs(weight(b)); });
  std::string out =
      text("{\"label\":", said(c.labels[static_cast<std::size_t>(e.label)]),
           ",\"given\":", e.given ? "true" : "false", ",\"probability\":", number(e.probability),
           ",\"needed\":", number(e.needed), ",\"lacks\":", number(e.lacks()));
  if (e.rival >= 0) out += text(",\"rival\":", said(c.labels[static_cast<std::size_t>(e.rival)]));
  out += text(",\"words\":", list(words.size(), [&](std::size_t i) {
                const WordWeight& w = words[i];
                return text("{\"text\":", said(part_of(said_text, w.span)), ",", place(w.span),
                            ",\"importance\":", number(w.importance),
                            w.frees ? ",\"given_without\":true}" : "}");
              }));
  out += text(",\"heads\":", list(heads.size(), [&](std::size_t i) {
                return text("{\"layer\":", heads[i] / e.heads, ",\"head\":", heads[i] % e.heads,
                            ",\"importance\":", number(weight(heads[i])), "}");
              }));
  return out + "}";
}

}  // namespace

std::vector<Index> likeliest(const Prediction& p, Index top) {
  std::vector<Index> order(p.probability.size());
  std::iota(order.begin(), order.end(), Index{0});
  const auto of = [&](Index l) { return p.probability[static_cast<std::size_t>(l)]; };
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return of(a) > of(b); });
  order.resize(std::min(order.size(), std::max(static_cast<std::size_t>(max_of(0, top)), p.labels.size())));
  return order;
}

std::string answer_json(const RecognizerConfig& c, std::string_view said_text, const Prediction& p, Index top,
                        std::span<const Explanation> explanations) {
  const auto name = [&](Index l) { return said(c.labels[static_cast<std::size_t>(l)]); };
  std::string out =
      text("{\"text\":", said(said_text),
           ",\"labels\":", list(p.labels.size(), [&](std::size_t i) { return name(p.labels[i]); }),
           ",\"confidence\":", number(p.confidence), ",\"out_of_scope\":", p.out_of_scope ? "true" : "false");
  if (!p.spans.empty())
    out += text(",\"spans\":", list(p.spans.size(), [&](std::size_t i) {
                  const IntentSpan& s = p.spans[i];
                  return text("{\"label\":", name(s.label), ",\"said_by\":", said(part_of(said_text, s.span)),
                              ",", place(s.span), ",\"probability\":", number(s.probability), "}");
                }));
  const std::vector<Index> best = likeliest(p, top);
  if (!best.empty())
    out += text(",\"likeliest\":", list(best.size(), [&](std::size_t i) {
                  return text("{\"label\":", name(best[i]),
                              ",\"probability\":", number(p.probability[static_cast<std::size_t>(best[i])]),
                              "}");
                }));
  if (!explanations.empty())
    out += text(",\"explanations\":", list(explanations.size(), [&](std::size_t i) {
                  return explanation_json(c, said_text, explanations[i]);
                }));
  return out + "}";
}

std::vector<Explanation> explain_labels(const Recognizer& r, const std::string& said_text,
                                        const Prediction& p, const std::string& label, Session& session) {
  std::vector<Explanation> all;
  const auto add = [&](Index l) { all.push_back(explain_text(r, said_text, session, {.label = l})); };
  if (!label.empty()) return add(label_named(r.config(), label, "explain")), std::move(all);
  for (const Index l : p.labels) add(l);
  if (p.labels.empty()) add(-1);
  return all;
}

Index label_named(const RecognizerConfig& c, const std::string& name, std::string_view op) {
  const auto at = std::find(c.labels.begin(), c.labels.end(), name);
  if (at != c.labels.end()) return at - c.labels.begin();
  std::string near;
  for (const std::string& label : c.labels)
    if (near.empty() && (label.find(name) != label.npos || name.find(label) != name.npos)) near = label;
  throw Error(ErrorKind::bad_argument, text(op, ": there is no label ", quoted(name), " among the ",
                                            c.labels.size(), " of the model; give one of labels.txt",
                                            near.empty() ? std::string() : text(", as ", quoted(near))));
}

}  // namespace headwise
