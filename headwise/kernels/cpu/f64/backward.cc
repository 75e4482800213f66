#include <algorithm>
#include <cmath>

#include "headwise/base/caller_watch.h"
#include "headwise/kernels/cpu/f64/forward.h"
#include "headwise/kernels/cpu/f64/rows.h"

// Every sum has the order of ref: dk and dv over heads, then queries, ascending; dq over keys. Heads that
// share a key are one task; rows come in blocks, and a key's sum takes the rows of a block in order.

namespace headwise::cpu::f64 {
namespace {

struct Worker {
  Rows rows;
  double *keys = nullptr, *values = nullptr;                 // turned, [tiles][dim][kKeys]
  double *key_rows = nullptr, *dk = nullptr, *dv = nullptr;  // [kv][wide]
  double *dout = nullptr, *dq = nullptr, *gate = nullptr;    // [most][value wide], [most][wide], [most]
  double* ds = nullptr;                                      // [most][pitch]
};

Worker book(const AttentionProblem& p, const BackwardArgs& a, Arena& arena) {
  Worker w{.rows = {.p = p, .a = a.forward, .most = Rows::most_of(p), .keeps_scaled = p.heads.terms.softcap}};
  w.rows.book(arena);
  const Index tiles = Rows::tiles_of(p.kv_tokens), dim = p.heads.q.dim, value_dim = p.heads.v.dim;
  const Index wide = Rows::wide(dim), value_wide = Rows::wide(value_dim), most = w.rows.most;
  w.keys = arena.take<double>("f64.keys", tiles * dim * kKeys);
  w.values = arena.take<double>("f64.values", tiles * value_dim * kKeys);
  w.key_rows = arena.take<double>("f64.keys", p.kv_tokens * wide);
  w.dk = arena.take<double>("f64.dk", p.kv_tokens * wide);
  w.dv = arena.take<double>("f64.dv", p.kv_tokens * value_wide);
  w.dout = arena.take<double>("f64.dout", most * value_wide);
  w.dq = arena.take<double>("f64.dq", most * wide);
  w.gate = arena.take<double>("f64.gate", most);
  w.ds = arena.take<double>("f64.ds", most * w.rows.pitch());
  return w;
}

std::size_t worker_bytes(const AttentionProblem& p) {
  const BackwardArgs none;
  Arena count = Arena::measuring();
  book(p, none, count);
  return static_cast<std::size_t>(round_up(static_cast<Index>(count.used()), Index{Arena::kAlign}));
}

/// dw_j = gate / (1 - p) (dout . v_j), ds_j = w_j (dw_j - delta), through the softcap; dgate on the way.
void score_slopes(const BackwardProblem& problem, const BackwardArgs& a, const Block& b, Worker& w) {
  const AttentionProblem& p = problem.forward;
  const HeadInputs& in = a.forward.inputs;
  Rows& rows = w.rows;
  const Index n = rows.words();
  for (Index r = 0; r < b.rows; ++r) {
    const double *weights = rows.weights + r * rows.pitch(), *scaled = rows.scaled + r * rows.pitch();
    double* ds = w.ds + r * rows.pitch();
    const std::uint64_t *open = rows.open + r * n, *keep = rows.keep + r * n;
    const double by = 1 - in.dropout, gate = w.gate[r] / by;
    double dgate = 0, delta = 0;
    Rows::each_bit(open, n, [&](Index j) {
      const bool kept = (keep[j / 64] >> (j % 64) & 1) != 0;
      if (kept) dgate += (by == 1 ? weights[j] : weights[j] / by) * ds[j];
      ds[j] = kept ? gate * ds[j] : 0;
    });
    Rows::each_bit(open, n, [&](Index j) { delta += weights[j] * ds[j]; });
    Rows::each_bit(open, n, [&](Index j) { ds[j] = weights[j] * (ds[j] - delta); });
    if (p.heads.terms.softcap)
      Rows::each_bit(open, n, [&](Index j) {
        const double t = std::tanh(scaled[j] / in.softcap);
        ds[j] *= 1 - t * t;
      });
    if (problem.wants.gate)
      store_double(a.dgate.data, a.dgate.dtype,
                   b.at.tensor_batch * a.dgate.step[0] + (b.at.q_row + b.first + r) * a.dgate.step[1] +
                       b.head * a.dgate.step[2],
                   rows.empty[r] != 0 ? 0 : 0 + dgate);
  }
}

/// Which rows of a block keep and see key j, and what they count there; dout and q lie as rows.
void add_key(const Block& b, Worker& w, Index j, double kept, double scale) {
  const Rows& rows = w.rows;
  const Index wide = Rows::wide(rows.p.heads.q.dim), value_wide = Rows::wide(rows.p.heads.v.dim);
  const auto bit = [&](const std::uint64_t* bits, Index r) {
    return (bits[r * rows.words() + j / 64] >> (j % 64) & 1) != 0;
  };
  Shares values, keys;
  for (Index r = 0; r < b.rows; ++r) {
    if (rows.empty[r] != 0) continue;  // o = 0 whatever q, k, v and dout are
    const double weight = rows.weights[r * rows.pitch() + j];
    if (bit(rows.keep, r)) values.add(r, w.gate[r] * (kept == 1 ? weight : weight / kept));
    if (bit(rows.open, r)) keys.add(r, scale * w.ds[r * rows.pitch() + j]);
  }
  rows.core.sum(
      {values.factor, values.row, values.count, w.dout, value_wide, value_wide, w.dv + j * value_wide});
  rows.core.sum({keys.factor, keys.row, keys.count, rows.q, wide, wide, w.dk + j * wide});
}

/// dv_j += gate w_j dout, dk_j += scale ds_j q, dq += ds_j k_j.
void add_slopes(const BackwardProblem& problem, const BackwardArgs& a, const Block& b, Worker& w) {
  const AttentionProblem& p = problem.forward;
  Rows& rows = w.rows;
  const Index wide = Rows::wide(p.heads.q.dim), n = rows.words();
  const double scale = rows.scale_of(b.head), kept = 1 - a.forward.inputs.dropout;
  for (Index word = 0; word < ceil_div(b.at.kv_tokens, 64); ++word) {
    std::uint64_t any = 0;
    for (Index r = 0; r < b.rows; ++r) {
      any |= rows.open[r * n + word] | rows.keep[r * n + word];
      if (rows.empty[r] != 0) continue;
      const double* ds = w.ds + r * rows.pitch() + word * 64;
      Shares shares;
      Rows::each_bit(rows.open + r * n + word, 1, [&](Index j) { shares.add(j, ds[j]); });
      rows.core.sum({shares.factor, shares.row, shares.count, w.key_rows + word * 64 * wide, wide, wide,
                     w.dq + r * wide});
    }
    Rows::each_bit(&any, 1, [&](Index j) { add_key(b, w, word * 64 + j, kept, scale); });
  }
}

void attend_block(const BackwardProblem& problem, const BackwardArgs& a, const Block& b, Worker& w) {
  const AttentionProblem& p = problem.forward;
  Rows& rows = w.rows;
  const Index wide = Rows::wide(p.heads.q.dim), value_wide = Rows::wide(p.heads.v.dim);
  rows.begin(b);
  const HeadLayout outs = HeadLayout::split(p.heads.v.heads, p.heads.v.dim);
  pack_rows(a.dout, outs, b.at.tensor_batch, b.at.q_row + b.first, b.rows, b.head, w.dout);
  const AnyView& gate = a.forward.inputs.gate;
  for (Index r = 0; r < b.rows; ++r)
    w.gate[r] = p.heads.terms.gate
                    ? load_double(gate.data, gate.dtype,
                                  b.at.tensor_batch * gate.step[0] +
                                      (b.at.q_row + b.first + r) * gate.step[1] + b.head * gate.step[2])
                    : 1;
  for (Index tile = 0; tile < Rows::tiles_of(b.at.kv_tokens); ++tile) {
    rows.score_tile(b, w.keys + tile * p.heads.q.dim * kKeys, tile, rows.logits);
    rows.dot_tile(b,
                  {.x = w.dout,
                   .x_step = value_wide,
                   .rows = b.rows,
                   .dim = p.heads.v.dim,
                   .tile = w.values + tile * p.heads.v.dim * kKeys,
                   .sums = w.ds + tile * kKeys,
                   .sums_step = rows.pitch()},
                  tile);
  }
  rows.finish(b);
  score_slopes(problem, a, b, w);
  std::fill_n(w.dq, b.rows * wide, 0.0);
  add_slopes(problem, a, b, w);
  const double scale = rows.scale_of(b.head);
  for (Index r = 0; problem.wants.q && r < b.rows; ++r) {
    auto* to = static_cast<double*>(a.dq.data) + b.at.tensor_batch * a.dq.step[0] +
               (b.at.q_row + b.first + r) * a.dq.step[1] + b.head * a.dq.step[2];
    for (Index c = 0; c < p.heads.q.dim; ++c)
      to[c * a.dq.step[3]] = rows.empty[r] != 0 ? 0 : 0 + scale * w.dq[r * wide + c];
  }
}

void store_rows(const AnyView& to, const SequenceLocation& at, Index slot, Index dim, const double* from) {
  auto* data = static_cast<double*>(to.data) + at.tensor_batch * to.step[0] + slot * to.step[2];
  for (Index j = 0; j < at.kv_tokens; ++j)
    for (Index c = 0; c < dim; ++c)
      data[(at.kv_row + j) * to.step[1] + c * to.step[3]] = from[j * Rows::wide(dim) + c];
}

/// All queries of the heads that share key `slot` of a sequence.
void attend_slot(const BackwardProblem& problem, const BackwardArgs& a, const SequenceLocation& at,
                 Index slot, Worker& w) {
  const AttentionProblem& p = problem.forward;
  const Index group = p.heads.k.group, h0 = slot * group, most = w.rows.most;
  const auto& [k, v] = std::pair(a.forward.k, a.forward.v);
  if (at.kv_tokens > 0) {
    pack_turned(k, p.heads.k, at.tensor_batch, at.kv_row, at.kv_tokens, h0, w.keys);
    pack_turned(v, p.heads.v, at.tensor_batch, at.kv_row, at.kv_tokens, h0, w.values);
    pack_rows(k, p.heads.k, at.tensor_batch, at.kv_row, at.kv_tokens, h0, w.key_rows);
  }
  std::fill_n(w.dk, at.kv_tokens * Rows::wide(p.heads.q.dim), 0.0);
  std::fill_n(w.dv, at.kv_tokens * Rows::wide(p.heads.v.dim), 0.0);
  for (Index h = h0; h < min_of(h0 + group, p.heads.q.heads); ++h)
    for (Index first = 0; first < at.q_tokens && still_wanted(); first += most)
      attend_block(problem, a, {at, h, first, min_of(most, at.q_tokens - first)}, w);
  if (problem.wants.k) store_rows(a.dk, at, slot, p.heads.q.dim, w.dk);
  if (problem.wants.v) store_rows(a.dv, at, slot, p.heads.v.dim, w.dv);
}

std::string refuse(const BackwardProblem& problem) {
  const AttentionProblem& p = problem.forward;
  if (std::string why = refuse_both(p); !why.empty()) return why;
  if (p.heads.q.row > 0 || p.heads.k.row > 0 || p.heads.v.row > 0 || p.heads.k.group != p.heads.v.group)
    return "heads share columns: ref sums them";
  const GradientSpec& w = problem.wants;
  if (w.bias || w.slopes || w.relative || w.sinks || w.scale)
    return "gradients beside dq, dk, dv and dgate are sums over sequences: ref has their order";
  return {};
}

std::size_t workspace_bytes(const BackwardProblem& p, int threads) {
  return static_cast<std::size_t>(threads) * worker_bytes(p.forward);
}

Status run(const BackwardProblem& problem, const BackwardArgs& a, std::span<std::byte> workspace,
           ThreadPool& pool) noexcept {
  const AttentionProblem& p = problem.forward;
  const std::size_t each = worker_bytes(p);
  const Index slots = p.heads.k.slots();
  pool.parallel_for(p.batch * slots, [&](Index task, int worker) {
    Arena own(workspace.subspan(static_cast<std::size_t>(worker) * each, each));
    Worker w = book(p, a, own);
    attend_slot(problem, a, place_of(p, a.forward, task / slots), task % slots, w);
  });
  return Status::ok;
}

}  // namespace

const BackwardKernel kBackward{
    "cpu/f64_backward", kWritten, refuse,
    workspace_bytes,    run,      [](const BackwardProblem&) { return std::string("ref f64"); }};

}  // namespace headwise::cpu::f64
