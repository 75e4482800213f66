#include "headwise/view/npy.h"

#include <bit>
#include <charconv>
#include <cstring>

#include "headwise/base/error.h"

namespace headwise {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read as they lie");

template <class... Words>
[[noreturn]] void refuse(std::string_view where, const Words&... words) {
  throw Error(ErrorKind::bad_argument, text(where, ": ", words...));
}

template <class Number>
Number read(std::span<const std::byte> bytes, std::size_t at, std::string_view where) {
  if (at > bytes.size() || bytes.size() - at < sizeof(Number)) refuse(where, "the file ends inside a header");
  Number n;
  std::memcpy(&n, bytes.data() + at, sizeof n);
  return n;
}

/// What follows 'key': in the dictionary of a header, up to its comma outside brackets.
std::string_view value_of(std::string_view header, std::string_view key, std::string_view where) {
  const std::size_t at = header.find(text("'", key, "'"));
  const std::size_t colon = at == std::string_view::npos ? at : header.find(':', at);
  if (colon == std::string_view::npos) refuse(where, "the header of an array names no ", key);
  std::size_t begin = header.find_first_not_of(' ', colon + 1), end = begin;
  for (int depth = 0; end < header.size(); ++end) {
    const char c = header[end];
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (depth == 0 && (c == ',' || c == '}')) break;
  }
  if (begin == std::string_view::npos) refuse(where, "the header of an array ends at ", key);
  return header.substr(begin, end - begin);
}

std::vector<Index> sizes_of(std::string_view tuple, std::string_view where) {
  std::vector<Index> sizes;
  for (std::size_t at = 0; at < tuple.size();) {
    if (tuple[at] < '0' || tuple[at] > '9') {
      ++at;
      continue;
    }
    Index size = 0;
    const auto [end, error] = std::from_chars(tuple.data() + at, tuple.data() + tuple.size(), size);
    if (error != std::errc{} || size > (Index{1} << 40) || sizes.size() == 8)
      refuse(where, "an array has the sizes ", tuple, "; at most 8 sizes up to 2^40 are read");
    sizes.push_back(size);
    at = static_cast<std::size_t>(end - tuple.data());
  }
  return sizes;
}

void set_kind(FileArray& a, std::string_view descr, std::string_view where) {
  const std::string_view code = descr.size() > 2 ? descr.substr(1, descr.size() - 2) : "";  // without quotes
  const std::string_view type = code.size() > 1 ? code.substr(1) : "";
  Index wide = 0;
  if (!type.empty()) std::from_chars(type.data() + 1, type.data() + type.size(), wide);
  a.element_bytes = wide;
  if (type == "f2")
    a.kind = ElementKind::f16;
  else if (type == "f4")
    a.kind = ElementKind::f32;
  else if (type == "f8")
    a.kind = ElementKind::f64;
  else if (type.starts_with('U') && wide > 0 && wide <= 4096)
    a.kind = ElementKind::words, a.element_bytes = 4 * wide;
  else if (type.starts_with('S') && wide > 0 && wide <= 16384)
    a.kind = ElementKind::bytes;
  else
    refuse(where, "an array has dtype ", descr, "; give float16, float32, float64 or strings");
  if (code.starts_with('>')) refuse(where, "an array is big-endian (", descr, "); save it little-endian");
}

struct ZipEntry {
  std::string name;
  std::uint64_t packed = 0, whole = 0, at = 0;
  std::uint16_t method = 0;
};

/// Sizes of 2^32 - 1 stand in the entry's field 1 instead, in this order.
void widen(ZipEntry& e, std::span<const std::byte> extra, std::string_view where) {
  for (std::size_t at = 0; at + 4 <= extra.size();) {
    const auto id = read<std::uint16_t>(extra, at, where), bytes = read<std::uint16_t>(extra, at + 2, where);
    std::size_t field = at + 4;
    if (id == 1)
      for (std::uint64_t* n : {&e.whole, &e.packed, &e.at})
        if (*n == 0xffffffffu) *n = read<std::uint64_t>(extra, field, where), field += 8;
    at += 4 + std::size_t{bytes};
  }
}

std::vector<ZipEntry> entries_of(std::span<const std::byte> bytes, std::string_view where) {
  if (bytes.size() < 22) refuse(where, "the file is too short for a .npz");
  std::size_t end = bytes.size() - 22;
  const std::size_t stop = end > 65535 ? end - 65535 : 0;
  while (read<std::uint32_t>(bytes, end, where) != 0x06054b50u) {
    if (end == stop) refuse(where, "no list of arrays at the end; is it a .npz, and whole?");
    --end;
  }
  std::uint64_t count = read<std::uint16_t>(bytes, end + 10, where),
                at = read<std::uint32_t>(bytes, end + 16, where);
  if ((count == 0xffff || at == 0xffffffffu) && end >= 20) {
    const auto wide = read<std::uint64_t>(bytes, end - 20 + 8, where);
    count = read<std::uint64_t>(bytes, wide + 32, where), at = read<std::uint64_t>(bytes, wide + 48, where);
  }
  std::vector<ZipEntry> all;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (read<std::uint32_t>(bytes, at, where) != 0x02014b50u) refuse(where, "its list of arrays is damaged");
    ZipEntry e;
    e.method = read<std::uint16_t>(bytes, at + 10, where);
    e.packed = read<std::uint32_t>(bytes, at + 20, where),
    e.whole = read<std::uint32_t>(bytes, at + 24, where);
    e.at = read<std::uint32_t>(bytes, at + 42, where);
    const std::size_t name = read<std::uint16_t>(bytes, at + 28, where),
                      extra = read<std::uint16_t>(bytes, at + 30, where);
    const std::size_t note = read<std::uint16_t>(bytes, at + 32, where);
    if (bytes.size() - at < 46 + name + extra + note)
      refuse(where, "the file ends inside its list of arrays");
    e.name.assign(reinterpret_cast<const char*>(bytes.data() + at + 46), name);
    widen(e, bytes.subspan(at + 46 + name, extra), where);
    all.push_back(std::move(e));
    at += 46 + name + extra + note;
  }
  return all;
}

}  // namespace

FileArray parse_npy(std::span<const std::byte> bytes, std::string_view where) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (bytes.size() < 10 || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    refuse(where, "an array does not begin as .npy files do");
  const bool wide = read<std::uint8_t>(bytes, 6, where) >= 2;
  const std::size_t length =
      wide ? read<std::uint32_t>(bytes, 8, where) : read<std::uint16_t>(bytes, 8, where);
  const std::size_t begin = wide ? 12 : 10;
  if (length > 65536 || bytes.size() - begin < length)
    refuse(where, "the header of an array is longer than it may be");
  const std::string_view header(reinterpret_cast<const char*>(bytes.data() + begin), length);
  FileArray a;
  set_kind(a, value_of(header, "descr", where), where);
  a.sizes = sizes_of(value_of(header, "shape", where), where);
  if (value_of(header, "fortran_order", where).starts_with("True") && a.sizes.size() > 1)
    refuse(where, "an array is in Fortran's order; save np.ascontiguousarray of it");
  a.data = bytes.data() + begin + length;
  double need = static_cast<double>(a.element_bytes);
  for (const Index s : a.sizes) need *= static_cast<double>(s);
  const std::size_t there = bytes.size() - begin - length;
  if (need > static_cast<double>(there))
    refuse(where, "an array needs ", need, " bytes and ", there, " are there");
  return a;
}

std::vector<FileArray> parse_npz(std::span<const std::byte> bytes, std::string_view where) {
  std::vector<FileArray> all;
  for (const ZipEntry& e : entries_of(bytes, where)) {
    if (e.method != 0) refuse(where, e.name, " is compressed; save with np.savez, not np.savez_compressed");
    if (read<std::uint32_t>(bytes, e.at, where) != 0x04034b50u)
      refuse(where, e.name, " does not lie where the list says");
    const std::size_t begin = e.at + 30 + read<std::uint16_t>(bytes, e.at + 26, where) +
                              read<std::uint16_t>(bytes, e.at + 28, where);
    if (begin > bytes.size() || bytes.size() - begin < e.whole)
      refuse(where, "the file ends inside ", e.name);
    FileArray a = parse_npy(bytes.subspan(begin, e.whole), text(where, ": ", e.name));
    a.name = e.name.ends_with(".npy") ? e.name.substr(0, e.name.size() - 4) : e.name;
    all.push_back(std::move(a));
  }
  return all;
}

}  // namespace headwise
