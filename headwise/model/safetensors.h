// Safetensors files: a reader that believes nothing in them, and a writer that a crash cannot tear.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/base/buffer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// What a header may ask for before it is refused.
struct SafetensorsLimits {
  Index header_bytes = Index{16} << 20;  // 100,000,000 at most: above, other readers refuse too
  Index entries = 1'000'000;
  Index name_bytes = 1024;
  Index metadata_bytes = Index{1} << 20;
};

/// One tensor of a file. `dtype` is the file's own word, one of a closed list; headwise computes with some.
struct SafetensorsEntry {
  static constexpr int kMostSizes = 8;
  std::string name;
  std::string_view dtype;
  int rank = 0;  // 0: one number
  Index size[kMostSizes] = {};
  Index begin = 0, end = 0;  // bytes after the header

  /// BOOL is u8; empty: headwise has no such dtype.
  std::optional<DType> as_dtype() const;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;  // in the order of the file

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by name, ascending
  Metadata metadata;
  Index data_begin = 0;  // where the tensors' bytes begin

  /// Null when there is none.
  const SafetensorsEntry* find(std::string_view name) const;
};

/// Bytes of the header that a file's first 8 bytes name, for a file of `file_bytes` bytes.
Index safetensors_header_bytes(std::span<const std::byte> first, Index file_bytes, std::string_view path,
                               const SafetensorsLimits& limits = {});
/// Checks everything: `text` is the header alone, `data_bytes` what follows it. Tensors must cover the data
/// from 0 to its end without hole or overlap. `path` is only named in sentences.
SafetensorsHeader parse_safetensors_header(std::string_view text, Index data_bytes, std::string_view path,
                                           const SafetensorsLimits& limits = {});

/// mapped: tensors are the file's own pages. copied: read into memory at once, for files that others may
/// change. later: a tensor is read when it is asked for, so that a header can be compared with what is wanted
/// before the file takes any memory; one thread at a time.
enum class Reading : std::uint8_t { mapped, copied, later };

struct SafetensorsOptions {
  Reading reading = Reading::mapped;
  SafetensorsLimits limits = {};
};

/// An open file. A mapped file that is cut short underneath reads as zeros from there on, and intact() says
/// so: see docs/safetensors.md.
class Safetensors {
 public:
  explicit Safetensors(const std::string& path, const SafetensorsOptions& options = {});
  Safetensors(Safetensors&&) noexcept;
  Safetensors& operator=(Safetensors&&) noexcept;
  ~Safetensors();

  const std::string& path() const noexcept;
  const std::vector<SafetensorsEntry>& entries() const noexcept;
  const Metadata& metadata() const noexcept;
  /// Null when the key is not there.
  const std::string* metadata(std::string_view key) const;
  bool has(std::string_view name) const;
  /// Throws when there is none, naming the nearest ones.
  const SafetensorsEntry& entry(std::string_view name) const;
  std::span<const std::byte> bytes(std::string_view name) const;
  /// Read-only, row-major, at most kMaxRank sizes (one number: [1]); valid while the file is open. A tensor
  /// that does not lie aligned is copied the first time.
  ConstView view(std::string_view name);
  /// Throws unless dtype and sizes of `out` are the file's.
  void check(std::string_view name, const AnyView& out) const;
  /// Copies into `out`, after that check; any steps.
  void read(std::string_view name, const AnyView& out) const;
  /// False once a mapped page was gone when it was read.
  bool intact() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A tensor to write; its view must be row-major without gaps.
struct NamedTensor {
  std::string name;
  ConstView value;
};

/// Writes beside `path`, brings it to the disk, then takes the name: whoever reads `path` sees the old file
/// or the whole new one, also after a power cut. Tensors are laid out widest dtype first, then by name.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const Metadata& metadata = {});

}  // namespace headwise
#pragma GCC visibility pop
