// Gguf: a GGUF model file, its settings and tensors, opened without trust in any count or offset of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/buffer.h"
#include "headwise/model/gguf/blocks.h"

#pragma GCC visibility push(default)
namespace headwise {

struct GgufTensor {
  static constexpr int kMostSizes = 4;
  std::string name;
  const GgufFormat* format = nullptr;
  int rank = 0;
  Index size[kMostSizes] = {};  // outermost first: [out in] for a matrix
  Index numbers = 0;
  Index begin = 0, bytes = 0;  // in the file
};

/// One setting. Arrays are kept as a place in the file and read when asked for.
struct GgufSetting {
  std::string key;
  std::uint32_t type = 0;      // the file's number: 4 u32, 6 f32, 7 bool, 8 string, 9 array, ...
  std::uint32_t element = 0;   // array: type of its elements
  Index begin = 0, count = 0;  // array: place and number of its elements; string: place and bytes
  double number = 0;           // integers below 2^53 and floats; bool: 0 or 1
};

/// What stands before the tensors' data, checked against the bytes: every count, length, type and offset.
struct GgufHeader {
  std::vector<GgufSetting> settings;  // in the file's order
  std::vector<GgufTensor> tensors;
};
/// `path` is only named in sentences. Tensors lie inside the bytes, aligned and apart from each other.
GgufHeader parse_gguf(std::span<const std::byte> bytes, std::string_view path);

/// An open file, mapped; little-endian, versions 2 and 3.
class Gguf {
 public:
  explicit Gguf(const std::string& path);
  Gguf(Gguf&&) noexcept;
  Gguf& operator=(Gguf&&) noexcept;
  ~Gguf();

  const std::string& path() const noexcept;
  const std::vector<GgufTensor>& tensors() const noexcept;
  bool has(std::string_view key) const;
  /// Getters refuse a key of another type or out of range by name; without `otherwise`, an absent one too.
  Index integer(std::string_view key, Index low, Index high, std::optional<Index> otherwise = {}) const;
  double number(std::string_view key, double low, double high, std::optional<double> otherwise = {}) const;
  bool boolean(std::string_view key, std::optional<bool> otherwise = {}) const;
  std::string word(std::string_view key, std::optional<std::string> otherwise = {}) const;
  /// Arrays; absent: empty.
  std::vector<std::string> words(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;

  /// Null when there is none.
  const GgufTensor* find(std::string_view name) const;
  /// Rows [first, first + rows) of a tensor seen as [numbers / last size, last size], into `to`, as f32.
  void read_rows(const GgufTensor& tensor, Index first, Index rows, float* to) const;
  /// The same rows in the bytes of the tensor's format.
  std::span<const std::byte> rows(const GgufTensor& tensor, Index first, Index rows) const;
  /// False once a mapped page was gone when it was read.
  bool intact() const noexcept;

 private:
  struct State;
  const GgufSetting* setting(std::string_view key, bool may_be_absent) const;
  [[noreturn]] void refuse(std::string_view key, std::string_view why) const;
  std::unique_ptr<State> state_;
};

}  // namespace headwise
#pragma GCC visibility pop
