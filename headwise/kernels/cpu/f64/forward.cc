#include "headwise/kernels/cpu/f64/forward.h"

#include <algorithm>

#include "headwise/kernels/cpu/f64/rows.h"

namespace headwise::cpu::f64 {
namespace {

constexpr Index kValues = 64;  // values that are packed together: a word of open keys

struct Worker {
  Rows rows;
  double *keys = nullptr, *values = nullptr,
         *out = nullptr;  // [dim][kKeys], [kValues][wide], [most][wide]
};

Worker book(const AttentionProblem& p, const AttentionArgs& a, Arena& arena) {
  Worker w{.rows = {.p = p, .a = a, .most = Rows::most_of(p), .keeps_scaled = false}};
  w.rows.book(arena);
  w.keys = arena.take<double>("f64.keys", p.heads.q.dim * kKeys);
  w.values = arena.take<double>("f64.values", kValues * Rows::wide(p.heads.v.dim));
  w.out = arena.take<double>("f64.out", w.rows.most * Rows::wide(p.heads.v.dim));
  return w;
}

std::size_t worker_bytes(const AttentionProblem& p) {
  const AttentionArgs none;
  Arena count = Arena::measuring();
  book(p, none, count);
  return static_cast<std::size_t>(round_up(static_cast<Index>(count.used()), Index{Arena::kAlign}));
}

/// o = sum_j w_j v_j over kept pairs, j ascending, w divided by what dropout keeps.
void weigh_values(const AttentionProblem& p, const AttentionArgs& a, const Block& b, Worker& w) {
  const Rows& rows = w.rows;
  const Index wide = Rows::wide(p.heads.v.dim);
  const double kept = 1 - a.inputs.dropout;
  std::fill_n(w.out, b.rows * wide, 0.0);
  for (Index word = 0; word < ceil_div(b.at.kv_tokens, kValues); ++word) {
    std::uint64_t any = 0;
    for (Index r = 0; r < b.rows; ++r) any |= rows.keep[r * rows.words() + word];
    if (any == 0) continue;
    const Index key0 = word * kValues;
    pack_rows(a.v, p.heads.v, b.at.tensor_batch, b.at.kv_row + key0, min_of(kValues, b.at.kv_tokens - key0),
              b.head, w.values);
    for (Index r = 0; r < b.rows; ++r) {
      const double* weights = rows.weights + r * rows.pitch() + key0;
      Shares shares;
      Rows::each_bit(rows.keep + r * rows.words() + word, 1,
                     [&](Index j) { shares.add(j, kept == 1 ? weights[j] : weights[j] / kept); });
      rows.core.sum({shares.factor, shares.row, shares.count, w.values, wide, wide, w.out + r * wide});
    }
  }
}

void attend_block(const AttentionProblem& p, const AttentionArgs& a, const Block& b, Worker& w) {
  Rows& rows = w.rows;
  rows.begin(b);
  for (Index tile = 0; tile < Rows::tiles_of(b.at.kv_tokens); ++tile) {
    bool seen = false;
    for (Index r = 0; r < b.rows; ++r) seen = seen || rows.sees(r, tile);
    if (!seen) continue;
    const Index key0 = tile * kKeys;
    pack_turned(a.k, p.heads.k, b.at.tensor_batch, b.at.kv_row + key0, min_of(kKeys, b.at.kv_tokens - key0),
                b.head, w.keys);
    rows.score_tile(b, w.keys, tile, rows.logits);
  }
  rows.finish(b);
  weigh_values(p, a, b, w);
  const Index wide = Rows::wide(p.heads.v.dim);
  const AnyView &gate = a.inputs.gate, &out = a.out, &lse = a.lse;
  for (Index r = 0; r < b.rows; ++r) {
    const Index row = b.at.q_row + b.first + r, batch = b.at.tensor_batch;
    const double by = p.heads.terms.gate
                          ? load_double(gate.data, gate.dtype,
                                        batch * gate.step[0] + row * gate.step[1] + b.head * gate.step[2])
                          : 1;
    auto* to =
        static_cast<double*>(out.data) + batch * out.step[0] + row * out.step[1] + b.head * out.step[2];
    for (Index c = 0; c < p.heads.v.dim; ++c)
      to[c * out.step[3]] = rows.empty[r] != 0 ? 0 : by * w.out[r * wide + c];
    if (p.lse)
      store_double(lse.data, lse.dtype, batch * lse.step[0] + b.head * lse.step[1] + row * lse.step[2],
                   rows.lse[r]);
  }
}

std::size_t workspace_bytes(const AttentionProblem& p, int threads) {
  return static_cast<std::size_t>(threads) * worker_bytes(p);
}

Status run(const AttentionProblem& p, const AttentionArgs& a, std::span<std::byte> workspace,
           ThreadPool& pool) noexcept {
  const std::size_t each = worker_bytes(p);
  const Index most = Rows::most_of(p), blocks = ceil_div(p.q_tokens, most), heads = p.heads.q.heads;
  pool.parallel_for(p.batch * heads * blocks, [&](Index task, int worker) {
    Arena own(workspace.subspan(static_cast<std::size_t>(worker) * each, each));
    Worker w = book(p, a, own);
    const SequenceLocation at = place_of(p, a, task / (heads * blocks));
    const Index first = task % blocks * most, rows = min_of(most, at.q_tokens - first);
    if (rows > 0) attend_block(p, a, {at, task / blocks % heads, first, rows}, w);
  });
  return Status::ok;
}

}  // namespace

const AttentionKernel kForward{"cpu/f64",   kWritten,
                               refuse_both, workspace_bytes,
                               run,         [](const AttentionProblem&) { return std::string("ref f64"); }};

}  // namespace headwise::cpu::f64
