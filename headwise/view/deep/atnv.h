// AtnvFile: attention kept for viewing (.atnv): a JSON manifest, then blobs; mapped, read without trust.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>

#include "headwise/view/deep/qk_source.h"

#pragma GCC visibility push(default)
namespace headwise {

/// CRC-32C (Castagnoli) of bytes, after those that gave `before`.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

struct AtnvBlob {
  std::string name, dtype;  // u8, u16, u32, i32, f16, bf16, f32
  std::vector<Index> sizes;
  std::span<const std::byte> bytes;
  std::optional<std::uint32_t> crc;
};

class AtnvFile {
 public:
  /// Every size, place and name is checked; blobs of up to 1 MiB also against their checksum.
  explicit AtnvFile(const std::string& path);
  AtnvFile(AtnvFile&&) noexcept;
  ~AtnvFile();

  const std::string& manifest() const;
  const std::vector<AtnvBlob>& blobs() const;
  /// Refuses a name that is not there; `whose` says who asked.
  const AtnvBlob& blob(std::string_view name, std::string_view whose) const;
  /// Reads everything and compares it with its checksums.
  void verify() const;
  /// Queries and keys of the file, with its mask, scale and tokens.
  static QkSource open_qk(const std::string& path);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What one file is made of. Arrays are whole layers, as QkLayer says, and stay the caller's.
struct AtnvContent {
  std::string name = "attention";
  std::string mask = "full";  // full, causal, window or prefix
  Index window = 0;           // keys of a window, itself included; keys of a prefix
  float scale = 0, softcap = 0;
  Index q_start = 0;
  std::vector<QkLayer> layers;
  std::vector<std::string> tokens, key_tokens;  // key_tokens empty: the same
};

/// The file takes its name when it is whole.
void write_atnv(const std::string& path, const AtnvContent& content);

}  // namespace headwise
#pragma GCC visibility pop
