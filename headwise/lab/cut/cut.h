// cut: heads ranked by how much a model needs them, a plan of those that go, and the smaller model.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <vector>

#include "headwise/lab/cut/head_trial.h"

#pragma GCC visibility push(default)
namespace headwise {

/// michel: the gradient's score. off: the loss when the head alone is off. greedy: the head whose loss is
/// least is taken out, then all others are ranked anew.
enum class HeadRank : std::uint8_t { michel, off, greedy };
inline constexpr std::string_view kRankNames[] = {"michel", "off", "greedy"};

struct RankOptions {
  HeadRank rank = HeadRank::off;
  MichelSum sum = MichelSum::text;
  bool by_layer = true;             // michel: scores divided by their layer's length
  Index least_in_layer = 1;         // heads every layer keeps
  std::vector<HeadName> keep = {};  // heads that never go
  /// Called with the share done, 0 to 1.
  std::function<void(double)> progress = {};
};

/// Heads in the order in which they go, the least needed first; each layer keeps its least, so these are
/// fewer than all. `most`: as many at most.
std::vector<HeadName> rank_heads(CutTrial& trial, const RankOptions& options, Index most);

/// One point of Michel's curve.
struct CutPoint {
  Index left = 0;
  double loss = 0;
};

struct ChosenCut {
  HeadPlan plan = HeadPlan();
  double loss_before = 0, loss_after = 0;
  std::vector<CutPoint> curve = {};  // down to what was chosen, and one more where a limit stopped it
  std::vector<HeadName> gone = {};   // in the order in which they went; none of a plan that was given
};

/// Takes heads out in `order` until `keep` are left. With keep 0, as long as the loss stays within (1 +
/// within) times that of the whole model; an encoder's loss begins at 0, so it stays below `within`.
ChosenCut choose_cut(CutTrial& trial, const std::vector<HeadName>& order, Index keep, double within);

/// The model without the heads of the plan: it answers as the whole one does with their gates at 0.
EditedModel cut_heads(const LabModel& model, const HeadPlan& plan);

/// The heads that learnt gates have shut; the model must have such gates.
HeadPlan shut_heads(const LabModel& model);
/// Refuses, before anything is learnt, a model of which no head could be cut.
void require_cuttable(const LabModel& model, std::string_view op);

}  // namespace headwise
#pragma GCC visibility pop
