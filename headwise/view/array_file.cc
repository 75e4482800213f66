#include "headwise/view/array_file.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "headwise/base/error.h"
#include "headwise/base/half.h"
#include "headwise/model/mapping.h"
#include "headwise/model/safetensors.h"
#include "headwise/view/npy.h"

namespace headwise {
namespace {

template <class T>
T at(const std::byte* data, Index i) {
  T x;
  std::memcpy(&x, data + i * static_cast<Index>(sizeof x), sizeof x);
  return x;
}

void add_utf8(std::string& to, std::uint32_t c) {
  if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) c = 0xfffd;
  const auto tail = [&](int shift) { to += static_cast<char>(0x80 | ((c >> shift) & 63)); };
  if (c < 0x80)
    to += static_cast<char>(c);
  else if (c < 0x800)
    to += static_cast<char>(0xc0 | (c >> 6)), tail(0);
  else if (c < 0x10000)
    to += static_cast<char>(0xe0 | (c >> 12)), tail(6), tail(0);
  else
    to += static_cast<char>(0xf0 | (c >> 18)), tail(12), tail(6), tail(0);
}

std::vector<FileArray> from_safetensors(const Safetensors& file) {
  std::vector<FileArray> all;
  for (const SafetensorsEntry& e : file.entries()) {
    FileArray a{.name = e.name, .sizes = std::vector<Index>(e.size, e.size + e.rank)};
    if (e.dtype == "F16")
      a.kind = ElementKind::f16, a.element_bytes = 2;
    else if (e.dtype == "BF16")
      a.kind = ElementKind::bf16, a.element_bytes = 2;
    else if (e.dtype == "F64")
      a.kind = ElementKind::f64, a.element_bytes = 8;
    else if (e.dtype != "F32")
      continue;  // what holds no weights is not looked at
    a.data = file.bytes(e.name).data();
    all.push_back(std::move(a));
  }
  return all;
}

}  // namespace

Index FileArray::count() const {
  Index n = 1;
  for (const Index s : sizes) n *= s;
  return n;
}

float FileArray::number(Index i) const {
  switch (kind) {
    case ElementKind::f16: return static_cast<float>(at<f16>(data, i));
    case ElementKind::bf16: return static_cast<float>(at<bf16>(data, i));
    case ElementKind::f32: return at<float>(data, i);
    case ElementKind::f64: return static_cast<float>(at<double>(data, i));
    case ElementKind::words:
    case ElementKind::bytes: break;
  }
  return 0;
}

std::string FileArray::word(Index i) const {
  std::string out;
  const std::byte* from = data + i * element_bytes;
  if (kind == ElementKind::bytes) {
    const auto* c = reinterpret_cast<const char*>(from);
    return {c, strnlen(c, static_cast<std::size_t>(element_bytes))};
  }
  for (Index c = 0; c < element_bytes / 4; ++c) {
    const auto code = at<std::uint32_t>(from, c);
    if (code == 0) break;
    add_utf8(out, code);
  }
  return out;
}

void FileArray::release(Index first, Index numbers) const {
  Mapping::release({data + first * element_bytes, static_cast<std::size_t>(numbers * element_bytes)});
}

struct ArrayFile::State {
  std::string path;
  std::optional<File> file;
  std::optional<Mapping> mapping;
  std::optional<Safetensors> safetensors;
  std::vector<FileArray> arrays;
};

ArrayFile::ArrayFile(const std::string& path, std::string_view op) : state_(std::make_unique<State>()) {
  state_->path = path;
  const std::string where = text(op, ": ", path);
  if (path.ends_with(".safetensors")) {
    state_->safetensors.emplace(path);
    state_->arrays = from_safetensors(*state_->safetensors);
    return;
  }
  require(path.ends_with(".npy") || path.ends_with(".npz"), ErrorKind::bad_argument, where,
          "arrays are read from .npz, .npy and .safetensors files");
  state_->file.emplace(File::open_to_read(path, op, Links::follow));
  state_->mapping.emplace(*state_->file, state_->file->bytes(), op, path);
  const auto bytes = state_->mapping->bytes();
  if (path.ends_with(".npz"))
    state_->arrays = parse_npz(bytes, where);
  else
    state_->arrays.push_back(parse_npy(bytes, where)), state_->arrays.back().name = "attention";
}
ArrayFile::ArrayFile(ArrayFile&&) noexcept = default;
ArrayFile::~ArrayFile() = default;

const std::vector<FileArray>& ArrayFile::arrays() const { return state_->arrays; }
const std::string& ArrayFile::path() const { return state_->path; }
const FileArray* ArrayFile::find(std::string_view name) const {
  const auto at =
      std::find_if(arrays().begin(), arrays().end(), [&](const FileArray& a) { return a.name == name; });
  return at == arrays().end() ? nullptr : &*at;
}

}  // namespace headwise
