#include "headwise/kernels/cpu/forward/panel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/isa/key_order.h"

namespace headwise::cpu::forward {

RowType row_type(DType t) {
  return t == DType::bf16   ? RowType::bf16
         : t == DType::f16  ? RowType::f16
         : t == DType::i8   ? RowType::i8
         : t == DType::e4m3 ? RowType::e4m3
                            : RowType::f32;
}

const Core& core_for(const AttentionProblem& p, const TileKernels& kernels) {
  if (p.dtype == DType::bf16 && !p.eight_bit_kv() && kernels.bf16) return *kernels.bf16;
  if (p.dtype == DType::f32 && !p.eight_bit_kv() && kernels.f32_parts && p.heads.v.dim >= kernels.parts_from)
    return *kernels.f32_parts;
  // Few rows that would leave half of a wide panel idle; the bits are the same.
  const Index rows = saturated(Checked(std::gcd(p.heads.k.group, p.heads.v.group)) * Checked(p.q_tokens));
  const bool few = kernels.narrow && rows < 4 * kernels.f32.panel &&
                   round_up(rows, kernels.narrow->panel) < round_up(rows, kernels.f32.panel);
  return few ? *kernels.narrow : kernels.f32;
}

const Core& columns_core(const AttentionProblem& p, const TileKernels& kernels) {
  const Core& core = core_for(p, kernels);
  const bool in_parts = &core == kernels.f32_parts && kernels.f32_columns;
  return in_parts && p.probe.columns ? *kernels.f32_columns : core;
}

Rows rows_of(const AnyView& t, const HeadLayout& layout, Index head, Index batch, Index first_row) {
  const bool sliced = layout.row > 0;
  const Index column = sliced ? layout.column(head) : 0;
  const Index column_step = t.step[sliced ? 2 : 3];
  const Index offset = batch * t.step[0] + first_row * t.step[1] +
                       (sliced ? column * column_step : layout.slot(head) * t.step[2]);
  Rows r;
  if (t.data) r.data = static_cast<const std::byte*>(t.data) + offset * size_of(t.dtype);  // null: no tokens
  r.row_step = t.step[1];
  r.column_step = column_step;
  r.begin = sliced ? std::clamp(-column, Index{0}, layout.dim) : 0;
  r.end = sliced ? std::clamp(layout.row - column, r.begin, layout.dim) : layout.dim;
  r.type = row_type(t.dtype);
  return r;
}

Ahead ahead_of(const Rows& rows, Index first, Index count, Index width) {
  if (rows.column_step != 1 && rows.block == 0) return {};
  const Index item = bytes_of(rows.type);
  const Index step = rows.block > 0 ? width : rows.row_step;  // a block holds 16 rows
  return {static_cast<const std::byte*>(rows.data) + first * step * item, step * item, width * item, count};
}

Rows with_scales(Rows r, const AnyView& scale, const HeadLayout& layout, Index head, Index batch,
                 Index first_row) {
  if (!is_eight_bits(r.type) || !scale.data) return r;  // null: no tokens
  r.scale = static_cast<const float*>(scale.data) + batch * scale.step[0] + first_row * scale.step[1] +
            layout.slot(head) * scale.step[2];
  r.scale_step = scale.step[1];
  return r;
}

Rows key_rows(const OnlineRun& run, const SequenceLocation& at, Index head) {
  const AttentionProblem& p = run.problem;
  const AnyView& k = run.args.k;
  if (p.keys == KeyForm::paged) return {};  // granule_rows gives them
  if (p.keys == KeyForm::plain)
    return with_scales(rows_of(k, p.heads.k, head, at.tensor_batch, at.kv_row), run.args.k_scale, p.heads.k,
                       head, at.tensor_batch, at.kv_row);
  Rows r;
  r.data = static_cast<const std::byte*>(k.data) +
           (at.tensor_batch * k.step[0] + p.heads.k.slot(head) * k.step[1]) * size_of(k.dtype);
  r.block = 16 * p.heads.k.dim, r.column_step = 16;
  r.end = p.heads.k.dim;
  r.type = row_type(k.dtype);
  return with_scales(r, run.args.k_scale, p.heads.k, head, at.tensor_batch, at.kv_row);
}
Rows value_rows_of(const OnlineRun& run, const SequenceLocation& at, Index head) {
  const HeadLayout& layout = run.problem.heads.v;
  return with_scales(rows_of(run.args.v, layout, head, at.tensor_batch, at.kv_row), run.args.v_scale, layout,
                     head, at.tensor_batch, at.kv_row);
}
const void* keys_for_scores(const OnlineRun& run, const Rows& keys, Index key0, Index count, void* scratch) {
  const Index dim = run.problem.heads.k.dim;
  if (run.keys_ready)
    return static_cast<const std::byte*>(keys.data) +
           key0 * round_up(dim, run.core.key_pad) * size_of(run.args.k.dtype);
  run.core.products.pack_keys(numbers_of(keys), key0, count, dim, scratch);
  return scratch;
}
bool values_for_weigh(const OnlineRun& run, const Rows& values, Index key0, Index count, void* scratch) {
  const bool usual =
      run.core.products.pack_values(numbers_of(values), key0, count, run.problem.heads.v.dim, scratch);
  const RowScales scales = scales_from(values, key0);
  for (Index i = 0; scales.at && i < count; ++i)
    if (!std::isfinite(scales.at[i * scales.step])) return false;
  return usual;
}
void tile_scores(const OnlineRun& run, const Panel& panel, const void* packed, const Rows& keys,
                 const TileKeys& t, float* s) {
  run.core.products.scores(panel.queries, packed, t.from, t.to, run.problem.heads.q.dim, s);
  if (keys.scale) run.core.passes.scale_rows(s, t.from, t.to, scales_from(keys, t.key0), nullptr);
}

float scale_of(const OnlineRun& run, Index head) {
  const AnyView& s = run.args.inputs.scale;
  if (!s.given()) return static_cast<float>(1.0 / std::sqrt(static_cast<double>(run.problem.heads.q.dim)));
  return static_cast<float>(load_double(s.data, s.dtype, (s.size[0] == 1 ? 0 : head) * s.step[0]));
}

bool scale_is_ordinary(const OnlineRun& run) {
  for (Index h = 0; h < run.problem.heads.q.heads; ++h) {
    const float s = scale_of(run, h);
    if (!(s >= 1e-30f && s <= 1e30f)) return false;
    if (run.args.inputs.scale.size[0] <= 1) break;
  }
  return true;
}

Index sequence_id(const AttentionArgs& args, Index sequence) {
  const AnyView& ids = args.inputs.sequence_ids;
  return ids.given() ? static_cast<const Index*>(ids.data)[sequence * ids.step[0]] : sequence;
}

Index task_rows_for(const AttentionProblem& p, const Core& core, int threads) {
  // No bit depends on it.
  const Checked one = Checked(p.heads.q.heads) * Checked(p.q_tokens);
  const Index all = saturated(one * Checked(p.batch)), own = saturated(one);
  Index rows = round_up(core.task_rows, core.panel);
  while (rows > core.panel && all / rows < 4 * threads) rows = round_up(rows / 2, core.panel);
  return own >= rows ? rows : round_up(std::max<Index>(1, own), core.panel);
}

namespace {

RowStats book_stats(Arena& arena, Index panel) {
  RowStats r{};
  r.weighted_score = arena.take<float>("attention.stats", panel);
  r.square = arena.take<float>("attention.stats", panel);
  r.distance = arena.take<float>("attention.stats", panel);
  return r;
}

/// The next row of a block of lanes; null while measuring. One piece a panel: booking is paid by every task.
template <class T>
T* next_lanes(T*& block, Index panel) {
  T* row = block;
  if (block) block += panel;
  return row;
}

}  // namespace

Scratch book(const AttentionProblem& p, const Core& core, Index task_rows, Arena& arena) {
  const Index panel = core.panel, granule = core.granule, panels = ceil_div(task_rows, panel);
  const Index value_rows = round_up(p.heads.v.dim, 16), head_dim = p.heads.q.dim;
  const bool folds = p.kv_tokens > kSplit;
  Scratch s{};
  s.panels = arena.take<Panel>("attention.panels", panels);
  s.keys = arena.take<std::byte>("attention.keys",
                                 core.products.key_bytes(head_dim) * (p.probe.columns ? kColumnGranules : 1));
  s.values = arena.take<std::byte>("attention.values", core.products.value_bytes(p.heads.v.dim));
  s.weights = arena.take<std::byte>("attention.weights", core.products.weight_bytes());
  const Index paged = p.keys == KeyForm::paged ? granule : 0;
  const auto room_for = [&](Index dim, Index rows) -> PagedRoom {
    return {arena.take<std::byte>("attention.pages", rows * dim * size_of(p.kv_dtype())),
            arena.take<float>("attention.pages", p.eight_bit_kv() ? rows : 0)};
  };
  s.paged_keys = room_for(head_dim, paged * (p.probe.columns ? kColumnGranules : 1));
  s.paged_values = room_for(p.heads.v.dim, paged);
  s.s = arena.take<float>("attention.scores", granule * panel);
  s.gather = arena.take<float>("attention.gather", panel * round_up(head_dim, 16));
  s.rows = arena.take<float>("attention.rows", panel * value_rows);
  s.term =
      arena.take<float>("attention.term", p.heads.terms.bias || p.heads.terms.relative ? panel * granule : 0);
  s.by_distance = arena.take<float>("attention.term", p.heads.terms.relative ? panel + granule : 0);
  s.column_lanes =
      arena.take<float>("attention.columns", p.probe.columns ? kColumnGranules * panel * granule : 0);
  float* lanes = arena.take<float>("attention.lanes", 13 * panel);
  for (float** f : {&s.tile_top, &s.used, &s.shrink, &s.tile_sum, &s.ones, &s.a, &s.b, &s.lane_f[0],
                    &s.lane_f[1], &s.lane_f[2], &s.lane_f[3], &s.lane_f[4], &s.lane_f[5]})
    *f = next_lanes(lanes, panel);
  s.opens = arena.take<std::uint64_t>("attention.open", granule * panels);
  s.open = s.opens;
  s.stripes = arena.take<Stripe>("attention.stripes", panels);
  if (core.few.scores) {
    float* floats = arena.take<float>("attention.probes", probe_floats(p, core));
    s.kept = lay_probes(p, core, floats, arena.take<Index>("attention.probes", probe_keys(p, core)));
  }
  s.words = arena.take<std::uint64_t>("attention.words", 64 * ceil_div(granule, 64));
  for (Index i = 0; i < panels; ++i) {
    Panel pan{};
    pan.queries = arena.take<std::byte>("attention.queries", core.products.query_bytes(head_dim));
    auto* places = arena.take<Index>("attention.lanes", 3 * panel);
    for (Index** f : {&pan.head, &pan.token, &pan.position}) *f = next_lanes(places, panel);
    auto* words = arena.take<std::uint32_t>("attention.lanes", 2 * panel);
    for (std::uint32_t** f : {&pan.head32, &pan.position32}) *f = next_lanes(words, panel);
    lanes = arena.take<float>("attention.lanes", 8 * panel);
    for (float** f : {&pan.scale, &pan.factor, &pan.slope, &pan.q_distance, &pan.top, &pan.sum,
                      &pan.total_top, &pan.total_sum})
      *f = next_lanes(lanes, panel);
    pan.o = arena.take<float>("attention.out", value_rows * panel);
    pan.total_o = arena.take<float>("attention.out", folds ? value_rows * panel : 0);
    if (p.probe.rows) {
      pan.stats = book_stats(arena, panel);
      if (folds) pan.total_stats = book_stats(arena, panel);
      pan.stats.best = arena.take<float>("attention.best", panel);
      pan.stats.best_key = arena.take<Index>("attention.best", panel);
    }
    if (p.probe.top_k > 0) {
      pan.best_scores = arena.take<float>("attention.best", panel * p.probe.top_k);
      pan.best_keys = arena.take<Index>("attention.best", panel * p.probe.top_k);
    }
    if (p.probe.classes > 0) {
      pan.class_mass = arena.take<float>("attention.classes", panel * p.probe.classes);
      pan.total_class_mass = arena.take<float>("attention.classes", folds ? panel * p.probe.classes : 0);
    }
    if (s.panels) s.panels[i] = pan;
  }
  return s;
}

Index rows_of_run(const OnlineRun& run, const SequenceLocation& at, Index head0) {
  const Index all = run.problem.heads.q.heads, heads = std::min(run.run_heads, all - head0);
  if (!run.problem.heads.terms.rows) return heads * at.q_tokens;
  const Index list = at.sequence * all + head0;
  return run.args.inputs.rows.begin(list + heads) - run.args.inputs.rows.begin(list);
}

namespace {

/// Goes through the rows of a run of heads in order.
class RowWalk {
 public:
  RowWalk(const OnlineRun& run, const SequenceLocation& at, Index head0, Index first)
      : lists_(run.args.inputs.rows),
        listed_(run.problem.heads.terms.rows),
        tokens_(at.q_tokens),
        head(head0) {
    if (!listed_) {
      head += first / tokens_, token = first % tokens_;
      return;
    }
    list_ = at.sequence * run.problem.heads.q.heads + head0;
    at_ = lists_.begin(list_) + first;
    find();
  }
  void next() {
    if (!listed_) {
      if (++token == tokens_) token = 0, ++head;
      return;
    }
    ++at_;
    find();
  }

 private:
  void find() {
    for (; at_ >= lists_.begin(list_ + 1); ++list_) ++head;
    token = lists_.row(at_);
  }
  const RowLists& lists_;
  bool listed_;
  Index tokens_, list_ = 0, at_ = 0;

 public:
  Index head, token = 0;
};

}  // namespace

void fill_panel(const OnlineRun& run, const SequenceLocation& at, const RowBlock& rows, Scratch& scratch,
                Panel& panel) {
  const Core& core = run.core;
  const AttentionProblem& p = run.problem;
  const HeadInputs& in = run.args.inputs;
  panel.count = static_cast<int>(std::min<Index>(core.panel, rows.end - rows.first));
  Rows source[64];
  RowWalk row(run, at, rows.head0, rows.first);
  Index head = row.head;
  Rows of_head = rows_of(run.args.q, p.heads.q, head, at.tensor_batch, at.q_row);
  float scale = scale_of(run, head);
  for (int lane = 0; lane < core.panel; ++lane) {  // idle lanes repeat the last row's place
    if (lane > 0 && lane < panel.count) row.next();
    const Index token = row.token;
    if (row.head != head) {
      head = row.head;
      of_head = rows_of(run.args.q, p.heads.q, head, at.tensor_batch, at.q_row);
      scale = scale_of(run, head);
    }
    source[lane] = of_head;
    panel.head[lane] = head;
    panel.token[lane] = token;
    panel.position[lane] = at.q_start + token;
    panel.head32[lane] = static_cast<std::uint32_t>(head);
    panel.position32[lane] = static_cast<std::uint32_t>(panel.position[lane]);
    panel.scale[lane] = scale;
    panel.factor[lane] = (run.scaled_first ? 1.0f : scale) * 1.44269504f;
    if (p.heads.terms.alibi)
      panel.slope[lane] =
          static_cast<float>(load_double(in.slopes.data, in.slopes.dtype, head * in.slopes.step[0]));
  }
  core.products.pack_queries(source, panel.token, panel.count, p.heads.q.dim, panel.queries, scratch.gather);
  const auto reset = [&](float* f, float x) { std::fill_n(f, core.panel, x); };
  reset(panel.total_top, -INFINITY), reset(panel.total_sum, 0.0f);
  panel.started = panel.folded = false;
  if (p.probe.rows)
    reset(panel.stats.best, -INFINITY), std::fill_n(panel.stats.best_key, core.panel, Index{-1});
  std::fill_n(panel.best_scores, core.panel * p.probe.top_k, -INFINITY);
  std::fill_n(panel.best_keys, core.panel * p.probe.top_k, Index{-1});
}

namespace {

/// T5 values of a tile into scratch.term [lane][key]. A bucket depends on q - k alone and grows with |q -
/// k|. So each head needs one value a distance, and one in all where both ends of the range share their
/// bucket.
void add_relative(const HeadInputs& in, const Panel& panel, Scratch& scratch, const TileKeys& keys,
                  Index granule) {
  const AnyView& t = in.relative;
  const Index key0 = keys.key0, from = keys.from, to = keys.to;
  for (int lane = 0; lane < panel.count;) {
    int end = lane + 1;
    while (end < panel.count && panel.head[end] == panel.head[lane] &&
           panel.position[end] == panel.position[end - 1] + 1)  // listed rows may leave gaps
      ++end;
    const Index nearest = panel.position[lane] - key0 - (to - 1),
                farthest = panel.position[end - 1] - key0 - from;
    const auto value = [&](Index bucket) {
      return static_cast<float>(
          load_double(t.data, t.dtype, bucket * t.step[0] + panel.head[lane] * t.step[1]));
    };
    const bool one_sign = nearest > 0 || farthest < 0;
    const Index first = in.buckets.bucket(nearest, 0);
    if (one_sign && first == in.buckets.bucket(farthest, 0)) {
      std::fill_n(scratch.by_distance, farthest - nearest + 1, value(first));
    } else {
      for (Index d = nearest; d <= farthest; ++d)
        scratch.by_distance[d - nearest] = value(in.buckets.bucket(d, 0));
    }
    for (; lane < end; ++lane)
      for (Index k = from; k < to; ++k)
        scratch.term[lane * granule + k] = scratch.by_distance[panel.position[lane] - key0 - k - nearest];
  }
}

}  // namespace

void apply_terms(const OnlineRun& run, const SequenceLocation& at, const Panel& panel, Scratch& scratch,
                 const TileKeys& t) {
  const Index from = t.from, to = t.to;
  const Core& core = run.core;
  const Terms& terms = run.problem.heads.terms;
  const HeadInputs& in = run.args.inputs;
  float* s = scratch.s;
  if (run.scaled_first) core.passes.scale(s, from, to, panel.scale);
  if (terms.softcap) {
    core.passes.softcap(s, from, to, static_cast<float>(in.softcap));
    if (scratch.cap_slope)
      core.passes.cap_slope(s, from, to, static_cast<float>(in.softcap), scratch.cap_slope);
  }
  add_terms(run, at, panel, scratch, t);
}

void add_terms(const OnlineRun& run, const SequenceLocation& at, const Panel& panel, Scratch& scratch,
               const TileKeys& t) {
  const Index key0 = t.key0, from = t.from, to = t.to;
  const Core& core = run.core;
  const Terms& terms = run.problem.heads.terms;
  const HeadInputs& in = run.args.inputs;
  float* s = scratch.s;
  if (terms.bias) {
    const AnyView& b = in.bias;
    for (int lane = 0; lane < core.panel; ++lane) {
      float* line = scratch.term + lane * core.granule;
      const Index base =
          at.sequence * b.step[0] + panel.head[lane] * b.step[1] + panel.token[lane] * b.step[2];
      if (lane >= panel.count) {
        std::fill(line + from, line + to, 0.0f);
      } else if (b.dtype == DType::f32 && b.step[3] == 1) {
        std::memcpy(line + from, static_cast<const float*>(b.data) + base + key0 + from,
                    static_cast<std::size_t>(to - from) * sizeof(float));
      } else {
        for (Index k = from; k < to; ++k)
          line[k] = static_cast<float>(load_double(b.data, b.dtype, base + (key0 + k) * b.step[3]));
      }
    }
    core.passes.add(s, from, to, scratch.term, core.granule);
  }
  if (terms.alibi) core.passes.alibi(s, from, to, panel.slope, panel.q_distance);
  if (terms.relative) {
    add_relative(in, panel, scratch, t, core.granule);
    for (int lane = panel.count; lane < core.panel; ++lane)
      std::fill(scratch.term + lane * core.granule + from, scratch.term + lane * core.granule + to, 0.0f);
    core.passes.add(s, from, to, scratch.term, core.granule);
  }
}

TileKind tile_kind(const OnlineRun& run, const SequenceLocation& at, const Panel& panel, Index key0,
                   Index keys) {
  if (!run.args.mask.given()) return TileKind::full;
  TileKind all = TileKind::full;
  bool some = false, first = true;
  for (int lane = 0; lane < panel.count;) {  // one question for each stretch of lanes of one head
    int end = lane + 1;
    while (end < panel.count && panel.head[end] == panel.head[lane]) ++end;
    const MaskView& m = run.args.mask.of(panel.head[lane]);
    const TileKind kind = m.tile(panel.position[lane], panel.position[end - 1] + 1, key0, key0 + keys,
                                 {at.sequence, panel.head[lane], at.q_start});
    some = some || kind != TileKind::empty;
    all = first ? kind : all == kind ? kind : TileKind::mixed;
    first = false;
    lane = end;
  }
  return some ? (all == TileKind::empty ? TileKind::mixed : all) : TileKind::empty;
}

namespace {

/// 64 rows of 64 bits: bit j of row i <-> bit i of row j, by swapping ever smaller blocks.
void transpose_bits(std::uint64_t (&a)[64]) {
  std::uint64_t m = 0x00000000ffffffffull;
  for (int j = 32; j != 0; j >>= 1, m ^= m << j)
    for (int k = 0; k < 64; k = (k + j + 1) & ~j) {
      const std::uint64_t t = ((a[k] >> j) ^ a[k + j]) & m;
      a[k] ^= t << j;
      a[k + j] ^= t;
    }
}

}  // namespace

void open_bits(const OnlineRun& run, const SequenceLocation& at, const Panel& panel, Scratch& scratch,
               TileKeys& t) {
  const Index key0 = t.key0, to = t.to;
  const int words = static_cast<int>(ceil_div(to, 64));
  for (int lane = 0; lane < panel.count; ++lane)
    run.args.mask.of(panel.head[lane])
        .row_bits(panel.position[lane], key0, words, scratch.words + lane * words,
                  {at.sequence, panel.head[lane], at.q_start});
  const std::uint64_t lanes = panel.count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << panel.count) - 1;
  Index first = to, last = 0;
  for (int w = 0; w < words; ++w) {
    std::uint64_t every = ~std::uint64_t{0}, some = 0;
    for (int lane = 0; lane < panel.count; ++lane) {
      every &= scratch.words[lane * words + w];
      some |= scratch.words[lane * words + w];
    }
    const Index begin = Index{64} * w, left = std::min<Index>(64, to - begin);
    if (left < 64) some &= (std::uint64_t{1} << left) - 1;
    if (some) {
      first = std::min(first, begin + __builtin_ctzll(some));
      last = begin + 64 - __builtin_clzll(some);
    }
    std::uint64_t* open = scratch.open + begin;
    if (every == ~std::uint64_t{0} || some == 0) {
      std::fill_n(open, left, some ? lanes : 0);
    } else {
      std::uint64_t block[64] = {};
      for (int lane = 0; lane < panel.count; ++lane) block[lane] = scratch.words[lane * words + w];
      transpose_bits(block);
      std::copy_n(block, left, open);
    }
  }
  t.from = std::min(first, to) / 32 * 32;
  t.to = std::max(last, t.from);
}

TileDropout dropout_of(const OnlineRun& run, const SequenceLocation& at, const Panel& panel, Index key0) {
  return {.head = panel.head32,
          .query = panel.position32,
          .key0 = key0,
          .seed = run.dropout.seed,
          .sequence = static_cast<std::uint32_t>(sequence_id(run.args, at.sequence)),
          .threshold = run.dropout.threshold,
          .keep_scale = static_cast<float>(1.0 / (1.0 - run.args.inputs.dropout))};
}

}  // namespace headwise::cpu::forward

namespace headwise::cpu {

KeyOrder key_order(DType kv_dtype) {
  AttentionProblem p;  // the class of a dtype: no size changes how its keys lie
  p.kv = kv_dtype;
  p.dtype = p.eight_bit_kv() ? DType::f32 : kv_dtype;
  const Core& core = forward::core_for(p, *chosen_isa().kernels());
  if (core.key_group == 0) return {16, 1, 1};
  return {core.key_group, core.key_columns, core.key_pad};
}

}  // namespace headwise::cpu
