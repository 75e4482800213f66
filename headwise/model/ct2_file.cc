#include "headwise/model/ct2_file.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "headwise/base/error.h"
#include "headwise/model/byte_reader.h"
#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "ctranslate2";
constexpr std::uint32_t kVersion = 6;
constexpr Index kMostName = 1024;
constexpr Index kBytes[] = {4, 1, 2, 4, 2, 2};  // of a number, by its type

class Ct2Reader : ByteReader {
 public:
  Ct2Reader(std::span<const std::byte> bytes, std::string_view path) : ByteReader(kOp, bytes, path) {}

  Ct2Header parse() {
    Ct2Header h;
    const auto version = number<std::uint32_t>("its version");
    if (version != kVersion) refuse("has the binary version ", version, "; version ", kVersion, " is read");
    h.spec = word("the kind of model");
    number<std::uint32_t>("its revision");
    // A variable has 3 bytes of name, a rank, a type, a count and a number at least; an alias two names.
    const Index variables = count("variables", 10);
    for (Index i = 0; i < variables; ++i) read_variable(h);
    const Index aliases = left() == 0 ? 0 : count("aliases", 6);
    for (Index i = 0; i < aliases; ++i) read_alias(h);
    if (left() > 0) refuse("has ", left(), " bytes behind its last alias; it was changed");
    return h;
  }

 private:
  Index count(std::string_view what, Index each) {
    const Index n = number<std::uint32_t>(what);
    if (n > left() / each)
      refuse("names ", n, " ", what, " at byte ", at_ - 4, "; ", left() / each, " could be there at most");
    return n;
  }
  /// A u16 of bytes, then these; the last is 0.
  std::string word(std::string_view what) {
    const Index n = number<std::uint16_t>(what);
    if (n < 2 || n > kMostName)
      refuse("has ", what, " of ", n, " bytes before byte ", at_, "; names have 2 to ", kMostName);
    std::string s(static_cast<std::size_t>(n), '\0');
    take(s.data(), n, what);
    if (s.back() != '\0') refuse("has ", what, " without a 0 at its end before byte ", at_);
    s.pop_back();
    if (s.find('\0') != std::string::npos || first_bad_utf8(s) >= 0)
      refuse("has ", what, " that is no UTF-8 before byte ", at_);
    return s;
  }

  void read_variable(Ct2Header& h) {
    Ct2Variable v;
    v.name = word("the name of a variable");
    if (!names_.insert(v.name).second) refuse("has the variable ", quoted(v.name), " twice");
    v.rank = number<std::uint8_t>("a variable");
    if (v.rank > Ct2Variable::kMostSizes)
      refuse("variable ", quoted(v.name), " has ", v.rank, " sizes; it may have 0 to ",
             Ct2Variable::kMostSizes);
    for (int i = 0; i < v.rank; ++i) {
      v.size[i] = number<std::uint32_t>("a variable");
      if (v.size[i] < 1 || v.numbers > static_cast<Index>(bytes_.size()) / v.size[i])
        refuse("variable ", quoted(v.name), " has a size of ", v.size[i], "; the file holds no such tensor");
      v.numbers *= v.size[i];
    }
    v.type = number<std::uint8_t>("a variable");
    if (v.type >= static_cast<int>(std::size(kBytes)))
      refuse("variable ", quoted(v.name), " has the unknown type ", v.type);
    v.bytes = number<std::uint32_t>("a variable");
    if (v.bytes != v.numbers * kBytes[v.type])
      refuse("variable ", quoted(v.name), " has ", v.bytes, " bytes; its sizes ask for ",
             v.numbers * kBytes[v.type]);
    if (v.bytes > left())
      refuse("ends inside the variable ", quoted(v.name), " at byte ", at_, "; it was cut short");
    v.begin = at_;
    at_ += v.bytes;
    h.variables.push_back(std::move(v));
  }
  void read_alias(Ct2Header& h) {
    Ct2Alias a;
    a.name = word("an alias");
    a.of = word("what an alias stands for");
    if (!names_.contains(a.of)) refuse("the alias ", quoted(a.name), " stands for no variable");
    if (names_.contains(a.name) || !aliases_.insert(a.name).second)
      refuse("has the name ", quoted(a.name), " twice");
    h.aliases.push_back(std::move(a));
  }

  std::set<std::string> names_, aliases_;
};

}  // namespace

std::optional<DType> Ct2Variable::as_float() const {
  if (type == 0) return DType::f32;
  if (type == 4) return DType::f16;
  if (type == 5) return DType::bf16;
  return {};
}

Ct2Header parse_ct2(std::span<const std::byte> bytes, std::string_view path) {
  return Ct2Reader(bytes, path).parse();
}

bool begins_like_ct2(std::span<const std::byte> bytes) {
  std::uint32_t version = 0;
  std::uint16_t length = 0;
  if (bytes.size() < sizeof version + sizeof length) return false;
  std::memcpy(&version, bytes.data(), sizeof version);
  std::memcpy(&length, bytes.data() + sizeof version, sizeof length);
  const std::span<const std::byte> name = bytes.subspan(sizeof version + sizeof length);
  if (version > 64 || length < 6 || length > 64 || name.size() < length) return false;
  return std::memcmp(name.data() + length - 5, "Spec", 5) == 0;
}

Ct2File::Ct2File(const std::string& path) : Ct2File(path, File::open_to_read(path, kOp)) {}
Ct2File::Ct2File(const std::string& path, const File& file)
    : path_(path), map_(file, file.bytes(), kOp, path), header_(parse_ct2(map_.bytes(), path)) {}

const Ct2Variable* Ct2File::find(std::string_view name) const {
  for (const Ct2Alias& a : header_.aliases)
    if (a.name == name) name = a.of;
  for (const Ct2Variable& v : header_.variables)
    if (v.name == name) return &v;
  return nullptr;
}

Index Ct2File::integer(std::string_view name, std::optional<Index> otherwise) const {
  const Ct2Variable* v = find(name);
  if (v == nullptr && otherwise.has_value()) return *otherwise;
  require(v != nullptr, ErrorKind::bad_argument, kOp, path_, ": has no ", quoted(name));
  require(v->numbers == 1 && !v->as_float().has_value(), ErrorKind::bad_argument, kOp, path_, ": ",
          quoted(name), " is no single whole number");
  const std::byte* from = bytes_of(*v).data();
  if (v->type == 1) return static_cast<Index>(static_cast<std::int8_t>(*from));
  std::int16_t small = 0;
  std::int32_t large = 0;
  if (v->type == 3) std::memcpy(&large, from, sizeof large);
  if (v->type == 2) std::memcpy(&small, from, sizeof small);
  return v->type == 3 ? Index{large} : Index{small};
}

std::span<const std::byte> Ct2File::bytes_of(const Ct2Variable& v) const {
  return map_.bytes().subspan(static_cast<std::size_t>(v.begin), static_cast<std::size_t>(v.bytes));
}

}  // namespace headwise
