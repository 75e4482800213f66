// JsonObject: one object of settings, read by key; what is missing, doubled or out of range is refused by
// name.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/error.h"
#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Values are kept as the text they are in the file and read as what they are asked for. A key whose value is
/// null counts as absent. Getters without `otherwise` refuse an absent key.
class JsonObject {
 public:
  /// `where` begins every sentence, such as "config: model/config.json".
  JsonObject(std::string_view json, std::string_view where);
  /// A file of at most `most` bytes; sentences begin with op and path.
  static JsonObject read(const std::string& path, std::string_view op, Index most = Index{1} << 20);

  bool has(std::string_view key) const;
  /// Every key in the order of the file, those with null too.
  std::vector<std::string> keys() const;

  Index integer(std::string_view key, Index low, Index high, std::optional<Index> otherwise = {}) const;
  double number(std::string_view key, double low, double high, std::optional<double> otherwise = {}) const;
  bool boolean(std::string_view key, std::optional<bool> otherwise = {}) const;
  std::string word(std::string_view key, std::optional<std::string> otherwise = {}) const;
  /// A list of strings; absent: none.
  std::vector<std::string> words(std::string_view key) const;
  /// One whole number or a list of them; absent: none.
  std::vector<Index> integers(std::string_view key) const;
  /// A list of objects; absent: none.
  std::vector<JsonObject> objects(std::string_view key) const;
  /// The value as it stands in the file; null: absent. For lists too long for getters.
  const std::string* raw(std::string_view key) const { return find(key); }
  bool is_text(std::string_view key) const { return has(key) && find(key)->starts_with('"'); }
  /// An object inside this one; absent: an empty one.
  JsonObject object(std::string_view key) const;
  bool is_object(std::string_view key) const;

  /// "where: \"key\" is value; parts".
  template <class... Parts>
  [[noreturn]] void refuse(std::string_view key, const Parts&... parts) const {
    throw Error(ErrorKind::bad_argument, text(where_, ": \"", key, "\" is ", shown(key), "; ", parts...));
  }

 private:
  struct Field {
    std::string key, value;
  };
  const std::string* find(std::string_view key) const;
  /// Null: absent and there is an otherwise.
  const std::string* need(std::string_view key, bool otherwise) const;
  /// The value as it stands in the file, cut after 80 bytes.
  std::string shown(std::string_view key) const;

  std::string where_;
  std::vector<Field> fields_;
};

}  // namespace headwise
#pragma GCC visibility pop
