#include "headwise/kernels/cpu/entmax/lists.h"

#include <algorithm>

namespace headwise::cpu::entmax {

using forward::OnlineRun;

EntmaxRule rule_of(double alpha) {
  using Kind = EntmaxRule::Kind;
  const Kind kind = alpha == 1     ? Kind::softmax
                    : alpha == 1.5 ? Kind::square
                    : alpha == 2   ? Kind::line
                                   : Kind::any;
  const double less = alpha - 1;
  return {kind, static_cast<float>(less), kind == Kind::softmax ? 0.0f : static_cast<float>(1 / less)};
}
double alpha_of(const AttentionArgs& args, Index head) {
  const AnyView& a = args.inputs.alpha;
  return load_double(a.data, a.dtype, head * a.step[0]);
}
bool all_softmax(const AttentionProblem& p, const AttentionArgs& args) {
  for (Index h = 0; h < p.heads.q.heads; ++h)
    if (alpha_of(args, h) != 1) return false;
  return true;
}

Index list_rows_for(const AttentionProblem& p, const Core& core, int threads) {
  return std::min(round_up(kListRows, core.panel), forward::task_rows_for(p, core, threads));
}

ListScratch book_lists(const AttentionProblem& p, const Core& core, Index task_rows, bool wide,
                       Arena& arena) {
  const Index lanes = ceil_div(task_rows, core.panel) * core.panel;
  const Index room = round_up(p.kv_tokens + 1, kListPad) + kListPad;  // and a sink
  const Index columns = round_up(std::max(p.heads.q.dim, p.heads.v.dim), 16);
  const bool slopes = wide && p.heads.terms.softcap;
  ListScratch s{};
  s.tile = forward::book(p, core, task_rows, arena);
  s.rows = arena.take<KeptRow>("entmax.rows", lanes);
  s.limit = arena.take<Index>("entmax.rows", lanes);
  s.floor = arena.take<float>("entmax.rows", lanes);
  const Index lists = saturated(Checked(lanes) * Checked(room));
  auto* score = arena.take<float>("entmax.scores", lists);
  auto* key = arena.take<std::int32_t>("entmax.keys", lists);
  auto* slope = arena.take<float>("entmax.slopes", slopes ? lists : 0);
  if (s.rows)
    for (Index i = 0; i < lanes; ++i)
      s.rows[i] = {score + i * room, key + i * room, slopes ? slope + i * room : nullptr, 0, false};
  s.tile.cap_slope = slopes ? arena.take<float>("entmax.slopes", core.granule * core.panel) : nullptr;
  s.w = arena.take<float>("entmax.list", room);
  s.u = arena.take<float>("entmax.list", wide ? room : 0);
  s.dp = arena.take<float>("entmax.list", wide ? room : 0);
  s.q = arena.take<float>("entmax.row", columns);
  s.dout = arena.take<float>("entmax.row", columns);
  s.sum = arena.take<float>("entmax.row", columns);
  const auto copy = [&](const HeadLayout& layout) {
    return arena.take<float>("entmax.copy",
                             saturated(Checked(p.kv_tokens) * Checked(round_up(layout.dim, 16))));
  };
  s.values = copy(p.heads.v);
  s.keys = wide ? copy(p.heads.k) : nullptr;
  return s;
}

void clear_lists(const OnlineRun& run, ListScratch& s, Index i) {
  for (Index lane = i * run.core.panel; lane < (i + 1) * run.core.panel; ++lane)
    s.rows[lane].count = 0, s.rows[lane].is_nan = false;
}

bool logits_of(const OnlineRun& run, const SequenceLocation& at, ListScratch& s, Index i,
               const Rows& key_rows, forward::TileKeys& t) {
  forward::Panel& panel = s.tile.panels[i];
  const Index key0 = t.key0, keys = t.to;
  t.kind = forward::tile_kind(run, at, panel, key0, keys);
  if (t.kind == TileKind::empty) return false;
  if (t.kind == TileKind::mixed) {
    forward::open_bits(run, at, panel, s.tile, t);
    if (t.from == t.to) return false;
  }
  if (!s.tile.tile_keys) s.tile.tile_keys = forward::keys_for_scores(run, key_rows, key0, keys, s.tile.keys);
  forward::tile_scores(run, panel, s.tile.tile_keys, key_rows, t, s.tile.s);
  if (run.problem.heads.terms.alibi)
    for (int lane = 0; lane < run.core.panel; ++lane)
      panel.q_distance[lane] = static_cast<float>(panel.position[lane] - key0);
  forward::apply_terms(run, at, panel, s.tile, t);
  if (t.kind == TileKind::mixed) run.core.passes.select(s.tile.s, t.from, t.to, s.tile.open);
  return true;
}

PlainRowsView plain_rows(const OnlineRun& run, const Rows& rows, Index first, Index count, Index dim,
                         float* copy) {
  const Index wide = round_up(dim, 16);
  const bool lie = rows.type == RowType::f32 && rows.column_step == 1 && rows.begin == 0 && rows.end == dim &&
                   wide == dim && rows.block == 0;
  if (lie) return {static_cast<const float*>(rows.data) + first * rows.row_step, rows.row_step};
  for (Index r = 0; r < count; ++r) run.kernels.load_row(rows, first + r, wide, copy + r * wide);
  return {copy, wide};
}

}  // namespace headwise::cpu::entmax
