#include "headwise/kernels/cpu/mixed/forward.h"

#include <algorithm>
#include <cmath>

#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/mixed/outputs.h"

namespace headwise::cpu::mixed {
namespace {

Index block_count(const AttentionProblem& p) { return ceil_div(p.kv_tokens, kMixKeys); }

Index kept_bytes(const AttentionProblem& p, const Core& core, Index panels, Index blocks) {
  return saturated(Checked(blocks) * Checked(panels) * Checked(p.heads.normal_heads()) *
                   Checked((kMixKeys + 1) * core.panel) * Checked(4));
}

/// Queries of a task pay for packing its keys and values and, with their outputs, stay in an L2 of 2 MB;
/// fewer when that leaves threads without work. No bit depends on it.
Index panels_for(Form form, const AttentionProblem& p, const Core& core, int threads) {
  const Index wide = saturated(Checked(4) * (Checked(p.heads.q.heads) * Checked(p.heads.q.dim) +
                                             Checked(p.heads.v.heads) * Checked(p.heads.v.dim)));
  Index panels =
      std::clamp((Index{1} << 20) / max_of(wide, 1) / core.panel, Index{1}, max_of(128 / core.panel, 1));
  const Index all = ceil_div(p.q_tokens, core.panel);
  while (panels > 1 && saturated(Checked(p.batch) * Checked(ceil_div(all, panels))) < 4 * threads) --panels;
  while (form == Form::kept && panels > 1 && kept_bytes(p, core, panels, block_count(p)) > kKeptBytes)
    --panels;
  return panels;
}

MixedRun forward_run(Form form, const AttentionProblem& p, const AttentionArgs& args, int threads,
                     Index first_bytes) {
  const TileKernels& kernels = *chosen_isa().kernels();
  const Core& core = core_of(p, kernels);
  MixedRun run = mixed_run_of(p, args, kernels, core, panels_for(form, p, core, threads));
  run.kept_blocks = block_count(p);
  if (form == Form::twice)
    run.kept_blocks =
        std::min(run.kept_blocks, first_bytes / max_of(kept_bytes(p, core, run.task_panels, 1), 1));
  return run;
}

Index value_granule_bytes(const MixedRun& run) { return run.value_slots() * value_slot_bytes(run); }

PackedBlocks book_packed(const MixedRun& run, Arena& arena) {
  const Index blocks = run.block_count(), granules = blocks / run.granule_blocks();
  PackedBlocks b{};
  b.keys = arena.take<std::byte>(
      "mixed.keys", blocks * run.key_slots() * key_block_bytes(run.core(), run.forward.problem.heads.k.dim));
  b.values = arena.take<std::byte>("mixed.values", granules * value_granule_bytes(run));
  for (int i = 0; i < 2; ++i)
    b.coefficients[i] = arena.take<float>("mixed.coefficients", blocks * run.key_coefficients(i));
  b.finite = arena.take<std::uint8_t>("mixed.blocks", granules);
  return b;
}

OutScratch book(Form form, const MixedRun& run, Arena& arena) {
  const AttentionProblem& p = run.forward.problem;
  const Core& core = run.core();
  const Index panel = core.panel, heads = p.heads.normal_heads(), panels = run.task_panels;
  OutScratch s{};
  arena.take<float>("mixed.tiles",
                    core.granule * panel);  // tiles may be named from their granule's first key on
  s.in = book_mixed(run, arena);
  if (form == Form::twice)
    book_block(run, s.in, arena);
  else
    s.in.s = arena.take<float>("mixed.tiles", most_heads(p) * run.tile_step());
  s.panels = arena.take<OutPanel>("mixed.panels", panels);
  s.values = arena.take<std::byte>("mixed.values", form == Form::twice ? value_granule_bytes(run) : 0);
  s.operand = arena.take<std::byte>("mixed.weights", core.products.weight_bytes());
  s.kept = arena.take<float>("mixed.logits", run.kept_blocks * panels * heads * run.tile_step());
  for (float** to : {&s.tile_top, &s.used, &s.shrink, &s.tile_sum, &s.gate})
    *to = arena.take<float>("mixed.lanes", panel);
  s.rows = arena.take<float>("mixed.rows", panel * run.forward.value_rows());
  s.kept_pairs = arena.take<std::uint64_t>("mixed.open", kMixKeys * p.heads.v.heads);
  for (Index i = 0; i < panels; ++i) {
    OutPanel pan{};
    pan.in = book_mixed_panel(run, arena);
    for (float** to : {&pan.top, &pan.sum, &pan.weight})
      *to = arena.take<float>("mixed.state", heads * panel);
    pan.o = arena.take<float>("mixed.out", p.heads.v.heads * run.forward.value_rows() * panel);
    pan.visited = arena.take<std::uint8_t>("mixed.blocks", run.kept_blocks);
    if (s.panels) s.panels[i] = pan;
  }
  return s;
}

struct Task {
  const SequenceLocation& at;
  Index panels;
};
float* kept_tile(const MixedRun& run, const OutScratch& s, Index block, Index panel) {
  return block < run.kept_blocks
             ? s.kept + (block * run.task_panels + panel) * run.before.to * run.tile_step()
             : s.in.l;
}

/// Looks at the keys of a block, packed before or now.
void look_at_keys(const MixedRun& run, OutScratch& s, const Task& task, Index key0, Index keys) {
  if (!s.packed) return pack_keys(run, task.at, key0, keys, s.in);
  const Index at = run.first_block(task.at) + key0 / kMixKeys;
  s.in.keys =
      s.packed->keys + at * run.key_slots() * key_block_bytes(run.core(), run.forward.problem.heads.k.dim);
  for (int i = 0; i < 2; ++i)
    s.in.key_coefficients[i] = s.packed->coefficients[i] + at * run.key_coefficients(i);
}

/// Values and the coefficients after the normalizer; false when one of them is not finite.
bool pack_values(const MixedRun& run, const Task& task, Index key0, Index keys, std::byte* values) {
  const HeadLayout& v = run.forward.problem.heads.v;
  bool finite = true;
  for (Index slot = 0; slot < run.value_slots(); ++slot)
    finite &= run.core().products.pack_values(forward::value_rows_of(run.forward, task.at, slot * v.group),
                                              key0, keys, v.dim, values + slot * value_slot_bytes(run));
  return finite;
}
bool look_at_values(const MixedRun& run, OutScratch& s, const Task& task, Index key0, Index keys) {
  if (s.packed) {
    look_at_keys(run, s, task, key0, keys);
    const Index at = run.first_block(task.at) + key0 / kMixKeys, granule = at / run.granule_blocks();
    s.values = s.packed->values + granule * value_granule_bytes(run);
    s.key0 = at % run.granule_blocks() * kMixKeys;
    return s.packed->finite[granule];
  }
  bool finite = pack_values(run, task, key0, keys, s.values);
  if (run.after.kind == Mix::dynamic)
    finite &= pack_key_coefficients(run, task.at, key0, keys, run.after, s.in.key_coefficients[1]);
  return finite;
}

/// One granule of a sequence for all tasks.
void pack_granule(const MixedRun& run, OutScratch& s, const Task& task, Index granule) {
  const Index n = run.core().granule, first = granule * n, end = std::min(task.at.kv_tokens, first + n);
  if (first >= end) return;
  bool finite = true;
  for (Index key0 = first; key0 < end; key0 += kMixKeys) {
    const Index keys = std::min(kMixKeys, end - key0);
    look_at_keys(run, s, task, key0, keys);
    pack_keys(run, task.at, key0, keys, s.in);
    if (run.after.kind == Mix::dynamic)
      finite &= pack_key_coefficients(run, task.at, key0, keys, run.after, s.in.key_coefficients[1]);
  }
  const Index at = run.first_block(task.at) / run.granule_blocks() + granule;
  finite &= pack_values(run, task, first, end - first, s.packed->values + at * value_granule_bytes(run));
  s.packed->finite[at] = finite;
}

/// The first look: tops and sums of every head.
void look_for_sums(const MixedRun& run, OutScratch& s, const Task& task) {
  const Core& core = run.core();
  const Index n = core.panel, heads = run.before.to;
  for (Index i = 0; i < task.panels; ++i) {
    std::fill_n(s.panels[i].top, heads * n, -INFINITY);
    std::fill_n(s.panels[i].sum, heads * n, 0.0f);
  }
  for (Index key0 = 0; key0 < task.at.kv_tokens; key0 += kMixKeys) {
    const Index keys = std::min(kMixKeys, task.at.kv_tokens - key0), block = key0 / kMixKeys;
    bool looked = false;
    for (Index i = 0; i < task.panels; ++i) {
      OutPanel& panel = s.panels[i];
      const Opening opening = open_block(run, task.at, s.in, panel.in, key0, keys);
      if (block < run.kept_blocks) panel.visited[block] = static_cast<std::uint8_t>(opening.to);
      if (!opening.some) continue;
      if (!looked) look_at_keys(run, s, task, key0, keys);
      looked = true;
      float* l = kept_tile(run, s, block, i);
      logits_of(run, task.at, s.in, panel.in, opening, key0, l);
      for (Index h = 0; h < heads; ++h) {
        const Tile tile{l + h * run.tile_step(), nullptr, 0, opening.to, s.used, s.in.factor, s.tile_sum};
        std::fill_n(s.tile_top, n, -INFINITY);
        core.passes.row_max(tile.s, 0, opening.to, s.tile_top);
        core.passes.advance(panel.top + h * n, s.tile_top, s.in.factor, s.used, s.shrink);
        core.passes.sum_weights(tile);
        core.passes.add_sum(panel.sum + h * n, s.shrink, s.tile_sum);
      }
    }
  }
}

/// Sums become weights; sinks join them; log-sum-exps are written.
void close_sums(const MixedRun& run, const SequenceLocation& at, OutPanel& panel) {
  const AttentionProblem& p = run.forward.problem;
  const AttentionArgs& a = run.forward.args;
  const AnyView &lse = a.lse, &sinks = a.inputs.sinks;
  const int n = run.core().panel;
  for (Index h = 0; h < run.before.to; ++h)
    for (int i = 0; i < n; ++i) {
      float &top = panel.top[h * n + i], &weight = panel.weight[h * n + i];
      const auto sum = static_cast<double>(panel.sum[h * n + i]);
      // A row whose open logits are all NaN has no top, but its sum is NaN: it is not empty.
      const bool open = top != -INFINITY || std::isnan(sum);
      double most = static_cast<double>(top), total = sum, down = 1;
      if (p.heads.terms.sinks) {
        const double sink = load_double(sinks.data, sinks.dtype, h * sinks.step[0]);
        most = open && most > sink ? most : sink;
        down = open ? std::exp(static_cast<double>(top) - most) : 0;
        total = (open ? sum * down : 0) + (sink == -INFINITY ? 0 : std::exp(sink - most));
        if (open && std::isnan(sum)) total = sum;
      }
      weight = open ? static_cast<float>(down / total) : 0.0f;
      if (lse.given() && i < panel.in.lanes.count)
        static_cast<float*>(lse.data)[at.tensor_batch * lse.step[0] + h * lse.step[1] +
                                      (at.q_row + panel.in.lanes.token[i]) * lse.step[2]] =
            open || most != -INFINITY ? static_cast<float>(most + std::log(total)) : -INFINITY;
      panel.sum[h * n + i] = open ? 1.0f : 0.0f;  // from here on: is there an open pair
      if (top == -INFINITY) top = 0.0f;
    }
}

void look_for_outputs(const MixedRun& run, OutScratch& s, const Task& task) {
  const Index floats = run.forward.problem.heads.v.heads * run.forward.value_rows() * run.core().panel;
  for (Index i = 0; i < task.panels; ++i) std::fill_n(s.panels[i].o, floats, 0.0f);
  for (Index key0 = 0; key0 < task.at.kv_tokens; key0 += kMixKeys) {
    const Index keys = std::min(kMixKeys, task.at.kv_tokens - key0), block = key0 / kMixKeys;
    const bool kept = block < run.kept_blocks;
    bool looked = false, finite = true;
    for (Index i = 0; i < task.panels; ++i) {
      OutPanel& panel = s.panels[i];
      Opening opening;
      if (kept)
        opening.to = panel.visited[block];
      else
        opening = open_block(run, task.at, s.in, panel.in, key0, keys);
      if (opening.to == 0) continue;
      if (!looked) {
        finite = look_at_values(run, s, task, key0, keys);
        if (!kept) look_at_keys(run, s, task, key0, keys);
        looked = true;
      }
      float* l = kept_tile(run, s, block, i);
      if (!kept) logits_of(run, task.at, s.in, panel.in, opening, key0, l);
      weigh_block(run, s, {task.at, panel, l, key0, opening.to, finite});
    }
  }
}

void write_rows(const MixedRun& run, OutScratch& s, const SequenceLocation& at, OutPanel& panel) {
  const AttentionProblem& p = run.forward.problem;
  const Core& core = run.core();
  const HeadInputs& in = run.forward.args.inputs;
  const AnyView& out = run.forward.args.out;
  const forward::Panel& lanes = panel.in.lanes;
  const Index n = core.panel, step = run.forward.value_rows();
  const bool alone = run.after.kind == Mix::none;
  for (Index v = 0; v < p.heads.v.heads; ++v) {
    bool all_open = true;
    for (int i = 0; i < n; ++i) {
      bool open = false;  // an empty row is +0 whatever its gate and its query's coefficients are
      for (Index h = alone ? v : 0; h < (alone ? v + 1 : run.before.to); ++h)
        open = open || panel.sum[h * n + i] != 0;
      s.gate[i] = 1.0f;
      s.used[i] = open ? 1.0f : 0.0f;
      all_open = all_open && open;
      if (p.heads.terms.gate && open && i < lanes.count)
        s.gate[i] = static_cast<float>(load_double(in.gate.data, in.gate.dtype,
                                                   at.tensor_batch * in.gate.step[0] +
                                                       (at.q_row + lanes.token[i]) * in.gate.step[1] +
                                                       v * in.gate.step[2]));
    }
    const auto row_at = [&](int i) {
      return static_cast<std::byte*>(out.data) +
             (at.tensor_batch * out.step[0] + (at.q_row + lanes.token[i]) * out.step[1] + v * out.step[2]) *
                 size_of(out.dtype);
    };
    const float* o = panel.o + v * step * n;
    if (all_open && lanes.count == n && out.dtype == DType::f32 && out.step[3] == 1) {
      core.passes.finish(o, p.heads.v.dim, s.in.ones, s.gate, reinterpret_cast<float*>(row_at(0)),
                         out.step[1]);
      continue;
    }
    core.passes.finish(o, p.heads.v.dim, s.in.ones, s.gate, s.rows, step);
    for (int i = 0; i < lanes.count; ++i) {
      if (s.used[i] == 0) std::fill_n(s.rows + i * step, step, 0.0f);
      run.forward.kernels.store_row(s.rows + i * step, p.heads.v.dim, forward::row_type(out.dtype), row_at(i),
                                    out.step[3]);
    }
  }
}

/// All heads of a block of queries of one sequence against all keys the mask lets them see.
void attend(const MixedRun& run, OutScratch& s, Index sequence, Index block) {
  const SequenceLocation at = place_of(run.forward.problem, run.forward.args, sequence);
  const Index n = run.core().panel, first = block * run.task_panels * n;
  if (first >= at.q_tokens) return;
  const Index panels = std::min(run.task_panels, ceil_div(at.q_tokens - first, n));
  const Task task{at, panels};
  run.core().begin();
  for (Index i = 0; i < panels; ++i) fill_mixed(run, at, first + i * n, s.in, s.panels[i].in);
  look_for_sums(run, s, task);
  for (Index i = 0; i < panels; ++i) close_sums(run, at, s.panels[i]);
  look_for_outputs(run, s, task);
  for (Index i = 0; i < panels; ++i) write_rows(run, s, at, s.panels[i]);
  run.core().end();
}

std::size_t worker_bytes(Form form, const MixedRun& run) {
  Arena count = Arena::measuring();
  book(form, run, count);
  return whole_pieces(count);
}

std::string refuse(const AttentionProblem& p) {
  if (!p.heads.mixes()) return "heads are not mixed: cpu/online takes them one by one";
  if (p.dtype == DType::f64) return "dtype is f64: this kernel computes in f32";
  if (p.keys == KeyForm::paged) return kKeysInPages;
  if (p.keys == KeyForm::packed) return "keys are packed: it packs blocks of all heads itself";
  return {};
}

}  // namespace

std::size_t bytes_as(Form form, const AttentionProblem& p, int threads, Index first_bytes) {
  const AttentionArgs none;
  MixedRun run = forward_run(form, p, none, threads, first_bytes);
  Arena count = Arena::measuring();
  book_matrices(run, false, count);
  if (form == Form::kept) book_packed(run, count);
  count.take<OutScratch>("mixed.workers", threads);
  return whole_pieces(count) + static_cast<std::size_t>(threads) * worker_bytes(form, run);
}

Status run_as(Form form, const AttentionProblem& p, const AttentionArgs& args, std::span<std::byte> workspace,
              ThreadPool& pool, Index first_bytes) noexcept {
  MixedRun run = forward_run(form, p, args, pool.threads(), first_bytes);
  const Core& core = run.core();
  Arena arena(workspace);
  book_matrices(run, false, arena);
  const bool packs = form == Form::kept;
  const PackedBlocks packed = packs ? book_packed(run, arena) : PackedBlocks{};
  auto* scratch = arena.take<OutScratch>("mixed.workers", pool.threads());
  const std::size_t first = whole_pieces(arena), each = worker_bytes(form, run);
  for (int worker = 0; worker < pool.threads(); ++worker) {
    Arena own(workspace.subspan(first + static_cast<std::size_t>(worker) * each, each));
    scratch[worker] = book(form, run, own);
    scratch[worker].packed = packs ? &packed : nullptr;
  }
  if (packs)
    pool.parallel_for(p.batch * ceil_div(p.kv_tokens, core.granule), [&](Index task, int worker) {
      const SequenceLocation at = place_of(p, args, task % p.batch);
      pack_granule(run, scratch[worker], {at, 0}, task / p.batch);
    });
  const Index blocks = ceil_div(p.q_tokens, run.task_panels * core.panel);
  const auto body = [&](Index task, int worker) {
    attend(run, scratch[worker], task % p.batch, blocks - 1 - task / p.batch);
  };
  pool.parallel_for(p.batch * blocks, body);
  return Status::ok;
}

namespace {

std::string refuse_kept(const AttentionProblem& p) {
  if (std::string why = refuse(p); !why.empty()) return why;
  const Index bytes = kept_bytes(p, core_of(p, *chosen_isa().kernels()), 1, block_count(p));
  if (bytes > kKeptBytes)
    return text("the logits of a panel of queries take ", bytes, " bytes a thread, more than ", kKeptBytes);
  return {};
}
template <Form form>
std::size_t workspace_bytes(const AttentionProblem& p, int threads) {
  return bytes_as(form, p, threads);
}
template <Form form>
Status run_form(const AttentionProblem& p, const AttentionArgs& args, std::span<std::byte> workspace,
                ThreadPool& pool) noexcept {
  return run_as(form, p, args, workspace, pool);
}
std::string numerics(const AttentionProblem& p) {
  const TileKernels& kernels = *chosen_isa().kernels();
  return text("cpu/mixed ", kernels.isa, ' ', core_of(p, kernels).name, " head_dim ", p.heads.q.dim,
              " value_dim ", p.heads.v.dim, " block ", kMixKeys, kv_words(p));
}

}  // namespace

const AttentionKernel kKept{"cpu/mixed",          kWritten, refuse_kept, workspace_bytes<Form::kept>,
                            run_form<Form::kept>, numerics};
const AttentionKernel kTwice{"cpu/mixed_twice",     kWritten, refuse, workspace_bytes<Form::twice>,
                             run_form<Form::twice>, numerics};

}  // namespace headwise::cpu::mixed
