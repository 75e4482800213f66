// ReportWords: what the report says, in English or Chinese; an English sentence is its own key.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/error.h"

namespace headwise {

class ReportWords {
 public:
  /// "en" or "zh".
  explicit ReportWords(std::string language);

  const std::string& language() const { return language_; }
  /// The sentence in this language, {0}, {1} ... filled with what follows. One that is not in the list stays
  /// English.
  template <class... T>
  std::string operator()(std::string_view english, const T&... values) const {
    return filled_with(english, {text(values)...});
  }
  /// A page whose [[words]] are said in this language.
  std::string page(std::string_view words) const;

 private:
  std::string filled_with(std::string_view english, const std::vector<std::string>& values) const;
  std::string language_;
};

}  // namespace headwise
