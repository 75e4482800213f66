#include "headwise/text/train_wordpiece.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <unordered_map>

#include "headwise/base/error.h"

namespace headwise {
namespace {

constexpr std::string_view kInside = "##";

struct CountedWord {
  std::vector<std::uint32_t> pieces;
  Index count = 0;
};

/// A pair that was seen `count` times when it was put in the queue; it may have changed since.
struct Candidate {
  Index count = 0;
  std::uint64_t pair = 0;
  bool operator<(const Candidate& o) const { return count != o.count ? count < o.count : pair > o.pair; }
};

class Trainer {
 public:
  Trainer(const WordPieceTraining& training, std::vector<std::string> special)
      : training_(training), pieces_(std::move(special)) {
    for (std::size_t i = 0; i < pieces_.size(); ++i) id_of_[pieces_[i]] = static_cast<std::uint32_t>(i);
  }

  void add_words(const std::map<std::string, Index>& words) {
    const std::set<std::string> kept = alphabet(words);
    // Ids follow the order of bytes: what begins words first, then what goes on.
    std::set<std::string> begin, inside;
    std::vector<std::pair<std::vector<std::string>, Index>> cut;
    for (const auto& [word, count] : words) {
      std::vector<std::string> chars = characters(word);
      if (!std::all_of(chars.begin(), chars.end(), [&](const std::string& c) { return kept.contains(c); }))
        continue;
      for (std::size_t i = 1; i < chars.size(); ++i) inside.insert(chars[i].insert(0, kInside));
      begin.insert(chars[0]);
      cut.emplace_back(std::move(chars), count);
    }
    for (const std::string& c : begin) piece(c);
    for (const std::string& c : inside) piece(c);
    for (const auto& [chars, count] : cut) {
      CountedWord word;
      word.count = count;
      for (const std::string& c : chars) word.pieces.push_back(piece(c));
      words_.push_back(std::move(word));
    }
    for (std::size_t w = 0; w < words_.size(); ++w)
      for (std::size_t i = 0; i + 1 < words_[w].pieces.size(); ++i) change(w, i, words_[w].count);
    for (const std::uint64_t pair : changed_) queue_.push({counts_[pair], pair});
    changed_.clear();
  }

  void merge_all() {
    while (!queue_.empty() && static_cast<Index>(pieces_.size()) < training_.pieces) {
      const Candidate best = queue_.top();
      queue_.pop();
      if (best.count != counts_[best.pair]) continue;  // an older count; the present one is in the queue too
      if (best.count < training_.least_count) break;
      merge(best.pair);
    }
  }
  std::vector<std::string> take() { return std::move(pieces_); }

 private:
  static std::vector<std::string> characters(const std::string& word) {
    std::vector<std::string> out;
    for (const char c : word) {
      if ((static_cast<unsigned char>(c) & 0xc0u) != 0x80u) out.emplace_back();
      out.back() += c;
    }
    return out;
  }
  std::set<std::string> alphabet(const std::map<std::string, Index>& words) const {
    std::map<std::string, Index> counts;
    for (const auto& [word, count] : words)
      for (const std::string& c : characters(word)) counts[c] += count;
    std::vector<std::pair<std::string, Index>> ranked(counts.begin(), counts.end());
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    if (static_cast<Index>(ranked.size()) > training_.alphabet)
      ranked.resize(static_cast<std::size_t>(training_.alphabet));
    std::set<std::string> out;
    for (auto& [c, count] : ranked) out.insert(c);
    return out;
  }
  std::uint32_t piece(const std::string& text) {
    const auto [at, added] = id_of_.try_emplace(text, static_cast<std::uint32_t>(pieces_.size()));
    if (added) pieces_.push_back(text);
    return at->second;
  }
  static std::uint64_t pair_of(std::uint32_t left, std::uint32_t right) {
    return std::uint64_t{left} << 32 | right;
  }
  void change(std::size_t word, std::size_t at, Index by) {
    const std::vector<std::uint32_t>& p = words_[word].pieces;
    const std::uint64_t pair = pair_of(p[at], p[at + 1]);
    counts_[pair] += by;
    if (by > 0) where_[pair].push_back(word);
    changed_.insert(pair);
  }
  void merge(std::uint64_t pair) {
    const auto left = static_cast<std::uint32_t>(pair >> 32), right = static_cast<std::uint32_t>(pair);
    const std::uint32_t joined = piece(pieces_[left] + pieces_[right].substr(kInside.size()));
    std::vector<std::size_t> words = std::move(where_[pair]);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    for (const std::size_t w : words) {
      std::vector<std::uint32_t>& p = words_[w].pieces;
      const Index count = words_[w].count;
      for (std::size_t i = 0; i + 1 < p.size(); ++i) {
        if (p[i] != left || p[i + 1] != right) continue;
        for (std::size_t j = i > 0 ? i - 1 : 0; j <= i + 1 && j + 1 < p.size(); ++j) change(w, j, -count);
        p[i] = joined;
        p.erase(p.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        for (std::size_t j = i > 0 ? i - 1 : 0; j <= i && j + 1 < p.size(); ++j) change(w, j, count);
      }
    }
    for (const std::uint64_t c : changed_) queue_.push({counts_[c], c});
    changed_.clear();
  }

  const WordPieceTraining& training_;
  std::vector<std::string> pieces_;
  std::unordered_map<std::string, std::uint32_t> id_of_;
  std::vector<CountedWord> words_;
  std::unordered_map<std::uint64_t, Index> counts_;
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> where_;
  std::set<std::uint64_t> changed_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

Vocabulary train_wordpiece(std::span<const std::string_view> texts, const WordPieceTraining& training) {
  const auto specials = static_cast<Index>(training.special.size());
  require(training.pieces > specials && training.alphabet > 0, ErrorKind::bad_argument, "train_wordpiece",
          "pieces is ", training.pieces, " and alphabet ", training.alphabet, "; at least ", specials + 1,
          " and 1 are needed");
  std::map<std::string, Index> words;
  for (const std::string_view text : texts)
    split_words(text, training.words, [&](const Word& word) {
      if (word.chars <= training.words.word_chars) ++words[word.text];
    });
  require(!words.empty(), ErrorKind::bad_argument, "train_wordpiece", "the ", texts.size(),
          " texts hold no word; give some that do");
  Trainer trainer(training, training.special);
  trainer.add_words(words);
  trainer.merge_all();
  std::vector<std::string> pieces = trainer.take();
  require(static_cast<Index>(pieces.size()) <= training.pieces, ErrorKind::bad_argument, "train_wordpiece",
          "special pieces and alphabet alone are ", pieces.size(), " pieces; raise pieces (", training.pieces,
          ") or lower alphabet (", training.alphabet, ")");
  return Vocabulary(std::move(pieces), "train_wordpiece");
}

}  // namespace headwise
