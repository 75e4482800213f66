#include "headwise/intent/training/evaluation.h"

#include <algorithm>
#include <charconv>
#include <iomanip>
#include <set>
#include <unordered_map>

#include "headwise/base/words.h"
#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

constexpr const char* kOp = "evaluation";

std::string percent(double x) { return text(std::fixed, std::setprecision(2), 100 * x); }
std::string of(const Share& s) { return text(percent(s.value()), " % (", s.part, " of ", s.whole, ")"); }
std::string number(double x) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, x).ptr);
}

std::vector<Index> wanted_of(const Utterance& row, const std::unordered_map<std::string, Index>& numbers,
                             const Corpus& corpus) {
  std::vector<Index> wanted;
  for (const std::string& label : row.labels) {
    const auto at = numbers.find(label);
    require(at != numbers.end(), ErrorKind::bad_argument, kOp, corpus.name, ", line ", row.line,
            ": the model never learnt the label ", quoted(label), "; train with it or leave the row out");
    wanted.push_back(at->second);
  }
  std::sort(wanted.begin(), wanted.end());
  return wanted;
}

std::vector<std::string> names(const RecognizerConfig& c, const std::vector<Index>& labels) {
  std::vector<std::string> out;
  for (const Index l : labels) out.push_back(c.labels[static_cast<std::size_t>(l)]);
  return out;
}

std::string json_list(const std::vector<std::string>& words) {
  std::string s = "[";
  for (const std::string& w : words) s += text(s.size() > 1 ? ", " : "", json_string(w));
  return s + "]";
}
std::string json(const Share& s) {
  return text("{\"value\": ", number(s.value()), ", \"part\": ", s.part, ", \"whole\": ", s.whole, "}");
}

}  // namespace

bool is_out_of_scope(const Utterance& row, bool multi_label, const std::string& out_of_scope) {
  if (row.labels.empty()) return !multi_label;
  return row.labels.size() == 1 && row.labels[0] == out_of_scope;
}

Evaluation evaluate(const Recognizer& model, const Corpus& corpus, Session& session,
                    const EvaluationOptions& options) {
  std::vector<std::string> texts;
  for (const Utterance& row : corpus.rows) texts.push_back(row.text);
  const std::vector<Prediction> given = model.predict(texts, session);
  return evaluate(model.config(), corpus, given, options);
}

Evaluation evaluate(const RecognizerConfig& config, const Corpus& corpus, std::span<const Prediction> given,
                    const EvaluationOptions& options) {
  require(given.size() == corpus.rows.size() && !given.empty(), ErrorKind::bad_argument, kOp, "got ",
          given.size(), " predictions for ", corpus.rows.size(), " rows of ", corpus.name,
          "; give one for each of one row or more");
  std::unordered_map<std::string, Index> numbers;
  Evaluation e;
  e.name = corpus.name;
  for (const std::string& label : config.labels) {
    numbers.emplace(label, static_cast<Index>(e.labels.size()));
    e.labels.push_back({.label = label});
  }
  const bool learnt = numbers.contains(options.out_of_scope);  // then it is a label as any other
  std::map<std::pair<Index, Index>, Index> confused;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Utterance& row = corpus.rows[i];
    const Prediction& p = given[i];
    if (!learnt && is_out_of_scope(row, config.multi_label, options.out_of_scope)) {
      ++e.scope_recall.whole, e.scope_recall.part += p.out_of_scope;
      e.scope_precision.whole += p.out_of_scope, e.scope_precision.part += p.out_of_scope;
      continue;
    }
    e.scope_precision.whole += p.out_of_scope;
    const std::vector<Index> wanted = wanted_of(row, numbers, corpus);
    std::vector<Index> got = p.labels;
    std::sort(got.begin(), got.end());
    const bool right = got == wanted;
    ++e.exact.whole, e.exact.part += right;
    Share& by = e.by_intents[static_cast<Index>(wanted.size())];
    ++by.whole, by.part += right;
    if (!wanted.empty()) {
      const Index best = std::max_element(p.probability.begin(), p.probability.end()) - p.probability.begin();
      ++e.top.whole, e.top.part += std::binary_search(wanted.begin(), wanted.end(), best);
    }
    for (const Index l : wanted) {
      LabelFigures& f = e.labels[static_cast<std::size_t>(l)];
      ++f.wanted, f.both += std::binary_search(got.begin(), got.end(), l);
    }
    for (const Index l : got) ++e.labels[static_cast<std::size_t>(l)].given;
    if (wanted.size() == 1 && got.size() == 1 && !right) ++confused[{wanted[0], got[0]}];
    if (!right)
      e.bad_cases.push_back(
          {static_cast<Index>(i), row.text, names(config, wanted), names(config, p.labels), p.confidence});
  }
  LabelFigures all;
  Index shown = 0;
  for (const LabelFigures& f : e.labels) {
    all.wanted += f.wanted, all.given += f.given, all.both += f.both;
    if (f.wanted > 0) e.macro_f1 += f.f1(), ++shown;
  }
  e.micro_f1 = all.f1();
  if (shown) e.macro_f1 /= static_cast<double>(shown);
  for (const auto& [pair, rows] : confused)
    e.confusions.push_back({config.labels[static_cast<std::size_t>(pair.first)],
                            config.labels[static_cast<std::size_t>(pair.second)], rows});
  std::stable_sort(e.confusions.begin(), e.confusions.end(),
                   [](const Confusion& a, const Confusion& b) { return a.rows > b.rows; });
  std::stable_sort(e.bad_cases.begin(), e.bad_cases.end(),
                   [](const BadCase& a, const BadCase& b) { return a.confidence > b.confidence; });
  const auto cut = [](auto& list, Index most) {
    if (static_cast<Index>(list.size()) > most) list.resize(static_cast<std::size_t>(most));
  };
  cut(e.confusions, options.confusions);
  cut(e.bad_cases, options.bad_cases);
  return e;
}

std::string Evaluation::print() const {
  // Of one label a text, exact match, best label and micro F1 are one figure: the accuracy.
  const bool one = by_intents.size() == 1 && by_intents.begin()->first == 1;
  std::string s = text(name, one ? "\n  accuracy      " : "\n  exact match   ", of(exact), '\n');
  if (by_intents.size() > 1)
    for (const auto& [count, share] : by_intents)
      s += text("    ", count, count == 1 ? " intent    " : " intents   ", of(share), '\n');
  if (one && top.part != exact.part) s += text("    unrefused   ", of(top), '\n');
  if (!one) s += text("  best label    ", of(top), "\n  micro F1      ", percent(micro_f1), '\n');
  s += text("  macro F1      ", percent(macro_f1), '\n');
  if (scope_recall.whole > 0) s += text("  out of scope  ", of(scope_recall), " caught\n");
  if (scope_precision.whole > 0 && scope_recall.whole > 0)
    s += text("                ", of(scope_precision), " of the refused texts are out of scope\n");
  if (scope_precision.whole > 0 && scope_recall.whole == 0)
    s += text("  refused       ", of({scope_precision.whole, exact.whole}), " as out of scope\n");
  for (std::size_t i = 0; i < confusions.size() && i < 5; ++i)
    s +=
        text("  ", confusions[i].rows, " x ", confusions[i].wanted, " taken for ", confusions[i].given, '\n');
  return s;
}

std::string Evaluation::json() const {
  std::string s = text("{\n  \"name\": ", json_string(name), ",\n  \"exact\": ", headwise::json(exact),
                       ",\n  \"best_label\": ", headwise::json(top), ",\n  \"by_intents\": {");
  bool first = true;
  for (const auto& [count, share] : by_intents) {
    s += text(first ? "" : ", ", '"', count, "\": ", headwise::json(share));
    first = false;
  }
  s += text("},\n  \"micro_f1\": ", number(micro_f1), ",\n  \"macro_f1\": ", number(macro_f1),
            ",\n  \"out_of_scope_recall\": ", headwise::json(scope_recall),
            ",\n  \"out_of_scope_precision\": ", headwise::json(scope_precision), ",\n  \"labels\": [");
  first = true;
  for (const LabelFigures& f : labels) {
    s += text(first ? "\n" : ",\n", "    {\"label\": ", json_string(f.label), ", \"wanted\": ", f.wanted,
              ", \"given\": ", f.given, ", \"both\": ", f.both, ", \"f1\": ", number(f.f1()), "}");
    first = false;
  }
  s += "],\n  \"confusions\": [";
  first = true;
  for (const Confusion& c : confusions) {
    s += text(first ? "\n" : ",\n", "    {\"wanted\": ", json_string(c.wanted),
              ", \"given\": ", json_string(c.given), ", \"rows\": ", c.rows, "}");
    first = false;
  }
  s += "],\n  \"bad_cases\": [";
  first = true;
  for (const BadCase& b : bad_cases) {
    s += text(first ? "\n" : ",\n", "    {\"row\": ", b.row, ", \"text\": ", json_string(b.text),
              ", \"wanted\": ", json_list(b.wanted), ", \"given\": ", json_list(b.given),
              ", \"confidence\": ", number(b.confidence), "}");
    first = false;
  }
  return s + "]\n}\n";
}

}  // namespace headwise
