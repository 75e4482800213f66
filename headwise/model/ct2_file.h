// Ct2File: a model.bin of CTranslate2, its variables and aliases, opened without trust in any count of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/view.h"
#include "headwise/model/mapping.h"

#pragma GCC visibility push(default)
namespace headwise {

struct Ct2Variable {
  static constexpr int kMostSizes = 4;
  std::string name;
  int rank = 0;  // 0: one number
  Index size[kMostSizes] = {};
  int type = 0;  // the file's number: 0 f32, 1 i8, 2 i16, 3 i32, 4 f16, 5 bf16
  Index numbers = 1;
  Index begin = 0, bytes = 0;  // in the file
  /// f32, f16 or bf16; none: whole numbers.
  std::optional<DType> as_float() const;
};
struct Ct2Alias {
  std::string name, of;
};

/// Everything but the numbers, checked against the bytes.
struct Ct2Header {
  std::string spec;  // what kind of model: "WhisperSpec"
  std::vector<Ct2Variable> variables;
  std::vector<Ct2Alias> aliases;
};
/// `path` is only named in sentences. Variables lie inside the bytes; an alias names one of them.
Ct2Header parse_ct2(std::span<const std::byte> bytes, std::string_view path);
/// Whether bytes begin like such a file: a version, then the name of a kind of model.
bool begins_like_ct2(std::span<const std::byte> bytes);

/// An open file of binary version 6.
class Ct2File {
 public:
  explicit Ct2File(const std::string& path);
  const std::string& path() const noexcept { return path_; }
  const Ct2Header& header() const noexcept { return header_; }
  /// By its name or an alias; null where there is none.
  const Ct2Variable* find(std::string_view name) const;
  /// A whole number without sizes; `otherwise` where it is absent. Refused: another one.
  Index integer(std::string_view name, std::optional<Index> otherwise = {}) const;
  std::span<const std::byte> bytes_of(const Ct2Variable& v) const;
  bool intact() const noexcept { return map_.intact(); }

 private:
  Ct2File(const std::string& path, const File& file);
  std::string path_;
  Mapping map_;
  Ct2Header header_;
};

}  // namespace headwise
#pragma GCC visibility pop
