// Files of checkpoints: safetensors in which each tensor and the manifest carry a CRC-32C.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <charconv>
#include <string>
#include <string_view>

#include "headwise/model/safetensors.h"

namespace headwise {

inline constexpr std::string_view kManifestCrc = "headwise.manifest_crc32c";

/// The metadata with a CRC of each tensor, then of all words and sizes.
void write_checkpoint_file(const std::string& path, std::span<const NamedTensor> tensors, Metadata metadata);
/// Throws when a single bit of names, sizes and counters is not as it was written; reads no tensor.
void check_checkpoint_manifest(const Safetensors& file);
/// The same of the tensors.
void check_checkpoint_tensors(const Safetensors& file);

/// A word of its metadata, which must be there.
const std::string& checkpoint_word(const Safetensors& file, std::string_view key);
template <class T>
T checkpoint_number(const Safetensors& file, std::string_view key) {
  const std::string& value = checkpoint_word(file, key);
  T x{};
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), x);
  require(error == std::errc() && end == value.data() + value.size(), ErrorKind::bad_argument, "checkpoint",
          file.path(), ": \"", key, "\" is no whole number");
  return x;
}

}  // namespace headwise
