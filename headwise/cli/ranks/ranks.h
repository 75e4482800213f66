// Ranks of a command: --tensor, --context, --data and --order, the engine they start, and who prints.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "headwise/distributed/communicator.h"

namespace headwise::cli {

struct RankRequest {
  int tensor = 0, context = 0, data = 0;  // 0: not given
  std::string order = {};
  bool given() const { return tensor > 0 || context > 0 || data > 0 || !order.empty(); }
};
/// "rank 2: " on a rank above 0, for what it says of errors.
std::string rank_words();

void add_tensor_option(CLI::App& word, RankRequest& request);
void add_context_option(CLI::App& word, RankRequest& request);
void add_order_option(CLI::App& word, RankRequest& request);
void add_data_option(CLI::App& word, RankRequest& request);

/// The ranks that were started, as the request cuts them: neighbours are a tensor team, the same ranks of
/// neighbouring ones a context team, the same ranks of all of these a data team. Rank 0 alone prints from
/// here on. Without mpirun and without a request there is one rank, and nothing is cut. It stays where it was
/// made: teams point into it.
class Ranks {
 public:
  Ranks(std::string_view word, const RankRequest& request, Order otherwise);
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  bool leads() const { return world_.rank() == 0; }
  /// Layers are cut, or run as if: a tree on one rank has the bits of a tree.
  bool cuts() const { return request_.tensor > 0 || request_.context > 0 || !request_.order.empty(); }
  const Teams& teams() const { return teams_; }
  const Communicator& world() const { return world_; }
  /// Every rank was started with the same words over the same data.
  void agree(std::vector<AgreeField> fields) const;

 private:
  std::string word_;
  RankRequest request_;
  Communicator world_, tensor_, context_, data_;
  Teams teams_;
};

}  // namespace headwise::cli
