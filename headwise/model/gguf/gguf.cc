#include "headwise/model/gguf/gguf.h"

#include <cmath>
#include <cstring>

#include "headwise/model/json_reader.h"
#include "headwise/model/mapping.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "gguf";
constexpr std::uint32_t kFloat = 6, kBool = 7, kString = 8, kArray = 9, kDouble = 12;

bool is_integer(std::uint32_t type) { return type < kFloat || type == 10 || type == 11; }

template <class T>
double element_at(const std::byte* from, Index i) {
  T value;
  std::memcpy(&value, from + i * static_cast<Index>(sizeof value), sizeof value);
  return static_cast<double>(value);
}
using Element = double (*)(const std::byte*, Index);
constexpr Element kElements[] = {element_at<std::uint8_t>,
                                 element_at<std::int8_t>,
                                 element_at<std::uint16_t>,
                                 element_at<std::int16_t>,
                                 element_at<std::uint32_t>,
                                 element_at<std::int32_t>,
                                 element_at<float>,
                                 element_at<std::uint8_t>,
                                 nullptr,
                                 nullptr,
                                 element_at<std::uint64_t>,
                                 element_at<std::int64_t>,
                                 element_at<double>};

}  // namespace

struct Gguf::State {
  State(const std::string& p, const File& file) : path(p), map(file, file.bytes(), kOp, p) {
    header = parse_gguf(map.bytes(), path);
  }
  std::string path;
  Mapping map;
  GgufHeader header;
};

Gguf::Gguf(const std::string& path) : state_(std::make_unique<State>(path, File::open_to_read(path, kOp))) {}
Gguf::Gguf(Gguf&&) noexcept = default;
Gguf& Gguf::operator=(Gguf&&) noexcept = default;
Gguf::~Gguf() = default;

const std::string& Gguf::path() const noexcept { return state_->path; }
const std::vector<GgufTensor>& Gguf::tensors() const noexcept { return state_->header.tensors; }
bool Gguf::has(std::string_view key) const { return setting(key, true) != nullptr; }
bool Gguf::intact() const noexcept { return state_->map.intact(); }

void Gguf::refuse(std::string_view key, std::string_view why) const {
  throw Error(ErrorKind::bad_argument, text(kOp, ": ", path(), ": the setting ", quoted(key), " ", why));
}

const GgufSetting* Gguf::setting(std::string_view key, bool may_be_absent) const {
  for (const GgufSetting& s : state_->header.settings)
    if (s.key == key) return &s;
  if (!may_be_absent) refuse(key, "is missing");
  return nullptr;
}

double Gguf::number(std::string_view key, double low, double high, std::optional<double> otherwise) const {
  const GgufSetting* s = setting(key, otherwise.has_value());
  if (s == nullptr) return *otherwise;
  if (s->type != kFloat && s->type != kDouble && !is_integer(s->type)) refuse(key, "is no number");
  if (!(s->number >= low && s->number <= high))
    refuse(key, text("is ", s->number, "; it runs from ", low, " to ", high));
  return s->number;
}

Index Gguf::integer(std::string_view key, Index low, Index high, std::optional<Index> otherwise) const {
  const GgufSetting* s = setting(key, otherwise.has_value());
  if (s == nullptr) return *otherwise;
  if (!is_integer(s->type)) refuse(key, "is no integer");
  return static_cast<Index>(number(key, static_cast<double>(low), static_cast<double>(high)));
}

bool Gguf::boolean(std::string_view key, std::optional<bool> otherwise) const {
  const GgufSetting* s = setting(key, otherwise.has_value());
  if (s == nullptr) return *otherwise;
  if (s->type != kBool) refuse(key, "is neither true nor false");
  return s->number != 0;
}

std::string Gguf::word(std::string_view key, std::optional<std::string> otherwise) const {
  const GgufSetting* s = setting(key, otherwise.has_value());
  if (s == nullptr) return *otherwise;
  if (s->type != kString) refuse(key, "is no text");
  const auto* at = reinterpret_cast<const char*>(state_->map.bytes().data() + s->begin);
  return {at, static_cast<std::size_t>(s->count)};
}

std::vector<std::string> Gguf::words(std::string_view key) const {
  std::vector<std::string> all;
  const GgufSetting* s = setting(key, true);
  if (s == nullptr) return all;
  if (s->type != kArray || s->element != kString) refuse(key, "is no list of texts");
  const std::span<const std::byte> bytes = state_->map.bytes();
  all.reserve(static_cast<std::size_t>(s->count));
  std::size_t at = static_cast<std::size_t>(s->begin);
  for (Index i = 0; i < s->count; ++i) {
    std::uint64_t n = 0;
    // The file may have changed since it was opened: lengths are checked again.
    const bool inside = bytes.size() - at >= sizeof n;
    if (inside) std::memcpy(&n, bytes.data() + at, sizeof n);
    if (!inside || n > bytes.size() - at - sizeof n) refuse(key, "changed while it was read");
    all.emplace_back(reinterpret_cast<const char*>(bytes.data() + at + sizeof n),
                     static_cast<std::size_t>(n));
    at += sizeof n + static_cast<std::size_t>(n);
  }
  return all;
}

std::vector<double> Gguf::numbers(std::string_view key) const {
  std::vector<double> all;
  const GgufSetting* s = setting(key, true);
  if (s == nullptr) return all;
  if (s->type != kArray || s->element == kString) refuse(key, "is no list of numbers");
  all.reserve(static_cast<std::size_t>(s->count));
  const std::byte* from = state_->map.bytes().data() + s->begin;
  for (Index i = 0; i < s->count; ++i) all.push_back(kElements[s->element](from, i));
  return all;
}

const GgufTensor* Gguf::find(std::string_view name) const {
  for (const GgufTensor& t : state_->header.tensors)
    if (t.name == name) return &t;
  return nullptr;
}

std::span<const std::byte> Gguf::rows(const GgufTensor& t, Index first, Index rows) const {
  const Index row = t.size[t.rank - 1], all = t.numbers / row;
  require(first >= 0 && rows >= 0 && first <= all && rows <= all - first, ErrorKind::bad_shape, kOp,
          "tensor ", quoted(t.name), " has ", all, " rows; rows ", first, " to ", first + rows,
          " were asked");
  const GgufFormat& f = *t.format;
  const Index each = row / f.numbers * f.bytes;
  return state_->map.bytes().subspan(static_cast<std::size_t>(t.begin + first * each),
                                     static_cast<std::size_t>(rows * each));
}

void Gguf::read_rows(const GgufTensor& t, Index first, Index rows, float* to) const {
  const GgufFormat& f = *t.format;
  const std::span<const std::byte> from = this->rows(t, first, rows);
  const Index blocks = static_cast<Index>(from.size()) / f.bytes;
  for (Index b = 0; b < blocks; ++b) f.read(from.data() + b * f.bytes, to + b * f.numbers);
}

}  // namespace headwise
