// Probes: statistics of single heads computed inside the kernel, before dropout; which, and where to.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/view.h"

namespace headwise {

/// Which stage of the scores a `scores` probe returns (numbers as ONNX's qk_matmul_output_mode).
enum class ScoreStage { none = -1, scaled = 0, softcapped = 1, biased = 2, weights = 3 };

/// What is asked: part of the plan's key.
struct ProbeSpec {
  bool rows = false;     // entropy, top weight and key, second moment, mean distance, sink mass: those given
  Index top_k = 0;       // the k heaviest keys of each row
  Index classes = 0;     // mass on each of `classes` token classes
  bool columns = false;  // weight each key receives, summed over queries
  Index picked = 0;      // number of (batch, head, query) rows whose weights are written out
  ScoreStage scores = ScoreStage::none;  // the whole matrix at a stage: `ref` only, at most 64 M entries
  bool any() const {
    return rows || top_k > 0 || classes > 0 || columns || picked > 0 || scores != ScoreStage::none;
  }
  friend constexpr bool operator==(const ProbeSpec&, const ProbeSpec&) = default;
};

/// Where it goes: every view of what is asked must be given, of `rows` one or more. A statistic whose view is
/// not given is not computed where that saves time, and written nowhere. All f32 (or f64 for an f64 problem)
/// unless said; q and kv count tokens, ragged batches put batch = 1 and all tokens there. Weights are
/// normalized over keys (and the sink), before dropout. Empty rows give 0 (sink_mass 1 where there is a
/// sink); ties go to the lowest key. With w the weights of a row and |q - k| the distance of positions:
/// entropy = -sum w ln w (the sink is one outcome), second_moment = sum w^2, mean_distance = sum w |q - k|.
/// They are not renormalized when there is a sink.
struct ProbeOut {
  // rows: [batch heads q]; top_position i64, -1 for an empty row
  AnyView entropy = {}, top_weight = {}, second_moment = {}, mean_distance = {}, sink_mass = {};
  AnyView top_position = {};
  bool any_row() const {
    return entropy.given() || top_weight.given() || second_moment.given() || mean_distance.given() ||
           sink_mass.given() || top_position.given();
  }
  // top_k: [batch heads q top_k], heaviest first; keys i64, -1 beyond the open keys
  AnyView top_keys = {}, top_weights = {};
  // classes: input [batch kv] i32, 0..classes-1, others count nowhere; [batch heads q classes]
  InputView class_of = {};
  AnyView class_mass = {};
  // columns: [batch heads kv]
  AnyView column_sums = {};
  // picked: input [picked 3] i64 rows (sequence, head, query index); [picked kv], ragged: kv of the longest
  // sequence, 0 past the own one
  InputView picks = {};
  AnyView picked_weights = {};
  // scores: [batch heads q kv], ragged: sizes of the longest sequence; closed pairs hold -inf, as weights 0
  AnyView scores = {};
};

}  // namespace headwise
