// Samples: small settings of every head of the list, drawn from its fields, and how layers are called.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "headwise/heads/config.h"
#include "headwise/heads/list.inc"
#include "tests/heads/layer.h"

namespace headwise::test {

/// A head at few heads of a small dim: H::small where it has one, else the defaults with heads and dim set.
template <Head H>
typename H::Config small_config(Index heads, Index dim) {
  if constexpr (requires { H::small(heads, dim); }) {
    return H::small(heads, dim);
  } else {
    typename H::Config c;
    set_field<H>(c, "heads", text(heads));
    set_field<H>(c, "dim", text(dim));
    return c;
  }
}

/// The small config, then one for every other value of each bool and enum field, and one with groups where
/// the head has kv_heads, with wider values where it has value_dim. A head file brings its samples by being
/// there.
template <Head H>
std::vector<std::string> samples() {
  using Config = typename H::Config;
  const Config small = small_config<H>(4, 3);
  std::vector<std::string> all = {config_text<H>(small)};
  const auto with = [&](std::string_view key, std::string_view word) {
    Config c = small;
    set_field<H>(c, key, word);
    if constexpr (requires { H::is_smooth(c); })
      if (!H::is_smooth(c)) return;  // its gradients are no slopes, by intention
    if (const std::string s = config_text<H>(c); s != all.front()) all.push_back(s);
  };
  each_field<H>([&](const auto& f) {
    using T = typename std::remove_cvref_t<decltype(f)>::Value;
    if constexpr (std::is_same_v<T, bool>) with(f.name, "true"), with(f.name, "false");
    if constexpr (std::is_enum_v<T>)
      for (const std::string_view word : names_of(T{})) with(f.name, word);
    if (f.name == "kv_heads") with(f.name, "2"), with(f.name, "4");
    if (f.name == "value_dim") with(f.name, "5");
  });
  return all;
}

/// The first sample of a head meets all of them, the others the first three.
inline std::vector<HeadSetting> head_settings(bool first) {
  std::vector<HeadSetting> all = {
      {.name = "causal", .mask = Mask::causal()},
      {.name = "ragged", .mask = Mask::causal(), .q_lengths = {3, 0, 4}, .kv_lengths = {3, 0, 4}},
      {.name = "cross", .q_tokens = 3, .kv_tokens = 6, .cross = true},
      {.name = "plain"},
      {.name = "window", .mask = Mask::causal() & Mask::window(2, 0)},
      {.name = "dropout", .mask = Mask::causal(), .dropout = 0.25}};
  if (!first) all.resize(3);
  return all;
}

/// Parameters moved off their start, where zeros and ones would hide a wrong gradient.
inline void disturb(ParamSet& params, double size) {
  std::uint64_t seed = 11;
  for (Param& p : params.all()) {
    Tensor noise = random_normal({p.value.count()}, DType::f64, seed++);
    for (Index i = 0; i < p.value.count(); ++i)
      store_double(p.value.data, p.value.dtype, i,
                   load_double(p.value.data, p.value.dtype, i) +
                       size * noise.values<double>()[static_cast<std::size_t>(i)]);
  }
}
inline void copy_values(const ParamSet& from, ParamSet& to) {
  for (const Param& p : from.all()) {
    const AnyView v = to.find(p.name).value();
    for (Index i = 0; i < v.count(); ++i)
      store_double(v.data, v.dtype, i, load_double(p.value.data, p.value.dtype, i));
  }
}

}  // namespace headwise::test
