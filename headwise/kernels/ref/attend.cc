#include "headwise/kernels/ref/attend.h"

#include <limits>
#include <new>
#include <stdexcept>

#include "headwise/kernels/ref/mix.h"

namespace headwise::ref {
namespace {

/// w = keep ? w / (1 - p) : 0; a dropped pair counts as closed from here on
void drop_weights(const AttentionProblem& p, const AttentionArgs& a, Row& row) {
  row.drop(p, a);
  for (std::size_t n = 0; n < row.keep.size(); ++n)
    row.weights[n] = row.keep[n] ? row.weights[n] / (1 - a.inputs.dropout) : 0;
}

/// o = gate * sum_j w_j v_j
void write_output(const AttentionProblem& p, const AttentionArgs& a, Row& row) {
  const SequenceLocation& place = row.place;
  row.output.assign(row.output.size(), 0);
  for (Index j = 0; j < row.keys(); ++j) {
    if (!row.keep[static_cast<std::size_t>(j)]) continue;
    const double w = row.weights[static_cast<std::size_t>(j)];
    for (Index c = 0; c < p.heads.v.dim; ++c)
      row.output[static_cast<std::size_t>(c)] += w * value_element(p, a, row, j, c);
  }
  const double gate = p.heads.terms.gate ? at(a.inputs.gate, place.tensor_batch, row.q_row(), row.head) : 1;
  for (Index c = 0; c < p.heads.v.dim; ++c)
    put(a.out, row.empty ? 0 : gate * row.output[static_cast<std::size_t>(c)], place.tensor_batch,
        row.q_row(), row.head, c);
}

/// column_sums[k] = sum of w over all queries of the head, in ascending order
void write_column_sums(const AttentionProblem& p, const AttentionArgs& a, Row& row, std::vector<double>& sums,
                       Index b, Index h) {
  sums.assign(sums.size(), 0);
  for (Index i = 0; i < row.place.q_tokens; ++i) {
    row.compute(p, a, b, h, i);
    for (Index j = 0; j < row.keys(); ++j)
      sums[static_cast<std::size_t>(j)] += row.weights[static_cast<std::size_t>(j)];
  }
  for (Index j = 0; j < row.keys(); ++j)
    put(a.probe.column_sums, sums[static_cast<std::size_t>(j)], row.place.tensor_batch, h,
        row.place.kv_row + j);
  for (Index j = row.keys(); p.keys == KeyForm::paged && j < p.kv_tokens; ++j)
    put(a.probe.column_sums, 0, row.place.tensor_batch, h, j);
}

void write_picked(const AttentionProblem& p, const AttentionArgs& a, Row& row, Index n) {
  const auto pick = [&](Index column) {
    return static_cast<const Index*>(
        a.probe.picks.data)[n * a.probe.picks.step[0] + column * a.probe.picks.step[1]];
  };
  row.place = place_of(p, a, pick(0));
  row.compute(p, a, pick(0), pick(1), pick(2));
  for (Index j = 0; j < p.kv_tokens; ++j)
    put(a.probe.picked_weights, j < row.keys() ? row.weights[static_cast<std::size_t>(j)] : 0, n, j);
}

/// Queries past the end of a ragged sequence have no open pair.
void write_absent_scores(const AttentionProblem& p, const AttentionArgs& a, Index b, Index h, Index i) {
  const double closed = p.probe.scores == ScoreStage::weights ? 0 : -std::numeric_limits<double>::infinity();
  for (Index j = 0; j < p.kv_tokens; ++j) put(a.probe.scores, closed, b, h, i, j);
}

/// Heads are mixed: a query at a time, all its heads together.
void run_mixed(const AttentionProblem& p, const AttentionArgs& a, ThreadPool& pool) {
  std::vector<MixedRows> mixed(static_cast<std::size_t>(pool.threads()), MixedRows(p, a));
  pool.parallel_for(p.batch * p.q_tokens, [&](Index task, int worker) {
    MixedRows& m = mixed[static_cast<std::size_t>(worker)];
    const Index b = task / p.q_tokens, i = task % p.q_tokens;
    const SequenceLocation place = place_of(p, a, b);
    if (i >= place.q_tokens) return;
    m.compute(p, a, place, b, i);
    for (Row& row : m.outs) {
      drop_weights(p, a, row);
      write_output(p, a, row);
    }
    if (p.lse)
      for (const Row& row : m.rows) put(a.lse, row.lse, place.tensor_batch, row.head, row.q_row());
  });
}

void run_rows(const AttentionProblem& p, const AttentionArgs& a, ThreadPool& pool) {
  const Index heads = p.heads.q.heads;
  std::vector<Row> rows(static_cast<std::size_t>(pool.threads()), Row(p));
  const auto row_of = [&](int worker) -> Row& { return rows[static_cast<std::size_t>(worker)]; };

  pool.parallel_for(p.batch * heads * p.q_tokens, [&](Index task, int worker) {
    Row& row = row_of(worker);
    const Index b = task / (heads * p.q_tokens), h = task / p.q_tokens % heads, i = task % p.q_tokens;
    row.place = place_of(p, a, b);
    if (i >= row.place.q_tokens) {
      if (p.probe.scores != ScoreStage::none) write_absent_scores(p, a, b, h, i);
      return;
    }
    row.compute(p, a, b, h, i);
    write_row_probes(p, a, row);
    drop_weights(p, a, row);
    write_output(p, a, row);
    if (p.lse) put(a.lse, row.lse, row.place.tensor_batch, h, row.q_row());
  });

  if (p.probe.columns) {
    std::vector<std::vector<double>> sums(rows.size(),
                                          std::vector<double>(static_cast<std::size_t>(p.kv_tokens)));
    pool.parallel_for(p.batch * heads, [&](Index task, int worker) {
      Row& row = row_of(worker);
      row.place = place_of(p, a, task / heads);
      write_column_sums(p, a, row, sums[static_cast<std::size_t>(worker)], task / heads, task % heads);
    });
  }
  pool.parallel_for(p.probe.picked, [&](Index n, int worker) { write_picked(p, a, row_of(worker), n); });
}

Status run(const AttentionProblem& p, const AttentionArgs& a, std::span<std::byte>,
           ThreadPool& pool) noexcept {
  try {
    if (p.heads.mixes())
      run_mixed(p, a, pool);
    else
      run_rows(p, a, pool);
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  } catch (const std::length_error&) {  // a vector longer than any address space
    return Status::out_of_memory;
  }
  return Status::ok;
}

}  // namespace

const AttentionKernel kRef = {
    .name = "ref",
    .takes = kEvery,
    .limits = [](const AttentionProblem&) { return std::string(); },
    .workspace_bytes = [](const AttentionProblem&, int) -> std::size_t { return 0; },
    .run = run,
    .numerics = [](const AttentionProblem&) { return std::string("ref f64"); },
};

}  // namespace headwise::ref
