// Shared by the files of cpu/decode: one run of heads of a sequence, and its way through one split of keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/forward/panel.h"

namespace headwise::cpu::forward {

/// One run of heads of one sequence, its rows from row0 on as far as a task takes them: where they and their
/// keys lie.
struct Heads {
  SequenceLocation at;
  Index head0, rows, row0, panels;
};
Heads heads_of(const OnlineRun& run, Index sequence, Index head0, Index row0 = 0);
void fill_panels(const OnlineRun& run, const Heads& h, Scratch& s);
/// The core of a run: with keys in the lanes where the class has that way and the rows are few. Its panel is
/// narrow, its bits are the same.
const Core& decode_core(const AttentionProblem& p, const TileKernels& kernels);
/// few_scores writes the lanes of queries alone; the others start as 0.
void clear_scores(const OnlineRun& run, Scratch& s);
/// All panels against the keys of one split.
void attend_split(const OnlineRun& run, const Heads& h, Scratch& s, Index split);

}  // namespace headwise::cpu::forward
