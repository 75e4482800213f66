// route_heads: which heads work for which token (Mixture-of-Head): routing, gates, row lists, balance loss.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/view.h"
#include "headwise/spec/row_lists.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// How gates are made of router scores. s, r, a are the softmax of the logits of shared heads, of routed
/// heads and of the two stages. The gates of a shared head and of a chosen routed one are:
/// paper: a_1 s and a_2 r.
/// code: 2 a_1 shared s and 2 a_2 k r / (sum of r over the chosen), as the authors released it. Uniform
/// routing gives 1.
enum class RouteScore : std::uint8_t { code, paper };
/// paper: sum over routed heads of P_h f_h; code: that times the number of routed heads. P is the mean score
/// over tokens, f the share of tokens that chose the head.
enum class BalanceScale : std::uint8_t { code, paper };

/// Heads 0 .. shared work for every token; each token chooses `chosen` of the others. A call may choose fewer
/// than the heads were trained with.
struct RouteOptions {
  Index heads = 0, shared = 0, chosen = 0;
  RouteScore score = RouteScore::code;
  Index routed() const { return heads - shared; }
  /// Logits that one softmax of their own decides on; others are not read.
  bool weighs_shared() const { return shared > 1; }
  bool has_stages() const { return shared > 0 && chosen > 0; }
};

/// Logits in, gates and choices out; any float dtype, any steps. Ties go to the lowest head.
struct RouteArgs {
  InputView shared = {}, routed = {}, stages = {};  // [batch tokens shared], [.. routed], [.. 2]
  AnyView gate = {};                                // out: [batch tokens heads], 0 for a head not chosen
  AnyView chosen = {};                              // out: [batch tokens chosen] i64, heads, ascending
};
void route_heads(const RouteOptions& options, const RouteArgs& args, Context& ctx);

/// dgate and the forward's `chosen` in, gradients of the logits out (overwritten; empty: not wanted).
struct RouteGrads {
  AnyView dgate = {}, dshared = {}, drouted = {}, dstages = {};
};
void route_heads_backward(const RouteOptions& options, const RouteArgs& args, const RouteGrads& grads,
                          Context& ctx);

/// L = sum of P_h f_h in the named scale. The gradient flows through P alone: f is a count.
double balance_loss(const RouteOptions& options, BalanceScale scale, const InputView& routed,
                    const InputView& chosen, Context& ctx);
/// drouted += dloss * dL / drouted.
void balance_loss_backward(const RouteOptions& options, BalanceScale scale, double dloss,
                           const InputView& routed, const InputView& chosen, const AnyView& drouted,
                           Context& ctx);

/// A router without parameters, for converted models. The score of a routed head is the softmax over heads of
/// |q| / std(|q|) (std unbiased, over routed heads). Gates are 1 for shared and chosen heads and 0 for the
/// rest. q: [batch tokens heads head_dim].
void route_by_norm(const RouteOptions& options, const InputView& q, const AnyView& gate,
                   const AnyView& chosen, Context& ctx);
/// Straight through: dgate counts as the gradient of the scores. dq += its share.
void route_by_norm_backward(const RouteOptions& options, const InputView& q, const InputView& dgate,
                            const AnyView& dq, Context& ctx);

/// The lists of attention: offsets [batch * heads + 1] and index [tokens * (shared + chosen)], both i64.
/// Ragged: chosen is [1 tokens chosen] and q_offsets [batch + 1] says where sequences begin.
void list_rows(const RouteOptions& options, const InputView& chosen, const InputView& q_offsets,
               const RowLists& lists);
inline Index listed_rows(const RouteOptions& options, Index tokens) {
  return tokens * (options.shared + options.chosen);
}

}  // namespace headwise
#pragma GCC visibility pop
