#include "headwise/kernels/cpu/forward/shared_keys.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "headwise/kernels/cpu/forward/decode_run.h"
#include "headwise/kernels/cpu/isa/isa.h"

namespace headwise::cpu::forward {
namespace {

constexpr float kNeverStarted = -1.0f;  // no sum of weights

/// A run whose tasks are one run of heads each, on the scratch of its workers.
struct SharedRun {
  const AttentionProblem& p;
  const TileKernels& kernels;
  const Core& core;
  Index run_heads, runs, rows;

  explicit SharedRun(const AttentionProblem& problem)
      : p(problem),
        kernels(*chosen_isa().kernels()),
        core(decode_core(problem, kernels)),
        run_heads(std::gcd(p.heads.k.group, p.heads.v.group)),
        runs(ceil_div(p.heads.q.heads, run_heads)),
        rows(round_up(run_heads * max_of(1, p.q_tokens), core.panel)) {}
  Index worker_bytes() const {
    Arena count = Arena::measuring();
    book(p, core, rows, count);
    return round_up(static_cast<Index>(count.used()), Index{Arena::kAlign});
  }
  Scratch scratch(std::span<std::byte> workspace, int worker) const {
    const auto each = static_cast<std::size_t>(worker_bytes());
    Arena own(workspace.subspan(static_cast<std::size_t>(worker) * each, each));
    return book(p, core, rows, own);
  }
  Index row_numbers() const { return p.heads.v.dim + 2; }
};

/// Rows of a panel, one lane each, as state_numbers has them; and back.
void take_state(const OnlineRun& run, const Panel& panel, float* to) {
  const Index width = run.problem.heads.v.dim, n = run.core.panel;
  for (int lane = 0; lane < panel.count; ++lane, to += width + 2) {
    for (Index d = 0; panel.started && d < width; ++d) to[d] = panel.o[d * n + lane];
    for (Index d = 0; !panel.started && d < width; ++d) to[d] = 0;
    to[width] = panel.started ? panel.top[lane] : 0.0f;
    to[width + 1] = panel.started ? panel.sum[lane] : kNeverStarted;
  }
}
bool give_state(const OnlineRun& run, const float* from, Panel& panel) {
  const Index width = run.problem.heads.v.dim, n = run.core.panel;
  if (from[width + 1] == kNeverStarted) return false;
  std::fill_n(panel.o, run.value_rows() * n, 0.0f);
  std::fill_n(panel.top, n, -INFINITY);
  std::fill_n(panel.sum, n, 0.0f);
  for (int lane = 0; lane < panel.count; ++lane, from += width + 2) {
    for (Index d = 0; d < width; ++d) panel.o[d * n + lane] = from[d];
    panel.top[lane] = from[width], panel.sum[lane] = from[width + 1];
  }
  return true;
}

/// Where the states of a panel lie in those of a split.
Index place_of_state(const SharedRun& shared, Index sequence, const Heads& h, Index panel) {
  const Index row =
      (sequence * shared.p.heads.q.heads + h.head0) * shared.p.q_tokens + panel * shared.core.panel;
  return row * shared.row_numbers();
}

}  // namespace

Index state_numbers(const AttentionProblem& p) {
  return saturated(Checked(p.batch) * Checked(p.heads.q.heads) * Checked(p.q_tokens) *
                   Checked(p.heads.v.dim + 2));
}

std::size_t shared_bytes(const AttentionProblem& p, int threads) {
  return static_cast<std::size_t>(SharedRun(p).worker_bytes() * threads);
}

void run_splits(const AttentionProblem& p, const AttentionArgs& args, const OwnSplits& own,
                std::span<std::byte> workspace, ThreadPool& pool) noexcept {
  const SharedRun shared(p);
  const OnlineRun run = run_of(p, args, shared.kernels, shared.core, shared.rows);
  const Index splits = ceil_div(max_of(0, ceil_div(p.kv_tokens, kSplit) - own.first), own.step);
  const Index tasks = p.batch * shared.runs;
  pool.parallel_for(tasks * splits, [&](Index task, int worker) noexcept {
    const Index sequence = task % tasks / shared.runs, number = task / tasks,
                split = own.first + number * own.step;
    Scratch s = shared.scratch(workspace, worker);
    const Heads h = heads_of(run, sequence, task % shared.runs * shared.run_heads);
    if (h.panels == 0) return;
    run.core.begin();
    fill_panels(run, h, s);
    clear_scores(run, s);
    if (split * kSplit < h.at.kv_tokens) attend_split(run, h, s, split);
    float* const states = own.states + number * state_numbers(p);
    for (Index i = 0; i < h.panels; ++i)
      take_state(run, s.panels[i], states + place_of_state(shared, sequence, h, i));
    run.core.end();
  });
}

void join_splits(const AttentionProblem& p, const AttentionArgs& args, std::span<const float* const> states,
                 std::span<std::byte> workspace, ThreadPool& pool) noexcept {
  const SharedRun shared(p);
  const OnlineRun run = run_of(p, args, shared.kernels, shared.core, shared.rows);
  pool.parallel_for(p.batch * shared.runs, [&](Index task, int worker) noexcept {
    const Index sequence = task / shared.runs;
    Scratch s = shared.scratch(workspace, worker);
    const Heads h = heads_of(run, sequence, task % shared.runs * shared.run_heads);
    if (h.panels == 0) return;
    run.core.begin();
    fill_panels(run, h, s);
    for (Index i = 0; i < h.panels; ++i) {
      Panel& panel = s.panels[i];
      for (const float* split : states)
        if (give_state(run, split + place_of_state(shared, sequence, h, i), panel)) fold(run, s, panel);
      finish_panel(run, h.at, s, panel);
    }
    run.core.end();
  });
}

}  // namespace headwise::cpu::forward
