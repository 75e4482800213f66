// Settings of a head as text, `heads=8,kv_heads=2`: written and read through the fields it names.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/heads/head.h"

#pragma GCC visibility push(default)
namespace headwise {

template <class H, class F>
void each_field(F&& f) {
  H::fields.each(f);
}

std::string value_text(Index x);
std::string value_text(bool x);
std::string value_text(double x);  // the shortest text that reads back as x
template <class E>
requires std::is_enum_v<E> std::string value_text(E x) {
  return std::string(names_of(E{})[static_cast<std::size_t>(x)]);
}

/// So small that widths, which are products of two settings, and sums of them fit an Index.
inline constexpr Index kMostSetting = Index{1} << 20;
/// False when `word` is no such value.
bool read_value(std::string_view word, Index& x);
bool read_value(std::string_view word, double& x);
bool read_value(std::string_view word, bool& x);
template <class E>
requires std::is_enum_v<E>
bool read_value(std::string_view word, E& x) {
  const auto names = names_of(E{});
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == word) return x = static_cast<E>(i), true;
  return false;
}

std::string kind_text(Index);
std::string kind_text(double);
std::string kind_text(bool);
template <class E>
requires std::is_enum_v<E> std::string kind_text(E) {
  std::string s = "one of";
  for (const std::string_view n : names_of(E{})) s += text(s.size() > 6 ? ", " : " ", n);
  return s;
}

/// "heads, kv_heads, dim"
template <class H>
std::string field_names() {
  std::string s;
  each_field<H>([&](const auto& f) { s += text(s.empty() ? "" : ", ", f.name); });
  return s;
}

/// Sets one field from its word; false when there is no field of that name.
template <class H>
bool set_field(typename H::Config& config, std::string_view key, std::string_view word) {
  bool found = false;
  each_field<H>([&](const auto& f) {
    if (f.name != key) return;
    found = true;
    require(read_value(word, config.*f.member), ErrorKind::bad_argument, H::name, key, " is \"", word,
            "\" but must be ", kind_text(config.*f.member));
  });
  return found;
}

/// `heads=8,dim=64` onto the defaults; empty text: the defaults.
template <class H>
typename H::Config parse_config(std::string_view settings) {
  typename H::Config config;
  std::string seen = ",";
  while (!settings.empty()) {
    const std::string_view one = settings.substr(0, settings.find(','));
    settings.remove_prefix(one.size() + (one.size() < settings.size()));
    const std::size_t equals = one.find('=');
    require(equals != one.npos, ErrorKind::bad_argument, H::name, "got \"", one,
            "\"; settings are written key=value and joined by commas");
    const std::string_view key = one.substr(0, equals);
    require(set_field<H>(config, key, one.substr(equals + 1)), ErrorKind::bad_argument, H::name,
            "has no setting \"", key, "\"; it has ", field_names<H>());
    require(seen.find(text(',', key, ',')) == seen.npos, ErrorKind::bad_argument, H::name, key,
            " is set twice; set it once");
    seen += text(key, ',');
  }
  return config;
}

/// `gqa:heads=8,kv_heads=2,dim=64`, every field in order that the head says; parse_config reads what stands
/// behind the colon.
template <class H>
std::string config_text(const typename H::Config& config) {
  std::string s(H::name);
  char before = ':';
  each_field<H>([&](const auto& f) {
    if constexpr (requires { H::says(config, f.name); })
      if (!H::says(config, f.name)) return;
    s += text(before, f.name, '=', value_text(config.*f.member));
    before = ',';
  });
  return s;
}

}  // namespace headwise
#pragma GCC visibility pop
