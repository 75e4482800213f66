// Numbers and switches among the settings of a head: their words, read and written.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/heads/config.h"

#include <charconv>

namespace headwise {
namespace {

template <class T>
bool read_number(std::string_view word, T& x) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), x);
  return error == std::errc{} && end == word.data() + word.size();
}

}  // namespace

std::string value_text(Index x) { return text(x); }
std::string value_text(bool x) { return x ? "true" : "false"; }
std::string value_text(double x) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, x).ptr);
}

bool read_value(std::string_view word, Index& x) {
  return read_number(word, x) && x >= -kMostSetting && x <= kMostSetting;
}
bool read_value(std::string_view word, double& x) { return read_number(word, x); }
bool read_value(std::string_view word, bool& x) {
  if (word != "true" && word != "false" && word != "1" && word != "0") return false;
  x = word == "true" || word == "1";
  return true;
}

std::string kind_text(Index) { return text("an integer up to ", kMostSetting); }
std::string kind_text(double) { return "a number"; }
std::string kind_text(bool) { return "true or false"; }

}  // namespace headwise
