#include "headwise/text/pieces/score_bpe.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>

#include "headwise/model/file.h"
#include "headwise/model/json_reader.h"
#include "headwise/text/pieces/merge_pairs.h"
#include "headwise/text/unicode.h"

namespace headwise {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581: SentencePiece's sign for a space

/// "<0x0A>" -> 10; -1: it is no such piece.
int byte_piece(std::string_view text) {
  unsigned value = 0;
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const auto end = std::from_chars(text.data() + 3, text.data() + 5, value, 16);
  return end.ec == std::errc() && end.ptr == text.data() + 5 ? static_cast<int>(value) : -1;
}

}  // namespace

ScoreBpe::ScoreBpe(const ScoreBpeParts& parts, std::string_view where) {
  using Kind = ScoreBpeParts::Kind;
  const auto size = static_cast<TokenId>(parts.pieces.size());
  byte_ids_.fill(-1);
  bytes_.resize(parts.pieces.size());
  std::vector<Added> added;
  for (TokenId id = 0; id < size; ++id) {
    const auto at = static_cast<std::size_t>(id);
    const ScoreBpeParts::Piece& p = parts.pieces[at];
    require(!std::isnan(p.score), ErrorKind::bad_argument, where, "token ", id,
            " has no number as its score");
    if (p.kind == Kind::unknown) unknown_ = id;
    if (p.kind == Kind::own || p.kind == Kind::control)
      added.push_back({p.text, id, p.kind == Kind::control});
    if (p.kind == Kind::byte) {
      const int b = byte_piece(p.text);
      require(b >= 0, ErrorKind::bad_argument, where, "token ", id, " is ", quoted(p.text),
              "; a byte is written as <0x0A>");
      byte_ids_[static_cast<std::size_t>(b)] = id;
      bytes_[at] = std::string(1, static_cast<char>(b));
    }
    if (p.kind == Kind::own) bytes_[at] = p.text;
    if (p.kind != Kind::plain) continue;
    bytes_[at] = p.text;
    ids_.emplace(p.text, id);  // of equal pieces the first
  }
  // Ranks in place of scores: pairs compare as integers. Equal scores share one: the leftmost goes first.
  std::vector<TokenId> order(parts.pieces.size());
  std::iota(order.begin(), order.end(), 0);
  const auto score = [&](TokenId id) { return parts.pieces[static_cast<std::size_t>(id)].score; };
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return score(a) > score(b); });
  ranks_.resize(order.size());
  std::int64_t rank = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && score(order[i]) != score(order[i - 1])) rank = static_cast<std::int64_t>(i);
    ranks_[static_cast<std::size_t>(order[i])] = rank;
  }
  for (const TokenId id : parts.ends)
    require(id >= 0 && id < size, ErrorKind::bad_argument, where, "an end token has the id ", id,
            "; there are ", size, " tokens");
  require(parts.begin < size && (parts.begin >= 0 || !parts.add_begin), ErrorKind::bad_argument, where,
          "the first token has the id ", parts.begin, "; there are ", size, " tokens");
  begin_ = parts.begin, add_begin_ = parts.add_begin, ends_ = parts.ends, space_before_ = parts.space_before;
  set_added(std::move(added));
}

std::string_view ScoreBpe::bytes(TokenId id) const {
  require(id >= 0 && id < static_cast<TokenId>(bytes_.size()), ErrorKind::bad_argument, "tokenizer",
          "got token ", id, "; there are ", size());
  return bytes_[static_cast<std::size_t>(id)];
}

void ScoreBpe::encode_plain(std::string_view text, bool first, std::vector<TokenId>& out) const {
  std::string given(first && space_before_ ? " " : "");
  given += text;
  // Characters that are no piece stand as -2 - place until the pairs are joined.
  std::vector<CodePoint> points;
  std::vector<TokenId> symbols;
  for (Index at = 0; at < static_cast<Index>(given.size()); at = points.back().end) {
    points.push_back(decode_utf8(given, at));
    const CodePoint& c = points.back();
    const std::string_view letter = std::string_view(given).substr(static_cast<std::size_t>(c.begin),
                                                                   static_cast<std::size_t>(c.end - c.begin));
    const auto found = ids_.find(letter == kSpace ? std::string(" ") : std::string(letter));
    symbols.push_back(found != ids_.end() ? found->second : -1 - static_cast<TokenId>(points.size()));
  }
  merge_pairs(symbols, [&](TokenId left, TokenId right) {
    if (left < 0 || right < 0) return PairMerge{};
    const auto at =
        ids_.find(bytes_[static_cast<std::size_t>(left)] + bytes_[static_cast<std::size_t>(right)]);
    if (at == ids_.end()) return PairMerge{};
    return PairMerge{ranks_[static_cast<std::size_t>(at->second)], at->second};
  });
  for (const TokenId s : symbols) {
    if (s >= 0) {
      out.push_back(s);
      continue;
    }
    const CodePoint& c = points[static_cast<std::size_t>(-2 - s)];
    for (Index b = c.begin; b < c.end; ++b) {
      const TokenId id = byte_ids_[static_cast<unsigned char>(given[static_cast<std::size_t>(b)])];
      if (id >= 0) out.push_back(id);
      if (id < 0 && unknown_ >= 0 && b == c.begin) out.push_back(unknown_);
    }
  }
}

std::unique_ptr<Tokenizer> read_llama2c_tokenizer(const std::string& path, Index vocabulary) {
  constexpr std::string_view kOp = "tokenizer";
  const std::string file = read_text(path, Index{256} << 20, kOp);
  const std::string where = text(kOp, ": ", path);
  std::size_t at = sizeof(std::uint32_t);
  const auto take = [&](void* to, std::size_t n) {
    require(at <= file.size() && n <= file.size() - at, ErrorKind::bad_argument, where,
            "ends inside a token; ", vocabulary, " tokens are asked");
    std::memcpy(to, file.data() + at, n);
    at += n;
  };
  ScoreBpeParts parts;
  for (Index id = 0; id < vocabulary; ++id) {
    float score = 0;
    std::uint32_t bytes = 0;
    take(&score, sizeof score);
    take(&bytes, sizeof bytes);
    require(bytes <= 1024, ErrorKind::bad_argument, where, "token ", id, " has ", bytes,
            " bytes; 1024 are the most");
    ScoreBpeParts::Piece piece{std::string(bytes, '\0'), static_cast<double>(score)};
    take(piece.text.data(), bytes);
    if (id == 0) piece.kind = ScoreBpeParts::Kind::unknown;
    if (id == 1 || id == 2) piece.kind = ScoreBpeParts::Kind::control;
    if (byte_piece(piece.text) >= 0) piece.kind = ScoreBpeParts::Kind::byte;
    parts.pieces.push_back(std::move(piece));
  }
  require(at == file.size(), ErrorKind::bad_argument, where, "has ", file.size() - at, " bytes behind its ",
          vocabulary, " tokens; it belongs to another model");
  parts.ends = {1, 2};  // llama2.c ends a text at its beginning's token, too
  return std::make_unique<ScoreBpe>(parts, where);
}

}  // namespace headwise
