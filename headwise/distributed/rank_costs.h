// rank_costs: what a cut layer sends in each order, counted before it runs, and the time a link would take.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "headwise/base/index.h"
#include "headwise/distributed/order.h"

#pragma GCC visibility push(default)
namespace headwise {

/// A layer as it is cut: rows of activations and the widths of what is summed or gathered.
struct RankShape {
  Index tokens = 0, model_dim = 0;
  Index out_dim = 0;   // columns W_O reads: heads * value_dim
  Index feed_dim = 0;  // 0: attention alone
  Index width = 4;     // bytes of a number; partial sums of 16-bit rows have 4
  int ranks = 1;
};

/// One sum or gather: what one rank sends for it.
struct RankCost {
  std::string what, how;
  Index bytes = 0;
  int exchanges = 0;
};
/// In the order they happen. Backward: the sums of dx; one_rank has none. Order::engine's bytes are the
/// engine's own and not counted here: those of a ring are given.
std::vector<RankCost> rank_costs(const RankShape& shape, Order order, bool backward);

/// A link between ranks: bytes a second in one direction, and seconds an exchange takes without any.
struct RankLink {
  double bytes_per_second = 3.1e9, seconds = 15e-6;
};
double predicted_seconds(const std::vector<RankCost>& costs, const RankLink& link);

}  // namespace headwise
#pragma GCC visibility pop
