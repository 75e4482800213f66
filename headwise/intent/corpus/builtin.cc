#include "headwise/intent/corpus/builtin.h"

#include <algorithm>
#include <unordered_set>

#include "headwise/base/error.h"
#include "headwise/base/random.h"
#include "headwise/intent/corpus/report.h"

namespace headwise {
namespace {

/// Numbers of one utterance, from its own counters: what is drawn for one does not move the next.
class Draw {
 public:
  Draw(std::uint64_t seed, std::uint32_t split, Index attempt)
      : seed_(seed),
        counter_{0, split, static_cast<std::uint32_t>(attempt), static_cast<std::uint32_t>(attempt >> 32)} {}
  std::uint32_t word() {
    if (next_ == 4) {
      block_ = Philox::block(seed_, counter_);
      ++counter_[0];
      next_ = 0;
    }
    return block_[next_++];
  }
  /// 0 .. n - 1, by the high half of a product: even to one part in 2^32 / n.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(std::uint64_t{word()} * n >> 32); }
  bool chance(double p) { return double(word()) < p * 4294967296.0; }
  template <class T>
  const T& of(const std::vector<T>& list) {
    return list[below(list.size())];
  }

 private:
  std::uint64_t seed_;
  Philox::Block counter_, block_{};
  std::size_t next_ = 4;
};

class Generator {
 public:
  Generator(const BuiltinOptions& options, const Grammar& grammar) : options_(options), grammar_(grammar) {}

  Corpus corpus(std::string name, std::uint32_t split, Index rows, bool held_out) {
    Corpus out;
    out.name = std::move(name);
    Index attempt = 0;
    for (Index i = 0; i < rows; ++i) {
      // How many intents is decided by row: texts of one intent repeat more often, and must not be rarer for
      // it.
      const std::size_t intents = wanted(Draw(options_.seed, split + kSplits, i));
      Utterance row;
      int tries = 0;
      do {
        require(tries++ < kTries, ErrorKind::bad_argument, "builtin_corpus", "the grammar gives ", i,
                " different utterances for ", out.name, ", not the ", rows,
                " asked for; ask for fewer, or for more with several intents");
        Draw draw(options_.seed, split, attempt++);
        row = utterance(draw, intents, held_out);
      } while (!seen_.insert(text_key(row.text)).second);
      row.line = i + 1;
      out.rows.push_back(std::move(row));
    }
    return out;
  }

 private:
  static constexpr std::uint32_t kSplits = 16;  // streams of numbers: one a split, and one for its sizes
  static constexpr int kTries = 2000;  // in a row without a text that was not there: the grammar's end

  std::size_t wanted(Draw draw) const {
    const double share = double(draw.word()) / 4294967296.0;
    return share < options_.three ? 3 : share < options_.three + options_.two ? 2 : 1;
  }
  static const std::vector<std::string>& kind(const Templates& t, bool held_out) {
    return held_out ? t.test : t.train;
  }
  Utterance utterance(Draw& draw, std::size_t intents, bool held_out) {
    const std::string& language = draw.of(options_.languages);
    const GrammarLanguage& words = grammar_.languages.at(language);
    std::vector<const GrammarIntent*> chosen;
    while (chosen.size() < intents) {
      const GrammarIntent& next = draw.of(grammar_.intents);
      if (next.languages.contains(language) &&
          std::none_of(chosen.begin(), chosen.end(), [&](const auto* c) { return c->group == next.group; }))
        chosen.push_back(&next);
    }
    Utterance row;
    for (const GrammarIntent* intent : chosen) {
      const std::string clause = fill(draw.of(kind(intent->languages.at(language), held_out)), words, draw);
      row.labels.push_back(intent->name);
      row.text = row.text.empty() ? clause : join(draw.of(kind(words.joins, held_out)), row.text, clause);
    }
    if (!words.openings.empty() && draw.chance(0.2)) {
      const std::string& opening = draw.of(words.openings);
      row.text = opening + (static_cast<unsigned char>(opening.back()) < 0x80 ? " " : "") + row.text;
    }
    // People write both.
    if (row.text[0] >= 'a' && row.text[0] <= 'z' && draw.chance(0.7))
      row.text[0] = static_cast<char>(row.text[0] - 32);
    return row;
  }
  static std::string fill(const std::string& shape, const GrammarLanguage& words, Draw& draw) {
    std::string out;
    for (std::size_t at = 0; at < shape.size();) {
      const std::size_t open = std::min(shape.find('{', at), shape.size());
      out.append(shape, at, open - at);
      if (open == shape.size()) break;
      const std::size_t close = shape.find('}', open);
      out += draw.of(words.slots.at(shape.substr(open + 1, close - open - 1)));
      at = close + 1;
    }
    return out;
  }
  /// The question mark of a clause falls away where the sentence goes on.
  static std::string join(const std::string& shape, std::string first, const std::string& second) {
    for (const std::string_view mark : {"?", "？"})
      if (first.ends_with(mark)) first.resize(first.size() - mark.size());
    std::string out = shape;
    // {b} first: what is put in for {a} may hold no braces, but need not be searched.
    out.replace(out.find("{b}"), 3, second);
    out.replace(out.find("{a}"), 3, first);
    return out;
  }

  const BuiltinOptions& options_;
  const Grammar& grammar_;
  std::unordered_set<std::string> seen_;  // keys of texts, over all splits
};

}  // namespace

BuiltinCorpus builtin_corpus(const BuiltinOptions& options, const Grammar& grammar) {
  const auto check = [](bool ok, const auto&... parts) {
    require(ok, ErrorKind::bad_argument, "builtin_corpus", parts...);
  };
  check(!options.languages.empty(), "got no language; the grammar has en and zh");
  check(options.two >= 0 && options.three >= 0 && options.two + options.three <= 1, "two is ", options.two,
        " and three ", options.three, "; they are shares, from 0 to 1 together");
  check(options.train >= 0 && options.dev >= 0 && options.test >= 0, "got a negative number of utterances");
  for (const std::string& language : options.languages) {
    const auto at = grammar.languages.find(language);
    check(at != grammar.languages.end(), "the grammar has no language \"", language, "\"");
    std::unordered_set<std::string> groups;
    for (const GrammarIntent& i : grammar.intents)
      if (i.languages.contains(language)) groups.insert(i.group);
    const Templates& joins = at->second.joins;
    const bool compound = options.two + options.three > 0;
    check(
        !groups.empty() && (!compound || (groups.size() >= 3 && !joins.train.empty() && !joins.test.empty())),
        "language ", language, " has ", groups.size(), " groups of intents, ", joins.train.size(),
        " joins and ", joins.test.size(), " held-out joins; compound utterances need 3, 1 and 1");
  }
  Generator generator(options, grammar);
  BuiltinCorpus out;
  out.train = generator.corpus("built-in train", 0, options.train, false);
  out.dev = generator.corpus("built-in dev", 1, options.dev, false);
  out.test = generator.corpus("built-in test", 2, options.test, true);
  return out;
}

}  // namespace headwise
