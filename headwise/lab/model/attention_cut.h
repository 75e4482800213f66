// cut_attention: what is left of one attention's parameters when some of its heads go, and its new settings.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <string>
#include <vector>

#include "headwise/base/param.h"
#include "headwise/layers/multi_head/multi_head.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Which entries of one axis of a parameter stay, in their new order; an entry may stand twice.
struct KeptEntries {
  int axis = 0;
  std::vector<Index> of = {};
};

struct AttentionCut {
  std::string heads = {};                   // `gqa:heads=3,kv_heads=1,dim=64`
  std::map<std::string, KeptEntries> kept;  // by full name: stack.layers.0.attention.q.weight
};

/// The attention with the heads of `order` alone, in that order: it gives what the whole one gives with the
/// gates of all others at 0. A kv head goes with the last query head that reads it. Where the groups that are
/// left have different sizes, kv heads are repeated until each serves equally many of them. Kinds in which a
/// head that is off still acts on others (dcmha, moh, overlapped, ...) are refused in words.
/// `params` and `name` say where the attention's parameters are.
AttentionCut cut_attention(const MultiHead& attention, const std::vector<Index>& order,
                           const ParamSet& params, std::string_view name);

/// The parameter's entries that stay, as a tensor of its dtype.
Tensor keep_entries(const AnyView& from, const KeptEntries& kept);

/// The value of a setting in `name:key=value,...`, the first one of that key; and the text with another.
Index setting_in(const std::string& settings, const std::string& key, Index otherwise);
std::string with_setting(std::string settings, const std::string& key, Index value);

}  // namespace headwise
#pragma GCC visibility pop
