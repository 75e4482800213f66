#include "headwise/train/checkpoints/checkpoint_file.h"

#include <span>
#include <vector>

#include "headwise/train/checkpoints/crc32c.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "checkpoint";

std::string hex(std::uint32_t x) {
  std::string out(8, '0');
  for (int i = 7; i >= 0; --i, x >>= 4) out[static_cast<std::size_t>(i)] = "0123456789abcdef"[x & 15];
  return out;
}

std::string crc_of(std::span<const std::byte> bytes) {
  Crc32c crc;
  crc.add(bytes);
  return hex(crc.value());
}
std::string crc_of(const ConstView& v) {
  return crc_of(
      {static_cast<const std::byte*>(v.data), static_cast<std::size_t>(v.count() * size_of(v.dtype))});
}

/// Of every key and text but its own, in the order of the file; the tensors' own CRCs are among them, and
/// their names, dtypes and sizes, so nothing of a file is outside it. This rule holds for every version.
std::string manifest_crc(const Metadata& metadata, const std::vector<std::string>& tensors) {
  Crc32c crc;
  for (const auto& [key, value] : metadata) {
    if (key == kManifestCrc) continue;
    crc.add(text(key.size(), ' ', value.size(), ' '));
    crc.add(key);
    crc.add(value);
  }
  for (const std::string& t : tensors) crc.add(t);
  return hex(crc.value());
}

std::string tensor_line(std::string_view name, DType dtype, int rank, const Index* size) {
  std::string out = text(name.size(), ' ', name, ' ', dtype);
  for (int axis = 0; axis < rank; ++axis) out += text(' ', size[axis]);
  return out + ';';
}

}  // namespace

const std::string& checkpoint_word(const Safetensors& file, std::string_view key) {
  const std::string* value = file.metadata(key);
  require(value != nullptr, ErrorKind::bad_argument, kOp, file.path(), ": has no \"", key,
          "\"; it is no checkpoint");
  return *value;
}

void check_checkpoint_manifest(const Safetensors& file) {
  std::vector<std::string> lines;
  for (const SafetensorsEntry& e : file.entries()) {
    const auto dtype = e.as_dtype();
    require(dtype.has_value(), ErrorKind::bad_argument, kOp, file.path(), ": holds a tensor of ", e.dtype,
            "; it is no checkpoint");
    lines.push_back(tensor_line(e.name, *dtype, e.rank, e.size));
  }
  require(checkpoint_word(file, kManifestCrc) == manifest_crc(file.metadata(), lines),
          ErrorKind::bad_argument, kOp, file.path(), ": its manifest does not match its CRC; it is damaged");
}

void check_checkpoint_tensors(const Safetensors& file) {
  for (const SafetensorsEntry& e : file.entries())
    require(checkpoint_word(file, text("crc32c:", e.name)) == crc_of(file.bytes(e.name)),
            ErrorKind::bad_argument, kOp, file.path(), ": \"", e.name,
            "\" does not match its CRC; it is damaged");
}

void write_checkpoint_file(const std::string& path, std::span<const NamedTensor> tensors, Metadata metadata) {
  std::vector<std::string> lines;
  for (const NamedTensor& t : tensors) {
    metadata.emplace_back(text("crc32c:", t.name), crc_of(t.value));
    lines.push_back(tensor_line(t.name, t.value.dtype, t.value.rank, t.value.size));
  }
  metadata.emplace_back(kManifestCrc, manifest_crc(metadata, lines));
  write_safetensors(path, tensors, metadata);
}

}  // namespace headwise
