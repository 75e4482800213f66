#include "headwise/text/pieces/byte_bpe.h"

#include "headwise/model/json_reader.h"
#include "headwise/text/pieces/merge_pairs.h"
#include "headwise/text/unicode.h"

namespace headwise {
namespace {

constexpr std::uint64_t pair_key(TokenId left, TokenId right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

/// GPT-2 prints bytes as characters: most of Latin-1 as itself, the rest from U+0100 on. -1: no such one.
int byte_of(char32_t c) {
  const auto itself = [](char32_t b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 255 && b != 173); };
  if (c < 256) return itself(c) ? static_cast<int>(c) : -1;
  int n = 0;
  for (int b = 0; b < 256; ++b)
    if (!itself(static_cast<char32_t>(b)) && 256 + n++ == static_cast<int>(c)) return b;
  return -1;
}

class ByteReader {
 public:
  ByteReader() {
    for (char32_t c = 0; c < kMost; ++c) byte_[c] = byte_of(c);
  }
  /// False: the piece holds a character that stands for no byte.
  bool read(std::string_view piece, std::string& out) const {
    out.clear();
    for (Index at = 0; at < static_cast<Index>(piece.size());) {
      const CodePoint c = decode_utf8(piece, at);
      if (!c.valid || c.value >= kMost || byte_[c.value] < 0) return false;
      out += static_cast<char>(byte_[c.value]);
      at = c.end;
    }
    return true;
  }

 private:
  static constexpr char32_t kMost = 0x180;
  std::array<int, kMost> byte_ = {};
};

}  // namespace

ByteBpe::ByteBpe(const ByteBpeParts& parts, std::string_view where)
    : pattern_(parts.pattern), whole_words_(parts.whole_words) {
  const auto size = static_cast<TokenId>(parts.pieces.size());
  const auto known = [&](TokenId id) { return id >= 0 && id < size; };
  bytes_.resize(parts.pieces.size());
  byte_ids_.fill(-1);
  std::vector<bool> is_added(parts.pieces.size(), false);
  std::vector<Added> added;
  for (const ByteBpeParts::AddedToken& a : parts.added) {
    require(known(a.id), ErrorKind::bad_argument, where, "the special token ", quoted(a.text), " has the id ",
            a.id, "; there are ", size, " tokens");
    is_added[static_cast<std::size_t>(a.id)] = true;
    if (!a.special) bytes_[static_cast<std::size_t>(a.id)] = a.text;
    added.push_back({a.text, a.id, a.special});
  }
  set_added(std::move(added));
  const ByteReader reader;
  std::string piece;
  for (std::size_t i = 0; i < parts.pieces.size(); ++i) {
    if (is_added[i]) continue;
    const bool good = reader.read(parts.pieces[i], piece) && !piece.empty();
    require(good, ErrorKind::bad_argument, where, "token ", i, " is ", quoted(parts.pieces[i]),
            "; a piece is written in GPT-2's printable bytes");
    const auto id = static_cast<TokenId>(i);
    require(ids_.emplace(piece, id).second, ErrorKind::bad_argument, where, "token ", i, ", ",
            quoted(parts.pieces[i]), ", stands there twice");
    if (piece.size() == 1) byte_ids_[static_cast<unsigned char>(piece[0])] = id;
    bytes_[i] = piece;
  }
  std::string left, right;
  for (std::size_t rank = 0; rank < parts.merges.size(); ++rank) {
    const auto& [a, b] = parts.merges[rank];
    const bool good = reader.read(a, left) && reader.read(b, right);
    const auto l = ids_.find(left), r = ids_.find(right), both = ids_.find(left + right);
    require(good && l != ids_.end() && r != ids_.end() && both != ids_.end(), ErrorKind::bad_argument, where,
            "merge ", rank, " joins ", quoted(a), " and ", quoted(b),
            "; both and what they make must be tokens");
    merges_.emplace(pair_key(l->second, r->second),
                    static_cast<std::int64_t>(rank) << 32 | static_cast<std::uint32_t>(both->second));
  }
  for (const TokenId id : parts.ends)
    require(known(id), ErrorKind::bad_argument, where, "an end token has the id ", id, "; there are ", size,
            " tokens");
  require(parts.begin < size && (parts.begin >= 0 || !parts.add_begin), ErrorKind::bad_argument, where,
          "the first token has the id ", parts.begin, "; there are ", size, " tokens");
  ends_ = parts.ends;
  begin_ = parts.begin, add_begin_ = parts.add_begin;
}

std::string_view ByteBpe::bytes(TokenId id) const {
  require(id >= 0 && id < static_cast<TokenId>(bytes_.size()), ErrorKind::bad_argument, "tokenizer",
          "got token ", id, "; there are ", size());
  return bytes_[static_cast<std::size_t>(id)];
}

void ByteBpe::encode_word(std::string_view word, std::vector<TokenId>& out) const {
  if (whole_words_)
    if (const auto at = ids_.find(std::string(word)); at != ids_.end()) return out.push_back(at->second);
  std::vector<TokenId> symbols;
  for (const char c : word)
    if (const TokenId id = byte_ids_[static_cast<unsigned char>(c)]; id >= 0) symbols.push_back(id);
  merge_pairs(symbols, [&](TokenId left, TokenId right) {
    const auto at = merges_.find(pair_key(left, right));
    if (at == merges_.end()) return PairMerge{};
    return PairMerge{at->second >> 32, static_cast<TokenId>(at->second & 0xffffffff)};
  });
  out.insert(out.end(), symbols.begin(), symbols.end());
}

void ByteBpe::encode_plain(std::string_view text, bool, std::vector<TokenId>& out) const {
  std::string changed;
  if (pattern_ == WordPattern::qwen2) changed = composed(text), text = changed;
  for (const std::string_view word : pattern_words(pattern_, text)) encode_word(word, out);
}

}  // namespace headwise
