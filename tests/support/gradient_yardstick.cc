#include "tests/support/gradient_yardstick.h"

#include <cmath>
#include <limits>

#include "headwise/base/context.h"
#include "headwise/kernels/ref/row.h"
#include "headwise/ops/attention/checks/backward.h"
#include "tests/support/case.h"
#include "tests/support/yardstick.h"

namespace headwise::test {
namespace {

double smallest_normal(DType t) { return t == DType::f16 ? 0x1p-14 : t == DType::f64 ? 0x1p-1022 : 0x1p-126; }

/// A gradient in two forms: summed in f32, and as the sum of positive parts.
struct Twin {
  AnyView like;
  std::vector<float> plain;
  std::vector<double> size;
  explicit Twin(const InputView& v)
      : like(v), plain(static_cast<std::size_t>(v.count())), size(static_cast<std::size_t>(v.count())) {}
  void add(float x, double part, Index i, Index j = 0, Index k = 0, Index l = 0) {
    if (!like.given()) return;
    const Index index[] = {i, j, k, l};
    Index at = 0;
    for (int axis = 0; axis < like.rank; ++axis)
      at = at * like.size[axis] + (like.size[axis] == 1 ? 0 : index[axis]);
    plain[static_cast<std::size_t>(at)] += x;
    size[static_cast<std::size_t>(at)] += part;
  }
  void add_to_head(float x, double part, const HeadLayout& l, Index batch, Index row, Index h, Index c) {
    if (l.row == 0) return add(x, part, batch, row, l.slot(h), c);
    const Index column = l.column(h) + c;
    if (0 <= column && column < l.row) add(x, part, batch, row, column);
  }
};

/// The gradients of all rows, and the largest numbers met on the way.
struct Plain {
  const AttentionProblem& p;
  const BackwardArgs& b;
  const DType t;
  Twin q{b.dq}, k{b.dk}, v{b.dv}, bias{b.dbias}, slopes{b.dslopes}, relative{b.drelative}, sinks{b.dsinks},
      scale{b.dscale}, gate{b.dgate};
  double most_logit = 0, most_product = 0;
};

float narrow(double x) { return static_cast<float>(x); }

/// One row, step by step as the formula goes. `row` holds its truth: its open keys, and sizes.
struct PlainRow {
  Plain& to;
  const ref::Row& row;
  const AttentionProblem& p = to.p;
  const AttentionArgs& a = to.b.forward;
  const HeadInputs& in = a.inputs;
  const Terms& terms = p.heads.terms;
  Index h = row.head, batch = row.place.tensor_batch, at_q = row.q_row(), at_kv = row.place.kv_row,
        position = row.position();
  std::size_t keys = static_cast<std::size_t>(row.keys());
  float factor = in.scale.given() ? narrow(ref::at(in.scale, in.scale.size[0] == 1 ? 0 : h))
                                  : 1.0f / std::sqrt(narrow(static_cast<double>(p.heads.q.dim)));
  std::vector<float> s = std::vector<float>(keys), capped = s, dw = s, w = s;
  std::vector<double> dw_size = std::vector<double>(keys);
  float sink_weight = 0, delta = 0;
  double delta_size = 0;

  float round(float x) const { return rounded(x, to.t); }

  /// q.k as the formula in f32 has it; the largest numbers on the way are kept.
  float product(Index j) const {
    double size = 0;
    for (Index c = 0; c < p.heads.q.dim; ++c)
      size += std::fabs(row.q_vector[static_cast<std::size_t>(c)] *
                        ref::head_element(a.k, p.heads.k, batch, at_kv + j, h, c));
    to.most_product = std::max(to.most_product, size * std::fabs(static_cast<double>(factor)));
    to.most_logit = std::max(to.most_logit, std::fabs(row.logits[static_cast<std::size_t>(j)]));
    float x = 0;
    for (Index c = 0; c < p.heads.q.dim; ++c)
      x += narrow(ref::head_element(a.q, p.heads.q, batch, at_q, h, c)) *
           narrow(ref::head_element(a.k, p.heads.k, batch, at_kv + j, h, c));
    return x;
  }
  /// Scores of open keys into `s`, tanh of the softcap into `capped`.
  void score() {
    for (Index j = 0; j < row.keys(); ++j) {
      const auto n = static_cast<std::size_t>(j);
      if (!row.open[n]) continue;
      float x = round(product(j) * factor);
      if (terms.softcap) {
        capped[n] = std::tanh(x / narrow(in.softcap));
        x = round(narrow(in.softcap) * capped[n]);
      }
      if (terms.bias) x = round(x + narrow(ref::at(in.bias, row.sequence, h, row.query, j)));
      if (terms.alibi) x = round(x + alibi_term(narrow(ref::at(in.slopes, h)), position, j));
      if (terms.relative) x = round(x + narrow(ref::at(in.relative, in.buckets.bucket(position, j), h)));
      s[n] = x;
    }
  }
  /// Weights of the scores into `w`.
  void weigh() {
    float top = terms.sinks ? narrow(ref::at(in.sinks, h)) : -std::numeric_limits<float>::infinity();
    for (std::size_t n = 0; n < keys; ++n)
      if (row.open[n]) top = std::max(top, s[n]);
    const float sink = terms.sinks ? std::exp(narrow(ref::at(in.sinks, h)) - top) : 0;
    float sum = sink;
    for (std::size_t n = 0; n < keys; ++n)
      if (row.open[n]) sum += w[n] = std::exp(s[n] - top);
    for (float& x : w) x = round(x / sum);
    sink_weight = sink / sum;
  }
  /// dv, dgate, dsinks; gradients of weights into `dw`, their mean into `delta`.
  void add_values() {
    const float keep = 1 / (1 - narrow(in.dropout)),
                g = terms.gate ? narrow(ref::at(in.gate, batch, at_q, h)) : 1;
    float dgate = 0;
    double gate_size = 0;
    for (Index j = 0; j < row.keys(); ++j) {
      const auto n = static_cast<std::size_t>(j);
      if (!row.keep[n]) continue;
      float dot = 0;
      double dot_size = 0;
      for (Index c = 0; c < p.heads.v.dim; ++c) {
        const double dout = ref::at(to.b.dout, batch, at_q, h, c),
                     value = ref::head_element(a.v, p.heads.v, batch, at_kv + j, h, c);
        dot += narrow(dout) * narrow(value);
        dot_size += std::fabs(dout * value);
        to.v.add_to_head(round(w[n] * keep) * g * narrow(dout), std::fabs(row.weights[n] * keep * g * dout),
                         p.heads.v, batch, at_kv + j, h, c);
      }
      dgate += w[n] * keep * round(dot);
      gate_size += row.weights[n] * keep * dot_size;
      dw[n] = round(g * keep * round(dot));
      dw_size[n] = std::fabs(g) * keep * dot_size;
      delta += w[n] * dw[n];
      delta_size += row.weights[n] * dw_size[n];
    }
    // delta may come from an `out` that was rounded: to a unit of the smallest normal number where it is
    // below.
    for (Index c = 0; c < p.heads.v.dim; ++c)
      delta_size += smallest_normal(to.t) * std::fabs(ref::at(to.b.dout, batch, at_q, h, c));
    to.gate.add(dgate, gate_size, batch, at_q, h);
    if (terms.sinks) to.sinks.add(-sink_weight * delta, row.sink_weight * delta_size, h);
  }
  /// dk and the gradients of terms, pair by pair; then dq and dscale of the row.
  void add_scores() {
    std::vector<float> dq(static_cast<std::size_t>(p.heads.q.dim));
    std::vector<double> dq_size(dq.size());
    for (Index j = 0; j < row.keys(); ++j) {
      const auto n = static_cast<std::size_t>(j);
      if (!row.open[n]) continue;
      float ds = round(w[n] * (dw[n] - delta));
      const double size = row.weights[n] * (dw_size[n] + delta_size);
      to.bias.add(ds, size, row.sequence, h, row.query, j);
      to.slopes.add(ds * alibi_term(1.0f, position, j), size * std::fabs(alibi_term(1.0, position, j)), h);
      if (terms.relative) to.relative.add(ds, size, in.buckets.bucket(position, j), h);
      if (terms.softcap) ds = round(ds * (1 - capped[n] * capped[n]));
      for (Index c = 0; c < p.heads.q.dim; ++c) {
        const auto at_c = static_cast<std::size_t>(c);
        const double x = ref::head_element(a.k, p.heads.k, batch, at_kv + j, h, c), y = row.q_vector[at_c];
        dq[at_c] += ds * narrow(x);
        dq_size[at_c] += size * std::fabs(x);
        to.k.add_to_head(factor * ds * narrow(y), std::fabs(factor * y) * size, p.heads.k, batch, at_kv + j,
                         h, c);
      }
    }
    float dscale = 0;
    double scale_size = 0;
    for (Index c = 0; c < p.heads.q.dim; ++c) {
      const auto at_c = static_cast<std::size_t>(c);
      to.q.add_to_head(factor * dq[at_c], std::fabs(factor) * dq_size[at_c], p.heads.q, batch, at_q, h, c);
      dscale += narrow(row.q_vector[at_c]) * dq[at_c];
      scale_size += std::fabs(row.q_vector[at_c]) * dq_size[at_c];
    }
    to.scale.add(dscale, scale_size, h);
  }
};

void add_row(Plain& all, const ref::Row& row) {
  if (row.empty) return;
  all.most_logit = std::max(all.most_logit, std::fabs(row.lse));
  PlainRow plain{all, row};
  plain.score();
  plain.weigh();
  plain.add_values();
  plain.add_scores();
}

}  // namespace

Yardstick yardstick_of(const GradientRun& r, DType dtype) {
  const BackwardProblem problem = backward_problem_of(r.args, r.heads);
  const BackwardArgs a = check_backward_args(problem, r.args);
  const AttentionProblem& p = problem.forward;
  Plain all{p, a, dtype};
  ref::Row row(p);
  for (Index b = 0; b < p.batch; ++b)
    for (Index h = 0; h < p.heads.q.heads; ++h) {
      row.place = place_of(p, a.forward, b);
      for (Index i = 0; i < row.place.q_tokens; ++i) {
        row.compute(p, a.forward, b, h, i);
        row.drop(p, a.forward);
        add_row(all, row);
      }
    }
  Yardstick y;
  y.most_logit = all.most_logit, y.most_product = all.most_product;
  for (const Twin* t :
       {&all.q, &all.k, &all.v, &all.bias, &all.slopes, &all.relative, &all.sinks, &all.scale, &all.gate}) {
    const bool tensor = t == &all.q || t == &all.k || t == &all.v;
    std::vector<double> plain;
    for (const float x : t->plain) plain.push_back(static_cast<double>(tensor ? rounded(x, dtype) : x));
    y.plain.push_back(std::move(plain));
    y.size.push_back(t->size);
  }
  return y;
}

namespace {

double unit_of(DType t) {
  return t == DType::bf16 ? 0x1p-8 : t == DType::f16 ? 0x1p-11 : t == DType::f32 ? 0x1p-24 : 0x1p-53;
}
double most_finite(DType t) {
  return t == DType::f16   ? 65504
         : t == DType::f64 ? std::numeric_limits<double>::max()
                           : static_cast<double>(std::numeric_limits<float>::max());
}

}  // namespace

GradientTruth::GradientTruth(const BackwardArgs& a, const HeadSpec& heads)
    : dtype_(a.forward.q.dtype), run_(in_double(a, heads)) {
  static auto* ctx = new Context({.threads = 1, .kernels = "ref"});
  attention_backward(run_.args, *ctx, heads);
  yard_ = yardstick_of(run_, dtype_);
}

std::string GradientTruth::fault(const BackwardArgs& a) const {
  const Index rows = a.dout.size[1] * a.dout.size[0], keys = a.forward.k.size[1];
  const double chain = std::sqrt(static_cast<double>(rows * a.dout.size[2] + keys)) / 4;
  const double logits = yard_.most_logit + yard_.most_product + chain;
  const double relative =
      dtype_ == DType::f64 ? 1e-13 * (1 + logits) : 3 * unit_of(dtype_) + 4 * 0x1p-24 * (4 + logits);
  std::vector<AnyView> right;
  each_gradient(run_.args, [&](const char*, const InputView&, const InputView& g) { right.push_back(g); });
  std::string fault;
  std::size_t which = 0;
  each_gradient(a, [&](const char* name, const InputView&, const InputView& gradient) {
    const std::vector<double>& size = yard_.size[which];
    const InputView& want = right[which++];
    if (!gradient.given() || !fault.empty()) return;
    Tensor got = converted(gradient, DType::f64);
    for (Index n = 0; n < want.count() && fault.empty(); ++n) {
      const double x = got.values<double>()[static_cast<std::size_t>(n)],
                   y = static_cast<const double*>(want.data)[n];
      const double bound = relative * size[static_cast<std::size_t>(n)] +
                           2 * unit_of(gradient.dtype) * std::fabs(y) +
                           2 * unit_of(gradient.dtype) * smallest_normal(gradient.dtype);
      const bool beyond = std::fabs(y) + bound > most_finite(gradient.dtype);
      if (std::isnan(y) ? std::isnan(x) : std::fabs(x - y) <= bound || (beyond && !std::isnan(x))) continue;
      fault = text("d", name, " ", n, " is ", x, ", truth ", y, ", apart ", x - y, ", bound ", bound);
    }
  });
  return fault;
}

}  // namespace headwise::test
