#include "headwise/text/bpe.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "headwise/model/file.h"
#include "headwise/text/bpe_words.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "bpe", kFirst = "headwise-bpe 1\n";
constexpr std::size_t kLongestToken = std::size_t{64} << 10;
constexpr Index kMostTokens = 1'000'000;

constexpr std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}
constexpr std::int32_t left_of(std::uint64_t key) { return static_cast<std::int32_t>(key >> 32); }
constexpr std::int32_t right_of(std::uint64_t key) { return static_cast<std::int32_t>(key & 0xffffffffu); }

/// The counts of pairs in a set of words, kept up to date while they are merged.
class PairCounts {
 public:
  explicit PairCounts(std::string_view text) {
    std::map<std::string_view, Index> seen;
    for_each_word(text, [&](std::string_view w) { ++seen[w]; });
    for (const auto& [word, count] : seen) {
      words_.emplace_back();
      for (const char c : word) words_.back().push_back(static_cast<unsigned char>(c));
      times_.push_back(count);
    }
    for (std::size_t w = 0; w < words_.size(); ++w) change(w, +1);
    for (const auto& [key, pair] : pairs_) heap_.emplace(pair.count, ~key);
  }

  /// The pair seen most often, the smaller one of equals; false when none is seen twice.
  bool most(std::uint64_t& key) {
    while (!heap_.empty()) {
      const auto [count, inverse] = heap_.top();
      key = ~inverse;
      const auto at = pairs_.find(key);
      if (at != pairs_.end() && at->second.count == count) return count >= 2;
      heap_.pop();  // an older count of it
    }
    return false;
  }

  void merge(std::uint64_t key, std::int32_t token) {
    std::vector<std::size_t> where = std::move(pairs_[key].words);
    std::sort(where.begin(), where.end());
    where.erase(std::unique(where.begin(), where.end()), where.end());
    touched_.clear();
    for (const std::size_t w : where) {
      std::vector<std::int32_t>& word = words_[w];
      change(w, -1);
      std::size_t to = 0;
      for (std::size_t i = 0; i < word.size(); ++i, ++to) {
        const bool here = i + 1 < word.size() && pair_key(word[i], word[i + 1]) == key;
        word[to] = here ? token : word[i];
        i += here;
      }
      word.resize(to);
      change(w, +1);
    }
    for (const std::uint64_t k : touched_)
      if (const auto at = pairs_.find(k); at != pairs_.end() && at->second.count > 0)
        heap_.emplace(at->second.count, ~k);
    pairs_.erase(key);
  }

 private:
  struct Pair {
    Index count = 0;
    std::vector<std::size_t> words;  // that have or had it
  };
  void change(std::size_t w, Index sign) {
    for (std::size_t i = 0; i + 1 < words_[w].size(); ++i) {
      const std::uint64_t key = pair_key(words_[w][i], words_[w][i + 1]);
      Pair& p = pairs_[key];
      p.count += sign * times_[w];
      if (sign > 0 && (p.words.empty() || p.words.back() != w)) p.words.push_back(w);
      touched_.push_back(key);
    }
  }

  std::vector<std::vector<std::int32_t>> words_;
  std::vector<Index> times_;
  std::unordered_map<std::uint64_t, Pair> pairs_;
  std::priority_queue<std::pair<Index, std::uint64_t>>
      heap_;  // (count, ~key): the smaller key of equals on top
  std::vector<std::uint64_t> touched_;
};

}  // namespace

struct Bpe::Pairs {
  std::unordered_map<std::uint64_t, std::int32_t> token;  // left << 32 | right -> token
};

Bpe::Bpe() : merged_(std::make_shared<Pairs>()) {
  for (int b = 0; b < 256; ++b) tokens_.emplace_back(1, static_cast<char>(b));
}

void Bpe::add(std::int32_t left, std::int32_t right) {
  merged_->token.emplace(pair_key(left, right), static_cast<std::int32_t>(tokens_.size()));
  tokens_.push_back(tokens_[static_cast<std::size_t>(left)] + tokens_[static_cast<std::size_t>(right)]);
  merges_.push_back({left, right});
}

Bpe Bpe::train(std::string_view text, Index vocabulary) {
  require(vocabulary >= 256 && vocabulary <= kMostTokens, ErrorKind::bad_argument, kOp, "the vocabulary is ",
          vocabulary, "; give 256 (the bytes) to ", kMostTokens);
  Bpe bpe;
  PairCounts pairs(text);
  std::uint64_t key = 0;
  while (bpe.vocabulary() < vocabulary && pairs.most(key)) {
    const std::size_t bytes = bpe.bytes(left_of(key)).size() + bpe.bytes(right_of(key)).size();
    if (bytes > kLongestToken) break;
    bpe.add(left_of(key), right_of(key));
    pairs.merge(key, static_cast<std::int32_t>(bpe.vocabulary() - 1));
  }
  return bpe;
}

/// Merges in the order they were learnt, the leftmost first: a list of neighbours and a heap, n log n for any
/// word.
void Bpe::encode_word(std::string_view word, std::vector<std::int32_t>& out) const {
  const std::size_t n = word.size();
  std::vector<std::int32_t> token(n);
  std::vector<std::size_t> before(n), after(n);
  for (std::size_t i = 0; i < n; ++i)
    token[i] = static_cast<unsigned char>(word[i]), before[i] = i - 1, after[i] = i + 1;
  using Entry =
      std::tuple<std::int32_t, std::size_t, std::uint64_t>;  // merged token, place of the left one, pair
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap;
  const auto offer = [&](std::size_t left) {
    if (left >= n || after[left] >= n) return;
    const std::uint64_t key = pair_key(token[left], token[after[left]]);
    if (const auto at = merged_->token.find(key); at != merged_->token.end())
      heap.emplace(at->second, left, key);
  };
  for (std::size_t i = 0; i + 1 < n; ++i) offer(i);
  while (!heap.empty()) {
    const auto [made, left, key] = heap.top();
    heap.pop();
    if (token[left] < 0 || after[left] >= n || pair_key(token[left], token[after[left]]) != key) continue;
    const std::size_t right = after[left];
    token[left] = made, token[right] = -1;
    after[left] = after[right];
    if (after[right] < n) before[after[right]] = left;
    offer(before[left]);
    offer(left);
  }
  for (const std::int32_t t : token)
    if (t >= 0) out.push_back(t);
}

std::vector<std::int32_t> Bpe::encode(std::string_view text) const {
  std::vector<std::int32_t> out;
  for_each_word(text, [&](std::string_view word) { encode_word(word, out); });
  return out;
}

const std::string& Bpe::bytes(std::int32_t token) const {
  require(token >= 0 && token < vocabulary(), ErrorKind::bad_argument, kOp, "got token ", token,
          "; there are ", vocabulary());
  return tokens_[static_cast<std::size_t>(token)];
}

std::string Bpe::decode(std::span<const std::int32_t> tokens) const {
  std::string out;
  for (const std::int32_t t : tokens) out += bytes(t);
  return out;
}

std::string Bpe::print() const {
  std::string out(kFirst);
  for (const auto& [left, right] : merges_) out += text(left, ' ', right, '\n');
  return out;
}

Bpe Bpe::parse(std::string_view all, std::string_view path) {
  require(all.starts_with(kFirst), ErrorKind::bad_argument, kOp, path,
          ": does not begin with \"headwise-bpe 1\"; it is no such file");
  Bpe bpe;
  Index line = 1;
  for (std::size_t at = kFirst.size(); at < all.size();) {
    ++line;
    const std::size_t end = all.find('\n', at);
    require(end != std::string_view::npos, ErrorKind::bad_argument, kOp, path, ": line ", line,
            " has no end; the file is cut short");
    const char *from = all.data() + at, *to = all.data() + end;
    std::int32_t left = -1, right = -1;
    const auto first = std::from_chars(from, to, left);
    const bool space = first.ec == std::errc() && first.ptr != to && *first.ptr == ' ';
    const auto second = space ? std::from_chars(first.ptr + 1, to, right) : first;
    require(space && second.ec == std::errc() && second.ptr == to, ErrorKind::bad_argument, kOp, path,
            ": line ", line, " is no merge; it has two tokens and a space between them");
    const Index known = bpe.vocabulary();
    require(left >= 0 && right >= 0 && left < known && right < known, ErrorKind::bad_argument, kOp, path,
            ": line ", line, " merges ", left, " and ", right, "; only tokens below ", known,
            " are known there");
    require(!bpe.merged_->token.contains(pair_key(left, right)), ErrorKind::bad_argument, kOp, path,
            ": line ", line, " repeats a merge");
    require(bpe.bytes(left).size() + bpe.bytes(right).size() <= kLongestToken, ErrorKind::bad_argument, kOp,
            path, ": line ", line, " makes a token of more than ", kLongestToken, " bytes");
    require(known < kMostTokens, ErrorKind::bad_argument, kOp, path, ": has more than ", kMostTokens,
            " tokens");
    bpe.add(left, right);
    at = end + 1;
  }
  return bpe;
}

void Bpe::save(const std::string& path) const {
  Replacement file(path, kOp);
  file.file().write(print());
  file.commit();
}
Bpe Bpe::load(const std::string& path) { return parse(read_text(path, Index{32} << 20, kOp), path); }

}  // namespace headwise
