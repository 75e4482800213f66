#include "headwise/distributed/rank_costs.h"

#include "headwise/base/error.h"
#include "headwise/distributed/small_sum.h"

namespace headwise {

std::vector<RankCost> rank_costs(const RankShape& s, Order order, bool backward) {
  require(s.ranks >= 1 && s.ranks <= 1 << 16 && s.tokens >= 0 && s.model_dim >= 0, ErrorKind::bad_argument,
          "ranks", "got ", s.ranks, " ranks and ", s.tokens, " tokens of ", s.model_dim,
          " columns; give 1 to 65536 ranks, and 0 or more of the others");
  const Index others = s.ranks - 1;
  const auto gathered = [&](Index columns) { return s.tokens * (columns / s.ranks) * s.width * others; };
  const Index wide = max_of(s.width, 4), numbers = s.tokens * s.model_dim;
  const Index sum =
      order == Order::engine ? 2 * gathered(s.model_dim) : rounded_sum_bytes(numbers, wide, s.width, s.ranks);
  const bool small = order == Order::tree && numbers * wide <= kSmallSum;
  const char* how = order == Order::engine ? "the engine's sum"
                    : small                ? "every partial to all, added as a tree"
                                           : "pieces to their owners, added as a tree, sums to all";
  std::vector<RankCost> all;
  const auto add_map = [&](const char* name, Index columns) {
    if (order == Order::one_rank)
      all.push_back(
          {name, "what it reads to all, own columns to all", gathered(columns) + gathered(s.model_dim), 2});
    else
      all.push_back({name, how, sum, small ? 1 : 2});
  };
  if (s.ranks == 1) return all;
  add_map("W_O", s.out_dim);
  if (s.feed_dim > 0) add_map("W_2", s.feed_dim);
  if (!backward || order == Order::one_rank) return all;
  if (s.feed_dim > 0) all.push_back({"dx of W_1", how, sum, small ? 1 : 2});
  all.push_back({"dx of W_Q, W_K, W_V", how, sum, small ? 1 : 2});
  return all;
}

double predicted_seconds(const std::vector<RankCost>& costs, const RankLink& link) {
  double seconds = 0;
  for (const RankCost& c : costs)
    seconds += static_cast<double>(c.bytes) / link.bytes_per_second + c.exchanges * link.seconds;
  return seconds;
}

}  // namespace headwise
