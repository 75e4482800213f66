#include "headwise/text/vocabulary.h"

#include <bit>

#include "headwise/base/error.h"
#include "headwise/model/file.h"
#include "headwise/text/unicode.h"

namespace headwise {
namespace {

std::size_t place_of(std::uint32_t node, unsigned char byte) {
  const std::uint64_t key = (std::uint64_t{node} << 8 | byte) * 0x9E3779B97F4A7C15ull;
  return static_cast<std::size_t>(key >> 20);
}

bool is_utf8(std::string_view text) {
  for (Index at = 0; at < static_cast<Index>(text.size());) {
    const CodePoint c = decode_utf8(text, at);
    if (!c.valid) return false;
    at = c.end;
  }
  return true;
}

}  // namespace

Vocabulary::Vocabulary(std::vector<std::string> pieces, std::string_view op, const VocabularyLimits& limits)
    : pieces_(std::move(pieces)) {
  const auto check = [&](bool ok, const auto&... parts) {
    require(ok, ErrorKind::bad_argument, op, parts...);
  };
  check(!pieces_.empty(), "holds no piece; give one a line");
  check(size() <= limits.pieces, "holds ", size(), " pieces; at most ", limits.pieces, " are read");
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const std::string& p = pieces_[i];
    check(!p.empty(), "piece ", i, " (line ", i + 1, ") is empty; each line holds one piece");
    check(static_cast<Index>(p.size()) <= limits.piece_bytes, "piece ", i, " (line ", i + 1, ") has ",
          p.size(), " bytes; at most ", limits.piece_bytes, " are read");
    check(is_utf8(p), "piece ", i, " (line ", i + 1, ") is no UTF-8 text; convert the file");
    check(p.find_first_of(std::string_view("\n\0", 2)) == std::string::npos, "piece ", i, " (line ", i + 1,
          ") holds a line feed or a NUL; no piece may");
    bytes += p.size();
  }
  edges_.resize(std::bit_ceil(bytes * 2 + 2));
  ids_.assign(1, -1);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    std::uint32_t node = 0;
    for (const char c : pieces_[i]) node = grow(node, static_cast<unsigned char>(c));
    check(ids_[node] < 0, "piece ", i, " (line ", i + 1, ") is the same as piece ", ids_[node],
          "; keep one of them");
    ids_[node] = static_cast<TokenId>(i);
  }
}

Vocabulary Vocabulary::read(const std::string& path, const VocabularyLimits& limits) {
  const std::string all = read_text(path, limits.file_bytes, "vocabulary");
  std::vector<std::string> pieces;
  for (std::size_t at = 0; at < all.size();) {
    std::size_t end = all.find('\n', at);
    if (end == std::string::npos) end = all.size();
    std::string_view line = std::string_view(all).substr(at, end - at);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    pieces.emplace_back(line);
    at = end + 1;
  }
  return Vocabulary(std::move(pieces), "vocabulary: " + path, limits);
}

void Vocabulary::save(const std::string& path) const {
  Replacement file(path, "vocabulary");
  std::string all;
  for (const std::string& p : pieces_) all.append(p) += '\n';
  file.file().write(all);
  file.commit();
}

const std::string& Vocabulary::piece(TokenId id) const {
  require(id >= 0 && id < size(), ErrorKind::bad_argument, "vocabulary", "got id ", id, "; ids go from 0 to ",
          size() - 1);
  return pieces_[static_cast<std::size_t>(id)];
}

std::uint32_t Vocabulary::child(std::uint32_t node, unsigned char byte) const {
  const std::size_t mask = edges_.size() - 1;
  for (std::size_t at = place_of(node, byte) & mask;; at = (at + 1) & mask) {
    const Edge& e = edges_[at];
    if (e.to == 0 || (e.from == node && e.byte == byte)) return e.to;
  }
}

std::uint32_t Vocabulary::grow(std::uint32_t node, unsigned char byte) {
  const std::size_t mask = edges_.size() - 1;
  std::size_t at = place_of(node, byte) & mask;
  while (edges_[at].to != 0 && (edges_[at].from != node || edges_[at].byte != byte)) at = (at + 1) & mask;
  if (edges_[at].to == 0) {
    edges_[at] = {node, byte, static_cast<std::uint32_t>(ids_.size())};
    ids_.push_back(-1);
  }
  return edges_[at].to;
}

TokenId Vocabulary::find(std::string_view piece) const {
  std::uint32_t node = 0;
  for (const char c : piece) {
    node = child(node, static_cast<unsigned char>(c));
    if (node == 0) return -1;
  }
  return ids_[node];
}

Vocabulary::Match Vocabulary::longest(std::string_view front, std::string_view rest) const {
  Match best;
  std::uint32_t node = 0;
  for (const char c : front) {
    node = child(node, static_cast<unsigned char>(c));
    if (node == 0) return best;
  }
  for (std::size_t i = 0; i < rest.size(); ++i) {
    node = child(node, static_cast<unsigned char>(rest[i]));
    if (node == 0) break;
    if (ids_[node] >= 0) best = {ids_[node], static_cast<Index>(i) + 1};
  }
  return best;
}

}  // namespace headwise
