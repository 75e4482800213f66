#include <algorithm>

#include "headwise/base/words.h"
#include "headwise/model/file.h"
#include "headwise/model/json_reader.h"
#include "headwise/model/safetensors.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "write_safetensors";

std::string_view word_of(DType t) {
  switch (t) {
    case DType::f32: return "F32";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    case DType::f64: return "F64";
    case DType::i32: return "I32";
    case DType::i64: return "I64";
    case DType::u8: return "U8";
    case DType::i8: return "I8";
    case DType::e4m3: return "F8_E4M3";
  }
  return "";
}

void append_string(std::string& out, std::string_view value, std::string_view path) {
  require(first_bad_utf8(value) < 0, ErrorKind::bad_argument, kOp, path,
          ": a name or metadata text is no UTF-8; convert it");
  out += json_string(value);
}

bool is_packed(const ViewForm& v) {
  Index step = 1;
  for (int axis = v.rank - 1; axis >= 0; --axis) {
    if (v.size[axis] > 1 && v.step[axis] != step) return false;
    step *= v.size[axis];
  }
  return true;
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const Metadata& metadata) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& t : tensors) {
    require(!t.name.empty() && t.name != "__metadata__", ErrorKind::bad_argument, kOp, path, ": ",
            quoted(t.name), " cannot name a tensor; give it another name");
    require(t.value.given() && is_packed(t.value), ErrorKind::bad_shape, kOp, path, ": ", quoted(t.name),
            " must be a row-major tensor without gaps; copy it first");
    order.push_back(&t);
  }
  // Widest first: every tensor then begins at a multiple of its width.
  std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const Index wa = size_of(a->value.dtype), wb = size_of(b->value.dtype);
    return wa != wb ? wa > wb : a->name < b->name;
  });
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (header.back() != '{') header += ',';
      append_string(header, key, path);
      header += ':';
      append_string(header, value, path);
    }
    header += '}';
  }
  Checked end(0);
  for (const NamedTensor* t : order) {
    if (header.size() > 1) header += ',';
    append_string(header, t->name, path);
    header += text(":{\"dtype\":\"", word_of(t->value.dtype), "\",\"shape\":[");
    for (int axis = 0; axis < t->value.rank; ++axis) header += text(axis ? "," : "", t->value.size[axis]);
    header += text("],\"data_offsets\":[", end.value, ',');
    end = end + Checked(t->value.count()) * Checked(size_of(t->value.dtype));
    header += text(end.value, "]}");
  }
  header += '}';
  // The data begins at a multiple of 64: a mapped tensor lies as aligned as one in memory.
  header.resize(static_cast<std::size_t>(round_up(static_cast<Index>(header.size()) + 8, 64) - 8), ' ');
  const SafetensorsLimits widest{.header_bytes = 100'000'000};
  parse_safetensors_header(header, end.value, path, widest);  // what we write, we read
  char length[8];
  for (int i = 0; i < 8; ++i)
    length[i] = static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  Replacement out(path, kOp);
  out.file().write(std::string_view(length, 8));
  out.file().write(header);
  for (const NamedTensor* t : order)
    out.file().write({static_cast<const std::byte*>(t->value.data),
                      static_cast<std::size_t>(t->value.count() * size_of(t->value.dtype))});
  out.commit();
}

}  // namespace headwise
