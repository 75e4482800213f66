#include <algorithm>
#include <numeric>

#include "headwise/model/json_reader.h"
#include "headwise/model/safetensors.h"

namespace headwise {
namespace {

constexpr Index kMostHeaderBytes = 100'000'000;

struct FileType {
  std::string_view word;
  int bits;
};
// The format's closed list; sizes in bits, because some are not whole bytes.
constexpr FileType kTypes[] = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};

const FileType* type_named(std::string_view word) {
  for (const FileType& t : kTypes)
    if (t.word == word) return &t;
  return nullptr;
}

class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string_view where, const SafetensorsLimits& limits)
      : json_(text, where), limits_(limits) {}

  SafetensorsHeader parse() {
    json_.take('{', "the header");
    bool metadata_seen = false;
    if (!json_.try_take('}')) do {
        std::string name = json_.string("a tensor's name", limits_.name_bytes);
        json_.about(name);
        json_.take(':', "its value");
        if (name == "__metadata__") {
          if (metadata_seen) json_.refuse("it stands there twice");
          metadata_seen = true;
          read_metadata();
        } else {
          if (static_cast<Index>(header_.entries.size()) >= limits_.entries)
            json_.refuse("it follows ", limits_.entries,
                         " tensors; raise limits.entries if you trust the file");
          read_entry();
          header_.entries.back().name = name;
        }
        json_.about({});
      } while (more("the header"));
    end_ = json_.at();
    return std::move(header_);
  }
  std::size_t end() const { return end_; }

 private:
  /// After a member: true on a comma, false on the closing brace.
  bool more(std::string_view what) {
    if (json_.try_take(',')) return true;
    json_.take('}', what);
    return false;
  }

  void read_metadata() {
    json_.take('{', "it");
    if (json_.try_take('}')) return;
    Index bytes = 0;
    do {
      std::string key = json_.string("a key", limits_.metadata_bytes);
      json_.about(key);
      json_.take(':', "this key of __metadata__");
      std::string value = json_.string("this key's text in __metadata__", limits_.metadata_bytes);
      json_.about("__metadata__");
      bytes += static_cast<Index>(key.size() + value.size());
      if (bytes > limits_.metadata_bytes)
        json_.refuse("it holds more than ", limits_.metadata_bytes, " bytes");
      header_.metadata.emplace_back(std::move(key), std::move(value));
    } while (more("it"));
    std::vector<std::string_view> keys;
    for (const auto& [key, value] : header_.metadata) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) json_.refuse("its key ", quoted(*twice), " stands there twice");
  }

  void read_entry() {
    SafetensorsEntry e;
    json_.take('{', "it");
    bool dtype = false, shape = false, offsets = false;
    const auto once = [&](bool& seen, std::string_view field) {
      if (seen) json_.refuse(field, " stands there twice");
      seen = true;
    };
    do {
      const std::string field = json_.string("a field", 64);
      json_.take(':', "a field");
      if (field == "dtype") {
        once(dtype, field);
        const std::string word = json_.string("dtype", 64);
        const FileType* type = type_named(word);
        if (!type)
          json_.refuse("dtype is ", quoted(word),
                       "; the format knows F32, BF16, F16, F64, I64, ... in capitals");
        e.dtype = type->word;
      } else if (field == "shape") {
        once(shape, field);
        read_shape(e);
      } else if (field == "data_offsets") {
        once(offsets, field);
        json_.take('[', "data_offsets");
        e.begin = json_.integer("data_offsets");
        json_.take(',', "data_offsets");
        e.end = json_.integer("data_offsets");
        json_.take(']', "data_offsets");
      } else {
        json_.refuse("it has a field ", quoted(field), "; dtype, shape and data_offsets are all it may have");
      }
    } while (more("it"));
    if (!dtype || !shape || !offsets)
      json_.refuse("it has no ", !dtype ? "dtype" : !shape ? "shape" : "data_offsets");
    header_.entries.push_back(std::move(e));
  }

  void read_shape(SafetensorsEntry& e) {
    json_.take('[', "shape");
    if (json_.try_take(']')) return;
    do {
      if (e.rank == SafetensorsEntry::kMostSizes)
        json_.refuse("shape has more than ", SafetensorsEntry::kMostSizes, " sizes");
      e.size[e.rank++] = json_.integer("shape");
    } while (json_.try_take(','));
    json_.take(']', "shape");
  }

  JsonReader json_;
  const SafetensorsLimits& limits_;
  SafetensorsHeader header_;
  std::size_t end_ = 0;
};

template <class... Parts>
void need(bool ok, std::string_view path, const Parts&... parts) {
  require(ok, ErrorKind::bad_argument, "safetensors", path, ": ", parts...);
}

void check_extent(const SafetensorsEntry& e, Index data_bytes, std::string_view path) {
  Checked bits(type_named(e.dtype)->bits);
  bool empty = false;
  for (int axis = 0; axis < e.rank; ++axis) {
    bits = bits * Checked(e.size[axis]);
    empty |= e.size[axis] == 0;
  }
  // A size 0 makes the tensor empty even where the other sizes would not multiply.
  if (empty) bits = Checked(0);
  const auto fits = [&](bool ok, const auto&... parts) {
    if (!ok) need(false, path, quoted(e.name), ": ", parts...);
  };
  fits(bits.ok, "its sizes multiply to more bits than any file holds");
  fits(bits.value % 8 == 0, bits.value, " bits of ", e.dtype, " do not fill whole bytes");
  fits(e.begin <= e.end, "data_offsets [", e.begin, " ", e.end, "] run backwards");
  fits(e.end <= data_bytes, "data_offsets end at ", e.end, " but the file has ", data_bytes,
       " bytes of data; it is cut short or damaged");
  fits(e.end - e.begin == bits.value / 8, "dtype and shape need ", bits.value / 8,
       " bytes but data_offsets span ", e.end - e.begin);
}

/// Tensors in the order of their bytes must touch: no hole, no overlap, from 0 to the end.
void check_coverage(const std::vector<SafetensorsEntry>& entries, Index data_bytes, std::string_view path) {
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(entries[a].begin, entries[a].end) < std::pair(entries[b].begin, entries[b].end);
  });
  Index reached = 0;
  for (const std::size_t i : order) {
    const SafetensorsEntry& e = entries[i];
    if (e.begin != reached) [[unlikely]]
      need(false, path, quoted(e.name), ": its bytes begin at ", e.begin, " but those before it end at ",
           reached, "; tensors may leave no hole and may not overlap");
    reached = e.end;
  }
  need(reached == data_bytes, path, "the last ", data_bytes - reached, " of ", data_bytes,
       " bytes of data belong to no tensor");
}

}  // namespace

std::optional<DType> SafetensorsEntry::as_dtype() const {
  if (dtype == "F32") return DType::f32;
  if (dtype == "BF16") return DType::bf16;
  if (dtype == "F16") return DType::f16;
  if (dtype == "F64") return DType::f64;
  if (dtype == "I32") return DType::i32;
  if (dtype == "I64") return DType::i64;
  if (dtype == "U8" || dtype == "BOOL") return DType::u8;
  if (dtype == "I8") return DType::i8;
  if (dtype == "F8_E4M3") return DType::e4m3;
  return std::nullopt;
}

const SafetensorsEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto at = std::lower_bound(entries.begin(), entries.end(), name,
                                   [](const SafetensorsEntry& e, std::string_view n) { return e.name < n; });
  return at != entries.end() && at->name == name ? &*at : nullptr;
}

Index safetensors_header_bytes(std::span<const std::byte> first, Index file_bytes, std::string_view path,
                               const SafetensorsLimits& limits) {
  need(file_bytes >= 8 && first.size() >= 8, path, "has ", file_bytes,
       " bytes; a safetensors file has at least 10, the first 8 of which give the header's length");
  std::uint64_t n = 0;
  for (int i = 7; i >= 0; --i)
    n = n << 8 | std::to_integer<std::uint64_t>(first[static_cast<std::size_t>(i)]);
  need(n <= static_cast<std::uint64_t>(file_bytes - 8), path, "its header claims ", n, " bytes but ",
       file_bytes - 8, " follow its length; it is cut short or no safetensors file");
  const auto bytes = static_cast<Index>(n);
  need(bytes <= kMostHeaderBytes, path, "its header has ", bytes, " bytes; the format allows ",
       kMostHeaderBytes);
  need(bytes <= limits.header_bytes, path, "its header has ", bytes,
       " bytes, more than limits.header_bytes (", limits.header_bytes, "); raise it if you trust the file");
  need(bytes >= 2, path, "its header has ", bytes, " bytes; the shortest is {}");
  return bytes;
}

SafetensorsHeader parse_safetensors_header(std::string_view header, Index data_bytes, std::string_view path,
                                           const SafetensorsLimits& limits) {
  need(!header.empty() && header[0] == '{', path, "its header does not begin with '{'");
  const Index bad = first_bad_utf8(header);
  need(bad < 0, path, "byte ", bad, " of its header is no UTF-8 text");
  HeaderParser parser(header, text("safetensors: ", path), limits);
  SafetensorsHeader parsed = parser.parse();
  for (std::size_t i = parser.end(); i < header.size(); ++i)
    need(header[i] == ' ', path, "byte ", i, " of its header stands after the closing '}'; only spaces may");
  std::sort(parsed.entries.begin(), parsed.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < parsed.entries.size(); ++i)
    if (parsed.entries[i].name == parsed.entries[i - 1].name) [[unlikely]]
      need(false, path, quoted(parsed.entries[i].name), " stands there twice");
  for (const SafetensorsEntry& e : parsed.entries) check_extent(e, data_bytes, path);
  check_coverage(parsed.entries, data_bytes, path);
  parsed.data_begin = 8 + static_cast<Index>(header.size());
  return parsed;
}

}  // namespace headwise
