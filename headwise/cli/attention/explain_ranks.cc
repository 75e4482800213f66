#include "headwise/cli/attention/explain_ranks.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "headwise/cli/args/args.h"
#include "headwise/distributed/rank_costs.h"
#include "headwise/layers/multi_head/cut_head.h"

namespace headwise::cli {
namespace {

struct Answer {
  Order order = Order::one_rank;
  HeadCut cut;
  std::vector<RankCost> costs;
  RankLink link;
};

Answer answer(const RankQuestion& q, const CutLayer& layer) {
  require(q.link > 0, ErrorKind::bad_argument, "explain", "--link is ", q.link, "; give GB/s above 0");
  Answer a{.order = order_of(q.order), .cut = {}, .costs = {}, .link = {.bytes_per_second = 1e9 * q.link}};
  a.cut = cut_head(layer.heads, layer.place, q.ranks, a.order);
  require(
      a.cut.by != CutBy::sequences, ErrorKind::unsupported, "explain", layer.heads,
      " is cut by sequences over ranks, and the model of what travels knows cuts by heads alone; leave out "
      "--ranks");
  require(a.cut.by == CutBy::heads || !layer.backward, ErrorKind::unsupported, "explain", layer.heads,
          " sums what its heads share over ranks, which the model of what travels does not count yet; leave "
          "out --backward");
  a.costs = rank_costs({.tokens = layer.tokens,
                        .model_dim = layer.place.model_dim,
                        .out_dim = layer.out_dim,
                        .feed_dim = q.feed_dim,
                        .width = size_of(layer.dtype),
                        .ranks = q.ranks},
                       a.order, layer.backward);
  return a;
}

std::string amount(Index bytes) {
  const auto n = static_cast<double>(bytes);
  return bytes >= 1000000 ? fmt::format("{:.1f} MB", n / 1e6) : fmt::format("{:.1f} kB", n / 1e3);
}

}  // namespace

void add_rank_question(CLI::App& word, RankQuestion& q) {
  word.add_option("--ranks", q.ranks, "Say what travels when the heads are cut over so many ranks")
      ->check(size_check(1, 64));
  word.add_option("--order", q.order, "With --ranks: one_rank, tree or engine")->capture_default_str();
  word.add_option("--feed-dim", q.feed_dim,
                  "With --ranks: width inside a feed-forward that is cut too; 0: none")
      ->check(size_check());
  word.add_option("--link", q.link, "With --ranks: GB/s between ranks, one direction [25 GbE]")
      ->capture_default_str();
}

std::string ranks_text(const RankQuestion& q, const CutLayer& layer) {
  const Answer a = answer(q, layer);
  std::string s = fmt::format("{:<12}tensor {}, order {}: a rank has {}\n", "ranks", q.ranks,
                              name_of(a.order), a.cut.words);
  for (const RankCost& c : a.costs)
    s += fmt::format("{:<12}{}: {}; {} from each rank, rows in {}\n", "travels", c.what, c.how,
                     amount(c.bytes), name_of(layer.dtype));
  if (a.costs.empty()) s += fmt::format("{:<12}nothing\n", "travels");
  if (layer.backward && a.order == Order::one_rank && q.ranks > 1)
    s += fmt::format("{:<12}order one_rank has no backward over ranks; learn in order tree\n", "backward");
  return s + fmt::format(
                 "{:<12}{:.3g} ms of travel at {:.3g} GB/s and {:.0f} us an exchange, by the model; not "
                 "measured\n",
                 "predicted", 1e3 * predicted_seconds(a.costs, a.link), a.link.bytes_per_second / 1e9,
                 1e6 * a.link.seconds);
}

std::string ranks_json(const RankQuestion& q, const CutLayer& layer) {
  const Answer a = answer(q, layer);
  nlohmann::ordered_json j = {
      {"tensor", q.ranks}, {"order", name_of(a.order)}, {"heads_of_a_rank", a.cut.words}};
  j["travels"] = nlohmann::ordered_json::array();
  for (const RankCost& c : a.costs)
    j["travels"].push_back(
        {{"what", c.what}, {"how", c.how}, {"bytes", c.bytes}, {"exchanges", c.exchanges}});
  j["predicted_seconds"] = predicted_seconds(a.costs, a.link);
  return j.dump();
}

}  // namespace headwise::cli
