#include "headwise/kernels/ref/attend_backward.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <stdexcept>

#include "headwise/base/caller_watch.h"
#include "headwise/kernels/ref/mix.h"
#include "headwise/kernels/ref/normalize.h"
#include "headwise/spec/terms.h"

namespace headwise::ref {
namespace {

/// A gradient while it is summed, in double; one that is not asked swallows what is added.
class Sum {
 public:
  explicit Sum(const AnyView& to) : to_(to), values_(static_cast<std::size_t>(to.count())) {}
  bool asked() const { return to_.given(); }
  /// An axis of size 1 takes every index: what repeats in the forward is summed here.
  void add(double x, Index i, Index j = 0, Index k = 0, Index l = 0) {
    if (!asked()) return;
    const Index index[] = {i, j, k, l};
    Index at = 0;
    for (int axis = 0; axis < to_.rank; ++axis)
      at = at * to_.size[axis] + (to_.size[axis] == 1 ? 0 : index[axis]);
    values_[static_cast<std::size_t>(at)] += x;
  }
  /// head_element() differentiated: a column outside the row was read as 0 and gets nothing.
  void add_to_head(double x, const HeadLayout& layout, Index batch, Index row, Index h, Index c) {
    if (layout.row == 0) return add(x, batch, row, layout.slot(h), c);
    const Index column = layout.column(h) + c;
    if (0 <= column && column < layout.row) add(x, batch, row, column);
  }
  void store() const {
    for (Index n = 0; n < to_.count(); ++n) {
      Index rest = n, at = 0;
      for (int axis = to_.rank - 1; axis >= 0; --axis) {
        at += rest % to_.size[axis] * to_.step[axis];
        rest /= to_.size[axis];
      }
      store_double(to_.data, to_.dtype, at, values_[static_cast<std::size_t>(n)]);
    }
  }

 private:
  AnyView to_;
  std::vector<double> values_;
};

/// A sum for each gradient of the list.
class Sums {
 public:
  explicit Sums(const BackwardArgs& a) {
    for (const Gradient& g : kGradients) all_.emplace_back(a.*g.view);
  }
  template <bool GradientSpec::*kWanted>
  Sum& of() {
    return all_[std::integral_constant<std::size_t, place_of(kWanted)>::value];
  }
  void store() const {
    for (const Sum& s : all_) s.store();
  }

 private:
  std::vector<Sum> all_;
};

/// Gradients inside one row.
struct RowGradient {
  std::vector<double> dout;  // [value_dim]
  std::vector<double> ds;    // [kv]: of the weights, then of the logits, then of scale * q.k
  std::vector<double> dq;    // [head_dim]: sum_j ds_j k_j, not yet scaled
  explicit RowGradient(const AttentionProblem& p)
      : dout(static_cast<std::size_t>(p.heads.v.dim)),
        ds(static_cast<std::size_t>(p.kv_tokens)),
        dq(static_cast<std::size_t>(p.heads.q.dim)) {}
};

template <class Body>
void each_open(const Row& row, Body&& body) {
  for (Index j = 0; j < row.keys(); ++j)
    if (row.open[static_cast<std::size_t>(j)]) body(j, static_cast<std::size_t>(j));
}

/// From dout to the gradient of the weights; `keep` of the row is filled.
void add_output(const AttentionProblem& p, const BackwardArgs& b, const Row& row, RowGradient& d,
                Sums& sums) {
  const AttentionArgs& a = b.forward;
  const HeadInputs& in = a.inputs;
  const SequenceLocation& place = row.place;
  const Index h = row.head, batch = place.tensor_batch;

  // o = gate * sum_j w_j / (1 - p) v_j over kept pairs
  //   dv_j  = gate * w_j / (1 - p) dout
  //   dw_j  = gate / (1 - p) (dout . v_j)
  //   dgate = sum_j w_j / (1 - p) (dout . v_j)
  const double gate = p.heads.terms.gate ? at(in.gate, batch, row.q_row(), h) : 1;
  double dgate = 0;
  for (Index c = 0; c < p.heads.v.dim; ++c)
    d.dout[static_cast<std::size_t>(c)] = at(b.dout, batch, row.q_row(), h, c);
  each_open(row, [&](Index j, std::size_t n) {
    d.ds[n] = 0;
    if (!row.keep[n]) return;
    const double w = row.weights[n] / (1 - in.dropout);
    double dot = 0;
    for (Index c = 0; c < p.heads.v.dim; ++c) {
      const double dout = d.dout[static_cast<std::size_t>(c)];
      dot += dout * head_element(a.v, p.heads.v, batch, place.kv_row + j, h, c);
      sums.of<&GradientSpec::v>().add_to_head(gate * w * dout, p.heads.v, batch, place.kv_row + j, h, c);
    }
    d.ds[n] = gate / (1 - in.dropout) * dot;
    dgate += w * dot;
  });
  sums.of<&GradientSpec::gate>().add(dgate, batch, row.q_row(), h);
}

/// From the gradient of the weights to that of the logits, and of the terms behind a first mix.
void add_weights(const AttentionProblem& p, const BackwardArgs& b, const Row& row, RowGradient& d,
                 Sums& sums) {
  const HeadInputs& in = b.forward.inputs;
  const Terms& terms = p.heads.terms;
  const Index h = row.head, i = row.query, position = row.position();

  // w_j = exp(s_j) / (exp(sink) + sum exp(s))
  //   ds_j  = w_j (dw_j - delta)        delta = sum_j w_j dw_j
  //   dsink = w_sink (0 - delta)
  if (p.heads.norm == Norm::entmax) {
    std::vector<double> w, dw;
    each_open(row, [&](Index, std::size_t n) { w.push_back(row.weights[n]), dw.push_back(d.ds[n]); });
    w.push_back(row.sink_weight), dw.push_back(0);
    sums.of<&GradientSpec::alpha>().add(normalize_backward(w, at(in.alpha, h), dw), h);
    std::size_t next = 0;
    each_open(row, [&](Index, std::size_t n) { d.ds[n] = dw[next++]; });
    if (terms.sinks) sums.of<&GradientSpec::sinks>().add(dw.back(), h);
  } else {
    double delta = 0;
    each_open(row, [&](Index, std::size_t n) { delta += row.weights[n] * d.ds[n]; });
    each_open(row, [&](Index, std::size_t n) { d.ds[n] = row.weights[n] * (d.ds[n] - delta); });
    if (terms.sinks) sums.of<&GradientSpec::sinks>().add(-row.sink_weight * delta, h);
  }

  // s = s + bias + alibi + relative
  //   dbias = ds, dslope = sum_j ds_j -|q - k|, drelative[bucket] = sum of ds_j in the bucket
  if (sums.of<&GradientSpec::bias>().asked())
    each_open(row, [&](Index j, std::size_t n) {
      sums.of<&GradientSpec::bias>().add(d.ds[n], row.sequence, h, i, j);
    });
  if (sums.of<&GradientSpec::slopes>().asked())
    each_open(row, [&](Index j, std::size_t n) {
      sums.of<&GradientSpec::slopes>().add(d.ds[n] * alibi_term(1.0, position, j), h);
    });
  if (sums.of<&GradientSpec::relative>().asked())
    each_open(row, [&](Index j, std::size_t n) {
      sums.of<&GradientSpec::relative>().add(d.ds[n], in.buckets.bucket(position, j), h);
    });
}

/// From the gradient of the capped scores to q, k and the scale.
void add_scores(const AttentionProblem& p, const BackwardArgs& b, const Row& row, RowGradient& d,
                Sums& sums) {
  const AttentionArgs& a = b.forward;
  const HeadInputs& in = a.inputs;
  const SequenceLocation& place = row.place;
  const Index h = row.head, batch = place.tensor_batch;

  // s = cap * tanh(s / cap)
  //   ds = ds (1 - tanh(s / cap)^2)
  if (p.heads.terms.softcap)
    each_open(row, [&](Index, std::size_t n) {
      const double t = std::tanh(row.scaled[n] / in.softcap);
      d.ds[n] *= 1 - t * t;
    });

  // s_j = scale * q.k_j
  //   dk_j   = scale * ds_j q
  //   dq     = scale * sum_j ds_j k_j
  //   dscale = q . sum_j ds_j k_j
  const double scale = in.scale.given() ? at(in.scale, in.scale.size[0] == 1 ? 0 : h)
                                        : 1.0 / std::sqrt(static_cast<double>(p.heads.q.dim));
  d.dq.assign(d.dq.size(), 0);
  each_open(row, [&](Index j, std::size_t n) {
    for (Index c = 0; c < p.heads.q.dim; ++c) {
      const auto at_c = static_cast<std::size_t>(c);
      d.dq[at_c] += d.ds[n] * head_element(a.k, p.heads.k, batch, place.kv_row + j, h, c);
      sums.of<&GradientSpec::k>().add_to_head(scale * d.ds[n] * row.q_vector[at_c], p.heads.k, batch,
                                              place.kv_row + j, h, c);
    }
  });
  double dscale = 0;
  for (Index c = 0; c < p.heads.q.dim; ++c) {
    const auto at_c = static_cast<std::size_t>(c);
    sums.of<&GradientSpec::q>().add_to_head(scale * d.dq[at_c], p.heads.q, batch, row.q_row(), h, c);
    dscale += row.q_vector[at_c] * d.dq[at_c];
  }
  sums.of<&GradientSpec::scale>().add(dscale, h);
}

/// y_h = sum_m M[m h] x_m of one pair
///   dx_m    = sum_h M[m h] dy_h
///   dM[m h] = x_m dy_h, and with M = W + (I + diag(gate)) + sum_r w1_r w2_r^T of query and key
///   dW = dM, dgate_h = dM[h h], dw1_r[m] = sum_h dM[m h] w2_r[h], dw2_r[h] = sum_m dM[m h] w1_r[m]
template <class X, class Dy, class Dx>
void add_mix(const PairMix& mix, Sum& given, Sums& sums, X&& x, Dy&& dy, Dx&& dx) {
  const MixStage& stage = mix.stage;
  const Index rank = mix.rank, row0 = stage.row0;
  for (Index m = 0; m < stage.from; ++m) {
    double sum = 0;
    for (Index h = 0; h < stage.to; ++h) {
      const double slope = x(m) * dy(h);
      sum += mix(m, h) * dy(h);
      given.add(slope, m, h);
      if (stage.kind != Mix::dynamic) continue;
      for (Index r = 0; r < rank; ++r) {
        sums.of<&GradientSpec::mix_q>().add(slope * mix.of_query(rank + r, h), mix.batch, mix.q, row0 + r, m);
        sums.of<&GradientSpec::mix_q>().add(slope * mix.of_query(r, m), mix.batch, mix.q, row0 + rank + r, h);
        sums.of<&GradientSpec::mix_k>().add(slope * mix.of_key(rank + r, h), mix.batch, mix.k, row0 + r, m);
        sums.of<&GradientSpec::mix_k>().add(slope * mix.of_key(r, m), mix.batch, mix.k, row0 + rank + r, h);
      }
      if (m != h) continue;
      sums.of<&GradientSpec::mix_q>().add(slope, mix.batch, mix.q, row0 + 2 * rank, h);
      sums.of<&GradientSpec::mix_k>().add(slope, mix.batch, mix.k, row0 + 2 * rank, h);
    }
    dx(m) = sum;
  }
}

/// One query of all heads.
void add_mixed(const AttentionProblem& p, const BackwardArgs& b, MixedRows& m, std::vector<RowGradient>& d,
               std::vector<RowGradient>& next, Sums& sums) {
  const AttentionArgs& a = b.forward;
  const auto each_pair = [&](auto&& body) {
    for (Index j = 0; j < m.rows[0].keys(); ++j) {
      const auto n = static_cast<std::size_t>(j);
      bool open = false;
      for (const Row& row : m.rows) open = open || row.open[n];
      if (open) body(j, n);
    }
  };
  const auto at_head = [](auto& of, Index h) -> auto& { return of[static_cast<std::size_t>(h)]; };
  for (Row& row : m.outs) {
    row.drop(p, a);
    if (!row.empty) add_output(p, b, row, at_head(d, row.head), sums);
  }
  if (m.after.kind != Mix::none) {
    each_pair([&](Index j, std::size_t n) {
      add_mix(
          m.pair(p, a, m.after, j), sums.of<&GradientSpec::mix_after>(), sums,
          [&](Index h) { return at_head(m.rows, h).weights[n]; },
          [&](Index v) { return at_head(d, v).ds[n]; },
          [&](Index h) -> double& { return at_head(next, h).ds[n]; });
    });
    std::swap(d, next);
  }
  for (const Row& row : m.rows)
    if (!row.empty) add_weights(p, b, row, at_head(d, row.head), sums);
  for (const Row& row : m.rows)
    each_pair([&](Index, std::size_t n) {
      if (!row.open[n]) at_head(d, row.head).ds[n] = 0;
    });
  if (m.before.kind != Mix::none) {
    each_pair([&](Index j, std::size_t n) {
      add_mix(
          m.pair(p, a, m.before, j), sums.of<&GradientSpec::mix_before>(), sums,
          [&](Index k) { return at_head(m.scores, k).logits[n]; },
          [&](Index h) { return at_head(d, h).ds[n]; },
          [&](Index k) -> double& { return at_head(next, k).ds[n]; });
    });
    std::swap(d, next);
  }
  for (const Row& row : m.scores) add_scores(p, b, row, at_head(d, row.head), sums);
}

/// Every gradient is summed in ascending order of (sequence, query, head).
void run_mixed(const AttentionProblem& p, const BackwardArgs& a, Sums& sums) {
  MixedRows rows(p, a.forward);
  const auto most =
      static_cast<std::size_t>(max_of(max_of(p.heads.q.heads, p.heads.normal_heads()), p.heads.v.heads));
  std::vector<RowGradient> d(most, RowGradient(p)), next = d;
  for (Index b = 0; b < p.batch; ++b) {
    const SequenceLocation place = place_of(p, a.forward, b);
    for (Index i = 0; i < place.q_tokens && still_wanted(); ++i) {
      rows.compute(p, a.forward, place, b, i);
      // As in run(): what no head sees a key of gives nothing, whatever q holds (NaN times dq = 0 is NaN).
      if (std::any_of(rows.rows.begin(), rows.rows.end(), [](const Row& row) { return !row.empty; }))
        add_mixed(p, a, rows, d, next, sums);
    }
  }
}

Status run(const BackwardProblem& problem, const BackwardArgs& a, std::span<std::byte>,
           ThreadPool& pool) noexcept {
  try {
    const AttentionProblem& p = problem.forward;
    Sums sums(a);
    Row row(p);
    RowGradient gradient(p);
    // One task: every gradient is summed in ascending order of (sequence, head, query), and the pool sets the
    // floating environment.
    pool.parallel_for(1, [&](Index, int) {
      if (p.heads.mixes()) run_mixed(p, a, sums);
      for (Index b = 0; b < p.batch && !p.heads.mixes(); ++b)
        for (Index h = 0; h < p.heads.q.heads; ++h) {
          row.place = place_of(p, a.forward, b);
          for (Index i = 0; i < row.place.q_tokens && still_wanted(); ++i) {
            row.compute(p, a.forward, b, h, i);
            row.drop(p, a.forward);
            if (row.empty) continue;  // o = 0 whatever q, k, v, dout are; a sink's share has no slope either
            add_output(p, a, row, gradient, sums);
            add_weights(p, a, row, gradient, sums);
            add_scores(p, a, row, gradient, sums);
          }
        }
      sums.store();
    });
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  } catch (const std::length_error&) {  // a vector longer than any address space
    return Status::out_of_memory;
  }
  return Status::ok;
}

}  // namespace

const BackwardKernel kRefBackward = {
    .name = "ref",
    .takes = kEvery,
    .limits = [](const BackwardProblem&) { return std::string(); },
    .workspace_bytes = [](const BackwardProblem&, int) -> std::size_t { return 0; },
    .run = run,
    .numerics = [](const BackwardProblem&) { return std::string("ref f64"); },
};

}  // namespace headwise::ref
