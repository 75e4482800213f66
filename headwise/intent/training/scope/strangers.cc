#include "headwise/intent/training/scope/strangers.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "headwise/base/words.h"
#include "headwise/intent/corpus/builtin.h"
#include "headwise/model/json_reader.h"
#include "headwise/text/word_breaks.h"

namespace headwise {
namespace {

constexpr const char* kOp = "train";

constexpr Index kLeastRows = 100;  // to learn from; of fewer a third would be strangers' alone
constexpr Index kMostLearnt = 300, kJudged = 60;
constexpr Index kCommon = 50;  // a word of more than one row in so many says nothing about a subject

std::set<std::string> words_of(std::string_view text) {
  std::set<std::string> words;
  const std::vector<Index> breaks = word_breaks(text);
  for (std::size_t i = 0; i < breaks.size(); ++i) {
    const std::size_t begin = static_cast<std::size_t>(breaks[i]);
    const std::size_t end = i + 1 < breaks.size() ? static_cast<std::size_t>(breaks[i + 1]) : text.size();
    std::string word = lowered(text.substr(begin, end - begin));
    const auto tells = [](char c) { return c < 0 || ('a' <= c && c <= 'z') || ('0' <= c && c <= '9'); };
    if (std::any_of(word.begin(), word.end(), tells)) words.insert(std::move(word));
  }
  return words;
}

bool has_label(const Corpus& corpus, const std::string& label) {
  return std::any_of(corpus.rows.begin(), corpus.rows.end(), [&](const Utterance& row) {
    return std::find(row.labels.begin(), row.labels.end(), label) != row.labels.end();
  });
}

/// In how many rows each word stands.
class Seen {
 public:
  explicit Seen(const Corpus& corpus) : rows_(static_cast<Index>(corpus.rows.size())) {
    for (const Utterance& row : corpus.rows)
      for (const std::string& word : words_of(row.text)) ++count_[word];
  }
  /// Most words that tell subjects apart are unknown: what greets is no stranger to data with greetings.
  bool knows(std::string_view text) const {
    Index told = 0, known = 0;
    for (const std::string& word : words_of(text)) {
      const auto at = count_.find(word);
      const Index times = at == count_.end() ? 0 : at->second;
      if (times * kCommon > rows_) continue;
      ++told, known += times > 0;
    }
    return 2 * known >= told;
  }

 private:
  Index rows_;
  std::unordered_map<std::string, Index> count_;
};

bool is_chinese(std::string_view text) {  // a lead byte of U+4000 to U+9FFF
  return std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0xe4 && static_cast<unsigned char>(c) <= 0xe9;
  });
}

/// Those of the grammar that one row in ten is written in.
std::vector<std::string> languages_of(const Corpus& corpus) {
  const Index chinese = std::count_if(corpus.rows.begin(), corpus.rows.end(),
                                      [](const Utterance& row) { return is_chinese(row.text); });
  const auto rows = static_cast<Index>(corpus.rows.size());
  std::vector<std::string> languages;
  if (10 * (rows - chinese) >= rows) languages.push_back("en");
  if (10 * chinese >= rows) languages.push_back("zh");
  return languages;
}

/// Adds the rows of `drawn` that have another subject than the data; returns how many.
Index add_unknown(const Seen& seen, const Corpus& drawn, const std::string& label, Corpus& to) {
  Index added = 0;
  for (const Utterance& row : drawn.rows) {
    if (seen.knows(row.text)) continue;
    to.rows.push_back(row);
    to.rows.back().labels = {label};
    ++added;
  }
  return added;
}

/// Some row says what is unknown: by its label, or by having none where every text has one.
bool says_unknown(const Corpus& c, const TrainingOptions& o) {
  const bool several =
      std::any_of(c.rows.begin(), c.rows.end(), [](const Utterance& row) { return row.labels.size() > 1; });
  return has_label(c, o.out_of_scope) ||
         (!several &&
          std::any_of(c.rows.begin(), c.rows.end(), [](const Utterance& row) { return row.labels.empty(); }));
}

bool wanted(const Corpus& train, const Corpus& dev, bool cuts, const TrainingOptions& o) {
  const bool automatic = o.strangers == "auto";
  require(automatic || o.strangers == "none" || o.strangers == "built-in", ErrorKind::bad_argument, kOp,
          "strangers are ", quoted(o.strangers), "; give auto, none or built-in");
  require(o.strangers != "built-in" || !cuts, ErrorKind::unsupported, kOp,
          "strangers are built-in and texts are cut, where a class of its own knows what is no intent; leave "
          "out one");
  if (!automatic) return o.strangers == "built-in";
  return !cuts && o.may_lose > 0 && o.may_lose * static_cast<double>(dev.rows.size()) < 1 &&
         static_cast<Index>(train.rows.size()) >= kLeastRows && !says_unknown(train, o) &&
         !says_unknown(dev, o);
}

}  // namespace

void add_strangers(Corpus& train, Corpus& dev, bool cuts, TrainingOptions& o) {
  if (!wanted(train, dev, cuts, o)) return;
  const Index learnt = std::clamp(static_cast<Index>(train.rows.size()) / 2, kJudged, kMostLearnt);
  const BuiltinCorpus drawn = builtin_corpus({.languages = languages_of(train),
                                              .train = learnt,
                                              .dev = 0,
                                              .test = kJudged,
                                              .two = 0,
                                              .three = 0,
                                              .seed = o.seed},
                                             everyday_grammar());
  const Seen seen(train);
  const Index learns = add_unknown(seen, drawn.train, o.out_of_scope, train),
              judges = add_unknown(seen, drawn.test, o.out_of_scope, dev);
  o.learn_out_of_scope = true;
  o.about_scope = text(learns,
                       " everyday texts, such as greetings and questions about the weather, were learnt "
                       "as texts of no label, and ",
                       judges, " others stand in ", dev.name, ".");
}

}  // namespace headwise
