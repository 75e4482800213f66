#include "headwise/intent/corpus/zip.h"

#include "headwise/base/error.h"
#include "headwise/intent/corpus/workbook.h"

namespace headwise {
namespace {

constexpr std::string_view kEnd = "PK\5\6", kEntry = "PK\1\2", kMember = "PK\3\4";
constexpr std::size_t kEndBytes = 22, kEntryBytes = 46, kMemberBytes = 30;
constexpr int kStored = 0, kDeflated = 8;

}  // namespace

void ZipFile::refuse_damaged() const {
  throw Error(ErrorKind::bad_argument,
              text("corpus: ", name_, ": is cut short or damaged zip; fetch it again"));
}

std::string_view ZipFile::piece(std::size_t at, std::size_t count) const {
  if (at > bytes_.size() || count > bytes_.size() - at) refuse_damaged();
  return bytes_.substr(at, count);
}

std::size_t ZipFile::number(std::size_t at, int bytes) const {
  const std::string_view from = piece(at, static_cast<std::size_t>(bytes));
  std::size_t out = 0;
  for (int i = bytes; i-- > 0;)
    out = out << 8 | static_cast<unsigned char>(from[static_cast<std::size_t>(i)]);
  return out;
}

ZipFile::ZipFile(std::string_view bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {
  const std::size_t end = bytes_.rfind(kEnd);
  if (end == std::string_view::npos || bytes_.size() - end < kEndBytes) refuse_damaged();
  const std::size_t count = number(end + 10, 2);
  std::size_t at = number(end + 16, 4);
  for (std::size_t i = 0; i < count; ++i) {
    if (piece(at, kEntryBytes).substr(0, 4) != kEntry) refuse_damaged();
    const std::size_t name_bytes = number(at + 28, 2);
    entries_[std::string(piece(at + kEntryBytes, name_bytes))] = {
        .at = number(at + 42, 4),
        .packed = number(at + 20, 4),
        .method = static_cast<int>(number(at + 10, 2)),
        .crc = static_cast<std::uint32_t>(number(at + 16, 4)),
        .locked = (number(at + 8, 2) & 1) != 0};
    at += kEntryBytes + name_bytes + number(at + 30, 2) + number(at + 32, 2);
  }
}

std::optional<std::string> ZipFile::member(std::string_view path, Index most) const {
  const auto found = entries_.find(path);
  if (found == entries_.end()) return std::nullopt;
  const Entry& e = found->second;
  if (piece(e.at, kMemberBytes).substr(0, 4) != kMember) refuse_damaged();
  const std::string_view packed =
      piece(e.at + kMemberBytes + number(e.at + 26, 2) + number(e.at + 28, 2), e.packed);
  require(!e.locked, ErrorKind::bad_argument, "corpus", name_, ": is locked by a password; save it without");
  if (e.method == kDeflated) return unpack_deflate(packed, e.crc, most, name_);
  require(e.method == kStored, ErrorKind::bad_argument, "corpus", name_, ": is packed by method ", e.method,
          " of zip; 0 and 8 are read");
  require(static_cast<Index>(packed.size()) <= most, ErrorKind::bad_argument, "corpus", name_, ": holds ",
          packed.size(), " bytes; ", most, " are the most read");
  return std::string(packed);
}

}  // namespace headwise
