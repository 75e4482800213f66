// ArrayFile: named arrays of a .npy, .npz or .safetensors file, mapped, one number or one word at a time.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

enum class ElementKind : std::uint8_t { f16, bf16, f32, f64, words, bytes };

/// One array as it lies in the file: row-major, little-endian.
struct FileArray {
  std::string name;
  ElementKind kind = ElementKind::f32;
  std::vector<Index> sizes;
  Index element_bytes = 4;  // words: four bytes a character; bytes: one
  const std::byte* data = nullptr;

  Index count() const;
  float number(Index i) const;
  /// Element i of `words` or `bytes` as UTF-8.
  std::string word(Index i) const;
  /// These numbers leave memory until they are asked for again: a file may be larger than memory.
  void release(Index first, Index numbers) const;
  bool is_text() const { return kind == ElementKind::words || kind == ElementKind::bytes; }
};

/// Arrays are the file's own pages and live as long as this.
class ArrayFile {
 public:
  explicit ArrayFile(const std::string& path, std::string_view op);
  ArrayFile(ArrayFile&&) noexcept;
  ~ArrayFile();

  const std::vector<FileArray>& arrays() const;
  /// Null when there is none.
  const FileArray* find(std::string_view name) const;
  const std::string& path() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headwise
#pragma GCC visibility pop
