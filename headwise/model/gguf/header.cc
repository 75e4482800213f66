// parse_gguf: one pass over the bytes before the data; nothing is read or allocated for a count that cannot
// be.
#include <algorithm>
#include <cstring>
#include <set>

#include "headwise/base/error.h"
#include "headwise/model/byte_reader.h"
#include "headwise/model/gguf/gguf.h"
#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "gguf";
constexpr std::uint32_t kString = 8, kArray = 9, kBool = 7;
constexpr Index kMostName = 1024, kMostSettings = 100'000, kMostTensors = 1'000'000;

/// Bytes of a value of a type of fixed size; 0: not one.
constexpr Index fixed_bytes(std::uint32_t type) {
  constexpr Index kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kBytes) ? kBytes[type] : 0;
}

class HeaderReader : ByteReader {
 public:
  HeaderReader(std::span<const std::byte> bytes, std::string_view path) : ByteReader(kOp, bytes, path) {}

  GgufHeader parse() {
    char magic[4];
    take(magic, 4, "the word GGUF");
    if (std::memcmp(magic, "GGUF", 4) != 0) refuse("does not begin with GGUF; it is no such file");
    const auto version = number<std::uint32_t>("its version");
    if (version != 2 && version != 3)
      refuse("has version ", version, "; versions 2 and 3, little-endian, are read");
    // A setting has 8 + 4 + 1 bytes at least, a tensor 8 + 4 + 4 + 8.
    const Index tensors = count("tensors", 24, kMostTensors), settings = count("settings", 13, kMostSettings);
    GgufHeader header;
    for (Index i = 0; i < settings; ++i) read_setting(header);
    for (Index i = 0; i < tensors; ++i) read_tensor(header);
    place(header);
    return header;
  }

 private:
  /// A number of things of at least `each` bytes, all of which must still be there.
  Index count(std::string_view what, Index each, Index most) {
    const auto n = number<std::uint64_t>(what);
    if (n > static_cast<std::uint64_t>(std::min(most, left() / each)))
      refuse("names ", n, " ", what, " at byte ", at_ - 8, "; ", std::min(most, left() / each),
             " could be there at most");
    return static_cast<Index>(n);
  }
  std::string name(std::string_view what) {
    const Index n = count("bytes of a name", 1, kMostName);
    std::string s(static_cast<std::size_t>(n), '\0');
    take(s.data(), n, what);
    if (s.empty()) refuse("has an empty name of ", what, " before byte ", at_);
    if (first_bad_utf8(s) >= 0) refuse("has a name of ", what, " that is no UTF-8 before byte ", at_);
    return s;
  }

  double fixed(std::uint32_t type) {
    switch (type) {
      case 0: return number<std::uint8_t>("a setting");
      case 1: return number<std::int8_t>("a setting");
      case 2: return number<std::uint16_t>("a setting");
      case 3: return number<std::int16_t>("a setting");
      case 4: return number<std::uint32_t>("a setting");
      case 5: return number<std::int32_t>("a setting");
      case 6: return static_cast<double>(number<float>("a setting"));
      case kBool: return number<std::uint8_t>("a setting") != 0 ? 1 : 0;
      case 10: return static_cast<double>(number<std::uint64_t>("a setting"));
      case 11: return static_cast<double>(number<std::int64_t>("a setting"));
      default: return number<double>("a setting");
    }
  }
  void skip(Index n) { at_ += n; }
  void read_setting(GgufHeader& header) {
    GgufSetting s;
    s.key = name("a setting");
    if (!keys_.insert(s.key).second) refuse("has the setting ", quoted(s.key), " twice");
    s.type = number<std::uint32_t>("a setting");
    if (s.type == kString) {
      s.count = count("bytes of a string", 1, left());
      s.begin = at_;
      skip(s.count);
    } else if (s.type == kArray) {
      read_array(s);
    } else {
      if (fixed_bytes(s.type) == 0) refuse("setting ", quoted(s.key), " has the unknown type ", s.type);
      s.number = fixed(s.type);
    }
    header.settings.push_back(std::move(s));
  }
  void read_array(GgufSetting& s) {
    s.element = number<std::uint32_t>("an array");
    const Index each = s.element == kString ? 8 : fixed_bytes(s.element);
    if (each == 0)
      refuse("setting ", quoted(s.key), " is an array of type ", s.element, "; numbers and strings are read");
    s.count = count("elements", each, left());
    s.begin = at_;
    if (s.element != kString) return skip(s.count * each);
    for (Index i = 0; i < s.count; ++i) skip(count("bytes of a string", 1, left()));
  }

  void read_tensor(GgufHeader& header) {
    GgufTensor t;
    t.name = name("a tensor");
    if (!names_.insert(t.name).second) refuse("has the tensor ", quoted(t.name), " twice");
    const auto rank = number<std::uint32_t>("a tensor");
    if (rank < 1 || rank > GgufTensor::kMostSizes)
      refuse("tensor ", quoted(t.name), " has ", rank, " sizes; it may have 1 to 4");
    t.rank = static_cast<int>(rank);
    t.numbers = 1;
    for (int i = t.rank - 1; i >= 0; --i) {  // the file has the innermost size first
      const auto n = number<std::uint64_t>("a tensor");
      if (n < 1 || n > static_cast<std::uint64_t>(bytes_.size()) * 2)
        refuse("tensor ", quoted(t.name), " has a size of ", n, "; the file holds no such tensor");
      t.size[i] = static_cast<Index>(n);
      // Half a byte a number at the least: more than twice the file's bytes cannot be there.
      if (t.numbers > static_cast<Index>(bytes_.size()) * 2 / t.size[i])
        refuse("tensor ", quoted(t.name), " has more numbers than the file has room for");
      t.numbers *= t.size[i];
    }
    const auto type = number<std::uint32_t>("a tensor");
    t.format = find_gguf_format(type);
    if (t.format == nullptr)
      refuse("tensor ", quoted(t.name), " is of type ", type, "; ", known(), " are read");
    if (t.size[t.rank - 1] % t.format->numbers != 0)
      refuse("tensor ", quoted(t.name), " has rows of ", t.size[t.rank - 1], " numbers; ", t.format->name,
             " comes in blocks of ", t.format->numbers);
    t.bytes = t.numbers / t.format->numbers * t.format->bytes;
    const auto offset = number<std::uint64_t>("a tensor");
    if (offset > bytes_.size()) refuse("tensor ", quoted(t.name), " begins past the end of the file");
    t.begin = static_cast<Index>(offset);
    header.tensors.push_back(std::move(t));
  }
  static std::string known() {
    std::string all;
    for (const GgufFormat& f : gguf_formats()) all += text(all.empty() ? "" : ", ", f.name);
    return all;
  }

  /// Offsets count from the first aligned byte behind the header.
  void place(GgufHeader& header) const {
    Index align = 32;
    for (const GgufSetting& s : header.settings)
      if (s.key == "general.alignment") {
        if (s.type != 4 || s.number < 8 || s.number > 65536 ||
            (static_cast<Index>(s.number) & (static_cast<Index>(s.number) - 1)) != 0)
          refuse("has a general.alignment of ", s.number, "; it is a power of two from 8 to 65536");
        align = static_cast<Index>(s.number);
      }
    const Index begin = (at_ + align - 1) / align * align;
    std::vector<const GgufTensor*> order;
    for (GgufTensor& t : header.tensors) {
      if (t.begin % align != 0)
        refuse("tensor ", quoted(t.name), " begins at ", t.begin, ", no multiple of ", align);
      const Index end = static_cast<Index>(bytes_.size());
      if (begin > end || t.begin > end - begin || t.bytes > end - begin - t.begin)
        refuse("tensor ", quoted(t.name), " ends past the end of the file; it was cut short");
      t.begin += begin;
      order.push_back(&t);
    }
    std::sort(order.begin(), order.end(),
              [](const GgufTensor* a, const GgufTensor* b) { return a->begin < b->begin; });
    for (std::size_t i = 1; i < order.size(); ++i)
      if (order[i - 1]->begin + order[i - 1]->bytes > order[i]->begin)
        refuse("tensors ", quoted(order[i - 1]->name), " and ", quoted(order[i]->name), " overlap");
  }

  std::set<std::string> keys_, names_;
};

}  // namespace

GgufHeader parse_gguf(std::span<const std::byte> bytes, std::string_view path) {
  return HeaderReader(bytes, path).parse();
}

}  // namespace headwise
