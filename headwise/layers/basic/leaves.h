// Sums over leaves: products whose summed axis is cut equally and added as a tree over leaves and ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>

#include "headwise/distributed/communicator.h"
#include "headwise/layers/basic/module.h"

#pragma GCC visibility push(default)
namespace headwise {

/// One product x [rows in] by weight [out in] of a sum. Leaf i of n takes columns [in i / n, in (i + 1) / n)
/// of x, and those of the weight. repeats: so many consecutive leaves share columns of the weight (kv heads
/// of a group).
struct LeafProduct {
  AnyView x = {}, weight = {};
  Index repeats = 1;
};

/// What follows a sum in the same pass: (sum + bias) + residual.
struct SumTail {
  AnyView bias = {}, residual = {};
};

/// y [rows out] = node(0, leaves) of all ranks, in memory of the call. A leaf is the products one after the
/// other, each one chain in ascending order. `leaves` are this rank's; with Order::engine they are one.
AnyView sum_leaves(std::span<const LeafProduct> products, Index leaves, const SumTail& tail, Call& call,
                   const Teams& teams, std::string_view what);

/// y [rows out] = x W^T + b in the bits of one rank: x [rows in_r] is gathered, this rank's rows of W [out_r
/// in] give its columns, these are gathered.
AnyView gathered_rows(const AnyView& x, const AnyView& weight, const SumTail& tail, Index out, Call& call,
                      const Teams& teams, std::string_view what);

/// Refuses what cut layers cannot do over several ranks: a backward in order one_rank, and draws of this
/// dropout of attention weights.
void check_cut(const Call& call, bool backward, double dropout, const Teams& teams);

/// out = dropout of this rank's columns x [rows columns_r] of rows of `columns`, in the draws of one rank: a
/// number is drawn by its column in the whole row.
void drop_columns(const AnyView& x, Index columns, const DropoutOptions& options, const AnyView& out,
                  Call& call, const Teams& teams);

/// The weight [out in] as its transpose.
AnyView turned(const AnyView& weight);

}  // namespace headwise
#pragma GCC visibility pop
