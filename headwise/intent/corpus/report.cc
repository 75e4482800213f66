#include "headwise/intent/corpus/report.h"

#include <algorithm>
#include <iomanip>
#include <set>
#include <unordered_map>

#include "headwise/base/error.h"
#include "headwise/base/words.h"
#include "headwise/model/json_reader.h"
#include "headwise/text/unicode.h"
#include "headwise/text/words.h"

namespace headwise {
namespace {

using KeyOf = std::string (*)(std::string_view);

std::unordered_map<std::string, Index> first_rows(const Corpus& corpus, KeyOf key) {
  std::unordered_map<std::string, Index> out;
  for (std::size_t i = 0; i < corpus.rows.size(); ++i)
    out.try_emplace(key(corpus.rows[i].text), static_cast<Index>(i));
  return out;
}

const Utterance& row_of(const Corpus& corpus, Index i) { return corpus.rows[static_cast<std::size_t>(i)]; }

std::set<std::string> label_set(const Utterance& row) { return {row.labels.begin(), row.labels.end()}; }

std::string percent(Index part, Index whole) {
  return whole ? text(std::fixed, std::setprecision(1), 100.0 * double(part) / double(whole), " %") : "0 %";
}

}  // namespace

namespace {

std::string key_of(std::string_view text, bool punctuation) {
  std::string out;
  std::u32string lower;
  bool space = false;
  for (Index at = 0; at < static_cast<Index>(text.size());) {
    const CodePoint c = decode_utf8(text, at);
    at = c.end;
    if (is_white_space(c.value)) {
      space = true;
      continue;
    }
    if (!punctuation && is_punctuation(c.value)) continue;
    if (space && !out.empty()) out += ' ';
    space = false;
    lower.clear();
    append_lower_case(lower, c.value);
    for (const char32_t p : lower) append_utf8(out, p);
  }
  return out;
}

}  // namespace

std::string text_key(std::string_view text) { return key_of(text, true); }

std::string word_key(std::string_view text) {
  const std::string words = key_of(text, false);
  return words.empty() ? text_key(text) : words;
}

bool CorpusReport::multi_label() const {
  return std::any_of(rows_by_labels.begin(), rows_by_labels.end(),
                     [](const auto& r) { return r.first != 1; });
}

namespace {

std::string label_list(const Utterance& row) {
  std::string all;
  for (const std::string& label : row.labels) all += text(all.empty() ? "" : ", ", label);
  return all.empty() ? "no label" : all;
}

/// The first label that falls into others of the corpus at a mark people write between labels.
void find_joined_labels(CorpusReport& report) {
  for (const char mark : {'|', ';', ',', '/', '+'})
    for (const auto& [label, rows] : report.labels) {
      bool all = label.find(mark) != label.npos;
      std::string_view rest = label;
      for (bool more = all; all && more;) {
        const std::size_t end = rest.find(mark);
        more = end != rest.npos;
        all = report.labels.contains(std::string(trimmed(rest.substr(0, end), " ")));
        rest.remove_prefix(more ? end + 1 : rest.size());
      }
      if (!all) continue;
      report.joined = label, report.separator = mark;
      return;
    }
}

/// A label that no other row has, behind a few words, in the first line of a file of many.
bool looks_like_header(const CorpusReport& report, const Corpus& corpus) {
  constexpr Index kRows = 10, kWords = 3;
  if (report.rows < kRows || corpus.rows[0].line != 1 || corpus.rows[0].labels.size() != 1) return false;
  Index words = 0;
  split_words(corpus.rows[0].text, {}, [&](const Word&) { ++words; });
  return report.labels.at(corpus.rows[0].labels[0]) == 1 && words <= kWords;
}

}  // namespace

CorpusReport examine(const Corpus& corpus) {
  CorpusReport report;
  report.rows = static_cast<Index>(corpus.rows.size());
  const std::unordered_map<std::string, Index> first = first_rows(corpus, text_key),
                                               alike = first_rows(corpus, word_key);
  Index words = 0;
  for (Index i = 0; i < report.rows; ++i) {
    const Utterance& row = row_of(corpus, i);
    for (const std::string& label : row.labels) ++report.labels[label];
    ++report.rows_by_labels[static_cast<Index>(row.labels.size())];
    const Index same = first.at(text_key(row.text));
    const Index earlier = same != i ? same : alike.at(word_key(row.text));
    if (earlier != i) {
      (same != i ? report.duplicates : report.near).push_back({earlier, i});
      if (label_set(row_of(corpus, earlier)) != label_set(row)) report.conflicts.push_back({earlier, i});
    }
    Index here = 0;
    split_words(row.text, {}, [&](const Word&) { ++here; });
    words += here;
    report.most_words = std::max(report.most_words, here);
  }
  find_joined_labels(report);
  report.header = looks_like_header(report, corpus);
  report.mean_words = report.rows ? double(words) / double(report.rows) : 0;
  return report;
}

std::string CorpusReport::print(const Corpus& corpus, Index most) const {
  std::string out = text(corpus.name, ": ", rows, " utterances, ", labels.size(), " labels, ", std::fixed,
                         std::setprecision(1), mean_words, " words in the mean, ", most_words, " at most\n");
  if (!labels.empty()) {
    const auto by_count = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto few = std::min_element(labels.begin(), labels.end(), by_count);
    const auto many = std::max_element(labels.begin(), labels.end(), by_count);
    out += text("  rarest label ", few->first, " (", few->second, "), most frequent ", many->first, " (",
                many->second, ", ", percent(many->second, rows), " of the utterances)\n");
  }
  for (const auto& [count, of] : rows_by_labels)
    out += text("  ", count, count == 1 ? " label: " : " labels: ", of, " utterances\n");
  if (!joined.empty())
    out +=
        text("  labels such as ", headwise::quoted(joined), " look like several in one; if they are, give ",
             "--label-separator ", headwise::quoted(std::string(1, separator)), '\n');
  if (header)
    out += text("  line 1 looks like a header; if it is, give --text-column ",
                headwise::quoted(corpus.rows[0].text), " --label-column ",
                headwise::quoted(corpus.rows[0].labels[0]), '\n');
  const auto list = [&](std::string_view what, const std::vector<SameText>& pairs, bool labels_too) {
    if (pairs.empty()) return;
    out += text("  ", pairs.size(), ' ', what, '\n');
    for (std::size_t i = 0; i < pairs.size() && static_cast<Index>(i) < most; ++i)
      out += text("    lines ", row_of(corpus, pairs[i].first).line, " and ",
                  row_of(corpus, pairs[i].second).line, ": ",
                  headwise::quoted(row_of(corpus, pairs[i].second).text),
                  labels_too ? text(": ", label_list(row_of(corpus, pairs[i].first)), " and ",
                                    label_list(row_of(corpus, pairs[i].second)))
                             : "",
                  '\n');
  };
  list("texts that stand there before", duplicates, false);
  list("texts that differ from one before in punctuation alone", near, false);
  list("of these with other labels than before", conflicts, true);
  return out;
}

SplitReport compare_splits(const Corpus& train, const Corpus& test, const std::string& out_of_scope) {
  SplitReport report;
  const std::unordered_map<std::string, Index> first = first_rows(train, text_key),
                                               alike = first_rows(train, word_key);
  std::set<std::string> seen = {out_of_scope};
  for (const Utterance& row : train.rows) seen.insert(row.labels.begin(), row.labels.end());
  for (std::size_t i = 0; i < test.rows.size(); ++i) {
    if (const auto at = first.find(text_key(test.rows[i].text)); at != first.end())
      report.leaks.push_back({at->second, static_cast<Index>(i)});
    else if (const auto near = alike.find(word_key(test.rows[i].text)); near != alike.end())
      report.near.push_back({near->second, static_cast<Index>(i)});
    for (const std::string& label : test.rows[i].labels)
      if (!seen.contains(label)) ++report.unseen[label];
  }
  return report;
}

std::string SplitReport::print(const Corpus& train, const Corpus& test, Index most) const {
  const auto rows = static_cast<Index>(test.rows.size());
  std::string out =
      text(leaks.size(), " of ", rows, " texts of ", test.name, " (",
           percent(static_cast<Index>(leaks.size()), rows), ") stand in ", train.name, " too\n");
  const auto list = [&](const std::vector<SameText>& pairs) {
    for (std::size_t i = 0; i < pairs.size() && static_cast<Index>(i) < most; ++i)
      out += text("    line ", row_of(test, pairs[i].second).line, ", there line ",
                  row_of(train, pairs[i].first).line, ": ",
                  headwise::quoted(row_of(test, pairs[i].second).text), '\n');
  };
  list(leaks);
  if (!near.empty()) out += text("  ", near.size(), " more differ from one there in punctuation alone\n");
  list(near);
  for (const auto& [label, count] : unseen)
    out += text("  label ", headwise::quoted(label), " is never shown in training; ", count,
                " test utterances have it\n");
  return out;
}

void require_trainable(const Corpus& train) {
  const CorpusReport report = examine(train);
  const auto classes = static_cast<Index>(report.labels.size());
  require(classes > 0, ErrorKind::bad_argument, "corpus", train.name,
          ": none of its utterances has a label; label some");
  const bool all = report.labels.begin()->second == report.rows;
  require(classes > 1 || !all, ErrorKind::bad_argument, "corpus", train.name, ": all ", report.rows,
          " utterances have the label ", headwise::quoted(report.labels.begin()->first),
          "; there is nothing to tell apart, give a second class");
}

void require_seen_labels(const Corpus& train, const Corpus& test, const std::string& out_of_scope) {
  const SplitReport report = compare_splits(train, test, out_of_scope);
  std::string names;
  Index named = 0;
  for (const auto& [label, count] : report.unseen)
    if (named++ < 3) names += (names.empty() ? "" : ", ") + headwise::quoted(label);
  if (named > 3) names += text(" and ", named - 3, " more");
  require(report.unseen.empty(), ErrorKind::bad_argument, "corpus", test.name, ": has labels that ",
          train.name, " never shows: ", names, "; train with them or leave them out");
}

}  // namespace headwise
