#include "headwise/text/pieces/char_bpe.h"

#include "headwise/model/json_reader.h"
#include "headwise/text/pieces/merge_pairs.h"
#include "headwise/text/unicode.h"

namespace headwise {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581

constexpr std::uint64_t pair_key(TokenId left, TokenId right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (std::size_t at = 0;;) {
    const std::size_t next = text.find(from, at);
    out += text.substr(at, next - at);
    if (next == std::string_view::npos) return out;
    out += to;
    at = next + from.size();
  }
}

std::string byte_piece(int b) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[static_cast<std::size_t>(b / 16)] +
         kDigits[static_cast<std::size_t>(b % 16)] + ">";
}

}  // namespace

CharBpe::CharBpe(const CharBpeParts& parts, std::string_view where)
    : space_(parts.space),
      words_(parts.words),
      whole_words_(parts.whole_words),
      fuse_unknown_(parts.fuse_unknown),
      unknown_(parts.unknown) {
  const auto size = static_cast<TokenId>(parts.pieces.size());
  const auto known = [&](TokenId id) { return id >= 0 && id < size; };
  for (TokenId id = 0; id < size; ++id) {
    const std::string& piece = parts.pieces[static_cast<std::size_t>(id)];
    bytes_.push_back(replaced(piece, kSpace, " "));
    if (!piece.empty())
      require(ids_.emplace(piece, id).second, ErrorKind::bad_argument, where, "token ", id, ", ",
              quoted(piece), ", stands there twice");
  }
  byte_ids_.fill(-1);
  for (int b = 0; parts.bytes && b < 256; ++b) {
    const TokenId id = find(byte_piece(b));
    require(id >= 0, ErrorKind::bad_argument, where, "byte_fallback needs the piece ", byte_piece(b),
            "; the vocabulary has none");
    byte_ids_[static_cast<std::size_t>(b)] = id;
    bytes_[static_cast<std::size_t>(id)] = std::string(1, static_cast<char>(b));
  }
  std::vector<Added> added;
  for (const CharBpeParts::AddedToken& a : parts.added) {
    require(known(a.id), ErrorKind::bad_argument, where, "the special token ", quoted(a.text), " has the id ",
            a.id, "; there are ", size, " tokens");
    if (a.special) bytes_[static_cast<std::size_t>(a.id)].clear();
    added.push_back({a.text, a.id, a.special});
  }
  set_added(std::move(added));
  for (std::size_t rank = 0; rank < parts.merges.size(); ++rank) {
    const auto& [a, b] = parts.merges[rank];
    const TokenId left = find(a), right = find(b), both = find(a + b);
    require(left >= 0 && right >= 0 && both >= 0, ErrorKind::bad_argument, where, "merge ", rank, " joins ",
            quoted(a), " and ", quoted(b), "; both and what they make must be tokens");
    merges_.insert_or_assign(pair_key(left, right),
                             static_cast<std::int64_t>(rank) << 32 | static_cast<std::uint32_t>(both));
  }
  for (const TokenId id : parts.ends)
    require(known(id), ErrorKind::bad_argument, where, "an end token has the id ", id, "; there are ", size,
            " tokens");
  require(parts.begin < size && (parts.begin >= 0 || !parts.add_begin) && unknown_ < size,
          ErrorKind::bad_argument, where, "the first token has the id ", parts.begin, " and the unknown one ",
          unknown_, "; there are ", size, " tokens");
  begin_ = parts.begin, add_begin_ = parts.add_begin, ends_ = parts.ends, space_before_ = parts.strip;
}

TokenId CharBpe::find(std::string_view piece) const {
  const auto at = ids_.find(std::string(piece));
  return at == ids_.end() ? -1 : at->second;
}

std::string_view CharBpe::bytes(TokenId id) const {
  require(id >= 0 && id < static_cast<TokenId>(bytes_.size()), ErrorKind::bad_argument, "tokenizer",
          "got token ", id, "; there are ", size());
  return bytes_[static_cast<std::size_t>(id)];
}

void CharBpe::encode_plain(std::string_view text, bool first, std::vector<TokenId>& out) const {
  std::string given = replaced(text, " ", kSpace);
  const bool wanted =
      space_.where == SpaceRule::Where::every || (space_.where == SpaceRule::Where::first && first);
  if (wanted && !(space_.unless_there && given.starts_with(kSpace))) given.insert(0, kSpace);
  if (!words_) return encode_word(given, out);
  // A word begins at every space.
  for (std::size_t at = 0; at < given.size();) {
    std::size_t end = given.find(kSpace, at + 1);
    if (end == std::string::npos) end = given.size();
    encode_word(std::string_view(given).substr(at, end - at), out);
    at = end;
  }
}

void CharBpe::encode_word(std::string_view word, std::vector<TokenId>& out) const {
  if (whole_words_)
    if (const TokenId id = find(word); id >= 0) return out.push_back(id);
  std::vector<TokenId> symbols;
  bool unknown_before = false;
  for (Index at = 0; at < static_cast<Index>(word.size());) {
    const CodePoint c = decode_utf8(word, at);
    const std::string_view letter =
        word.substr(static_cast<std::size_t>(at), static_cast<std::size_t>(c.end - at));
    at = c.end;
    const TokenId id = find(letter);
    if (id >= 0) {
      symbols.push_back(id);
    } else if (byte_ids_[0] >= 0) {
      for (const char b : letter) symbols.push_back(byte_ids_[static_cast<unsigned char>(b)]);
    } else if (unknown_ >= 0 && !(fuse_unknown_ && unknown_before)) {
      symbols.push_back(unknown_);
    }
    unknown_before = id < 0 && byte_ids_[0] < 0;
  }
  merge_pairs(symbols, [&](TokenId left, TokenId right) {
    const auto at = merges_.find(pair_key(left, right));
    if (at == merges_.end()) return PairMerge{};
    return PairMerge{at->second >> 32, static_cast<TokenId>(at->second & 0xffffffff)};
  });
  out.insert(out.end(), symbols.begin(), symbols.end());
}

}  // namespace headwise
