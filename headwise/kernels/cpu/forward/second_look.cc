#include <algorithm>
#include <cmath>

#include "headwise/kernels/cpu/forward/panel.h"

namespace headwise::cpu::forward {
namespace {

/// Weights of one panel against one packed granule, from known tops and sums: S becomes p. False: nothing is
/// open.
bool known_tile(const OnlineRun& run, const SequenceLocation& at, Scratch& s, Panel& panel,
                const void* packed, const Rows& keys, TileKeys& t) {
  const Core& core = run.core;
  t.kind = tile_kind(run, at, panel, t.key0, t.to);
  if (t.kind == TileKind::empty) return false;
  if (t.kind == TileKind::mixed) {
    open_bits(run, at, panel, s, t);
    if (t.from == t.to) return false;
  }
  const Index key0 = t.key0, from = t.from, to = t.to;
  for (int i = 0; i < core.panel; ++i) panel.q_distance[i] = static_cast<float>(panel.position[i] - key0);
  tile_scores(run, panel, packed, keys, t, s.s);
  if (run.scaled_first) apply_terms(run, at, panel, s, t);
  if (t.kind == TileKind::mixed) core.passes.select(s.s, from, to, s.open);
  float *top = s.lane_f[0], *weight = s.lane_f[1];
  const Index q = run.problem.ragged ? run.problem.q_total : run.problem.q_tokens;
  for (int i = 0; i < core.panel; ++i) {
    top[i] = weight[i] = 0;
    if (i >= panel.count) continue;
    const Index row =
        (at.tensor_batch * run.problem.heads.q.heads + panel.head[i]) * q + at.q_row + panel.token[i];
    top[i] = run.tops[2 * row], weight[i] = run.tops[2 * row + 1];
  }
  core.passes.place_weights(s.s, from, to, panel.factor, top, weight, s.s);
  // Idle lanes weigh nothing, whatever a slope made of them: 0 times infinity would be NaN.
  for (Index k = from; panel.count < core.panel && k < to; ++k)
    std::fill(s.s + k * core.panel + panel.count, s.s + (k + 1) * core.panel, 0.0f);
  return true;
}

/// The keys of a head, those in pages put together in part `part` of the scratch.
Rows granule_keys(const OnlineRun& run, const SequenceLocation& at, Index head, const KeyRange& keys,
                  const Scratch& s, Index part) {
  if (run.problem.keys != KeyForm::paged) return key_rows(run, at, head);
  PagedRoom room = s.paged_keys;
  const Index first = part * run.core.granule;
  room.numbers += first * run.problem.heads.k.dim * size_of(run.problem.kv_dtype());
  if (room.scales) room.scales += first;
  return paged_rows(run, at, key_pool(run, head), keys, &room);
}

/// Sum over queries of the weight that kColumnGranules granules of keys of one head receive; lanes are added
/// last, in order. Several granules a task: a panel of queries is packed once for all of them.
void sum_columns(const OnlineRun& run, Scratch& s, Index sequence, Index head, Index key0) {
  const AttentionProblem& p = run.problem;
  const Core& core = run.core;
  const SequenceLocation at = place_of(p, run.args, sequence);
  const Index last = key0 + kColumnGranules * core.granule, end = std::min(at.kv_tokens, last),
              size = core.panel;
  const AnyView& out = run.args.probe.column_sums;
  const auto sum_of = [&](Index k) -> float& {
    return static_cast<float*>(
        out.data)[at.tensor_batch * out.step[0] + head * out.step[1] + (at.kv_row + k) * out.step[2]];
  };
  if (p.keys == KeyForm::paged)  // sequences in pages may be shorter than the tensor
    for (Index k = std::max(end, key0); k < std::min(p.kv_tokens, last); ++k) sum_of(k) = 0;
  if (key0 >= end) return;
  const auto keys_at = [&](Index k) { return std::min<Index>(core.granule, end - k); };
  Rows keys[kColumnGranules];
  for (Index k = key0; k < end; k += core.granule)
    keys[(k - key0) / core.granule] =
        granule_keys(run, at, head, {k, keys_at(k)}, s, (k - key0) / core.granule);
  const auto rows_at = [&](Index k) -> const Rows& { return keys[(k - key0) / core.granule]; };
  const auto room = [&](Index k) {
    return static_cast<std::byte*>(s.keys) +
           (k - key0) / core.granule * core.products.key_bytes(p.heads.q.dim);
  };
  const auto packed = [&](Index k) -> const void* {
    return run.keys_ready ? keys_for_scores(run, rows_at(k), k, 0, nullptr) : room(k);
  };
  for (Index k = key0; k < end; k += core.granule) keys_for_scores(run, rows_at(k), k, keys_at(k), room(k));
  float* lanes = s.column_lanes;
  std::fill_n(lanes, (end - key0) * size, 0.0f);
  std::fill_n(s.ones, size, 1.0f);
  Panel& panel = s.panels[0];
  for (Index row = 0; row < at.q_tokens; row += size) {
    fill_panel(run, at, {head, row, at.q_tokens}, s, panel);
    for (Index k = key0; k < end; k += core.granule) {
      TileKeys t{.key0 = k, .from = 0, .to = keys_at(k)};
      if (!known_tile(run, at, s, panel, packed(k), rows_at(k), t)) continue;
      core.passes.join(lanes + (k - key0 + t.from) * size, s.s + t.from * size, t.to - t.from, s.ones,
                       s.ones);
    }
  }
  for (Index k = key0; k < end; ++k) {
    float sum = 0;
    for (Index lane = 0; lane < size; ++lane) sum += lanes[(k - key0) * size + lane];
    sum_of(k) = sum;
  }
}

/// Where no logit of a head is far from 0, a score that is off by a rounding changes its weight by no more
/// than another rounding would.
bool near_is_enough(const OnlineRun& run, Index sequence, Index head) {
  const AttentionProblem& p = run.problem;
  if (run.scaled_first || p.heads.terms.rows) return false;
  const SequenceLocation at = place_of(p, run.args, sequence);
  const float* top =
      run.tops +
      2 * ((at.tensor_batch * p.heads.q.heads + head) * (p.ragged ? p.q_total : p.q_tokens) + at.q_row);
  const float scale = scale_of(run, head);
  for (Index row = 0; row < at.q_tokens; ++row)
    if (!(std::fabs(top[2 * row] * scale) <= 64.0f)) return false;
  return true;
}

struct Pick {
  Index sequence, head, row;
};
Pick pick_at(const AnyView& picks, Index i) {
  const auto number = [&](Index column) {
    return static_cast<const Index*>(picks.data)[i * picks.step[0] + column * picks.step[1]];
  };
  return {number(0), number(1), number(2)};
}

/// Weights of the picks from `first` on, as many as stand side by side in one panel: neighbouring rows of a
/// head share its packed keys. Returns the pick behind them.
Index write_picked(const OnlineRun& run, Scratch& s, Index first, Index end) {
  const AttentionProblem& p = run.problem;
  const AnyView &picks = run.args.probe.picks, &out = run.args.probe.picked_weights;
  const Pick pick = pick_at(picks, first);
  const SequenceLocation at = place_of(p, run.args, pick.sequence);
  const auto follows = [&](Index count) {
    const Pick next = pick_at(picks, first + count);
    return next.sequence == pick.sequence && next.head == pick.head && next.row == pick.row + count &&
           next.row < at.q_tokens;
  };
  Index count = 1;
  while (count < run.core.panel && first + count < end && follows(count)) ++count;
  float* rows = static_cast<float*>(out.data) + first * out.step[0];
  for (Index i = 0; i < count; ++i)
    for (Index k = 0; k < out.size[1]; ++k) rows[i * out.step[0] + k * out.step[1]] = 0.0f;
  if (pick.row >= at.q_tokens) return first + 1;
  Panel& panel = s.panels[0];
  fill_panel(run, at, {pick.head, pick.row, pick.row + count}, s, panel);
  for (Index key0 = 0; key0 < at.kv_tokens; key0 += run.core.granule) {
    const Index n = std::min<Index>(run.core.granule, at.kv_tokens - key0);
    const Rows keys = granule_keys(run, at, pick.head, {key0, n}, s, 0);
    const void* packed = keys_for_scores(run, keys, key0, n, s.keys);
    TileKeys t{.key0 = key0, .from = 0, .to = n};
    if (!known_tile(run, at, s, panel, packed, keys, t)) continue;
    for (Index i = 0; i < count; ++i)
      for (Index k = t.from; k < t.to; ++k)
        rows[i * out.step[0] + (key0 + k) * out.step[1]] = s.s[k * run.core.panel + i];
  }
  return first + count;
}

}  // namespace

void second_look(const OnlineRun& run, std::span<std::byte> workspace, Index worker_bytes,
                 ThreadPool& pool) noexcept {
  const AttentionProblem& p = run.problem;
  const auto scratch_of = [&](const OnlineRun& own, int worker) {
    const auto bytes = static_cast<std::size_t>(worker_bytes);
    Arena arena(workspace.subspan(static_cast<std::size_t>(worker) * bytes, bytes));
    return book(p, own.core, own.task_rows, arena);
  };
  if (p.probe.columns) {
    OnlineRun near = run_of(p, run.args, run.kernels, columns_core(p, run.kernels), run.task_rows);
    near.tops = run.tops;
    const Index keys = kColumnGranules * run.core.granule, blocks = ceil_div(p.kv_tokens, keys),
                heads = p.heads.q.heads;
    const auto body = [&](Index task, int worker) {
      const Index sequence = task / (heads * blocks), head = task / blocks % heads;
      const OnlineRun& own = near_is_enough(run, sequence, head) ? near : run;
      Scratch s = scratch_of(own, worker);
      own.core.begin();
      sum_columns(own, s, sequence, head, task % blocks * keys);
      own.core.end();
    };
    pool.parallel_for(p.batch * heads * blocks, body);
  }
  const Index each = 4 * run.core.panel;  // many picks share the booking of a scratch
  const auto body = [&](Index task, int worker) {
    Scratch s = scratch_of(run, worker);
    run.core.begin();
    const Index end = min_of((task + 1) * each, p.probe.picked);
    for (Index i = task * each; i < end;) i = write_picked(run, s, i, end);
    run.core.end();
  };
  pool.parallel_for(ceil_div(p.probe.picked, each), body);
}

}  // namespace headwise::cpu::forward
