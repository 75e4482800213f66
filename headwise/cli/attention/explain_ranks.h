// explain --ranks: what a layer sends when its heads are cut over ranks, and how long a link takes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "headwise/heads/head.h"

namespace headwise::cli {

struct RankQuestion {
  int ranks = 0;  // 0: not asked
  std::string order = "one_rank";
  Index feed_dim = 0;
  double link = 3.1;  // GB/s of one direction
};
void add_rank_question(CLI::App& word, RankQuestion& question);

struct CutLayer {
  std::string heads = {};
  Place place = {};
  Index tokens = 0, out_dim = 0;
  DType dtype = DType::f32;  // of rows
  bool backward = false;
};
/// Lines for people, and one JSON object. Heads that cannot be cut so are refused in words.
std::string ranks_text(const RankQuestion& question, const CutLayer& layer);
std::string ranks_json(const RankQuestion& question, const CutLayer& layer);

}  // namespace headwise::cli
