#include "headwise/kernels/ref/row.h"

#include <cmath>
#include <limits>

#include "headwise/base/random.h"
#include "headwise/kernels/ref/normalize.h"

namespace headwise::ref {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

Index offset_of(const AnyView& x, Index i, Index j, Index k, Index l) {
  return i * x.step[0] + j * x.step[1] + k * x.step[2] + l * x.step[3];
}

void write_scores(const AttentionProblem& p, const AttentionArgs& a, const Row& row, ScoreStage stage) {
  if (p.probe.scores != stage) return;
  const std::vector<double>& values = stage == ScoreStage::weights ? row.weights : row.logits;
  const double past_the_end = stage == ScoreStage::weights ? 0 : kMinusInfinity;
  for (Index j = 0; j < p.kv_tokens; ++j)
    put(a.probe.scores, j < row.keys() ? values[static_cast<std::size_t>(j)] : past_the_end, row.sequence,
        row.head, row.query, j);
}

}  // namespace

double at(const AnyView& x, Index i, Index j, Index k, Index l) {
  return load_double(x.data, x.dtype, offset_of(x, i, j, k, l));
}
void put(const AnyView& x, double value, Index i, Index j, Index k, Index l) {
  store_double(x.data, x.dtype, offset_of(x, i, j, k, l), value);
}

double head_element(const AnyView& x, const HeadLayout& layout, Index batch, Index row, Index h, Index c) {
  if (layout.row == 0) return at(x, batch, row, layout.slot(h), c);
  const Index column = layout.column(h) + c;
  return 0 <= column && column < layout.row ? at(x, batch, row, column) : 0;
}

namespace {

/// Batch and row of token j of the row's sequence in k, v and their scales.
struct TokenPlace {
  Index batch, row;
};
TokenPlace token_place(const AttentionProblem& p, const AttentionArgs& a, const Row& row, Index j) {
  if (p.keys != KeyForm::paged) return {row.place.tensor_batch, row.place.kv_row + j};
  return {a.page_table.page(row.sequence, j / p.page_size), j % p.page_size};
}

/// k = scale * x, rounded to f32: what numbers of 8 bits stand for.
double times_scale(double x, const AnyView& scale, const HeadLayout& layout, TokenPlace place, Index head) {
  const double s = at(scale, place.batch, place.row, layout.slot(head));
  return static_cast<double>(static_cast<float>(x) * static_cast<float>(s));
}

}  // namespace

double key_element(const AttentionProblem& p, const AttentionArgs& a, const Row& row, Index j, Index c) {
  const HeadLayout& layout = p.heads.k;
  const TokenPlace place = token_place(p, a, row, j);
  const double x = p.keys == KeyForm::packed
                       ? at(a.k, place.batch, layout.slot(row.head), a.packed.order.at(j, c, layout.dim))
                       : head_element(a.k, layout, place.batch, place.row, row.head, c);
  return p.eight_bit_kv() ? times_scale(x, a.k_scale, layout, place, row.head) : x;
}
double value_element(const AttentionProblem& p, const AttentionArgs& a, const Row& row, Index j, Index c) {
  const HeadLayout& layout = p.heads.v;
  const TokenPlace place = token_place(p, a, row, j);
  const double x = head_element(a.v, layout, place.batch, place.row, row.head, c);
  return p.eight_bit_kv() ? times_scale(x, a.v_scale, layout, place, row.head) : x;
}

void Row::compute(const AttentionProblem& p, const AttentionArgs& a, Index b, Index h, Index i) {
  open_pairs(p, a, b, h, i);
  score(p, a);
  weigh(p, a);
}

void Row::open_pairs(const AttentionProblem& p, const AttentionArgs& a, Index b, Index h, Index i) {
  sequence = b, head = h, query = i;
  // The mask comes first so that k and v of a closed pair are not even loaded; the order of terms is not
  // touched by it.
  const MaskSubject mask_place{b, h, place.q_start};
  listed = !p.heads.terms.rows || a.inputs.rows.lists(b * p.heads.q.heads + h, i);
  for (Index j = 0; j < keys(); ++j) {
    const auto n = static_cast<std::size_t>(j);
    open[n] = listed && (!a.mask.given() || a.mask.of(h).may_attend(position(), j, mask_place));
    logits[n] = kMinusInfinity;
    weights[n] = 0;
  }
}

void Row::score(const AttentionProblem& p, const AttentionArgs& a) {
  const HeadInputs& in = a.inputs;
  const Index dim = p.heads.q.dim, h = head;

  // s = scale * q.k
  const double scale = in.scale.given() ? at(in.scale, in.scale.size[0] == 1 ? 0 : h)
                                        : 1.0 / std::sqrt(static_cast<double>(dim));
  for (Index c = 0; c < dim; ++c)
    q_vector[static_cast<std::size_t>(c)] = head_element(a.q, p.heads.q, place.tensor_batch, q_row(), h, c);
  each_open([&](Index j, double& s) {
    double dot = 0;
    for (Index c = 0; c < dim; ++c)
      dot += q_vector[static_cast<std::size_t>(c)] * key_element(p, a, *this, j, c);
    s = scaled[static_cast<std::size_t>(j)] = scale * dot;
  });
  write_scores(p, a, *this, ScoreStage::scaled);

  // s = cap * tanh(s / cap)
  if (p.heads.terms.softcap) each_open([&](Index, double& s) { s = in.softcap * std::tanh(s / in.softcap); });
  write_scores(p, a, *this, ScoreStage::softcapped);
}

void Row::weigh(const AttentionProblem& p, const AttentionArgs& a) {
  const HeadInputs& in = a.inputs;
  const Terms& terms = p.heads.terms;
  const Index b = sequence, h = head, i = query, q = position();

  // s = s + bias + alibi + relative
  if (terms.bias) each_open([&](Index j, double& s) { s += at(in.bias, b, h, i, j); });
  if (terms.alibi) each_open([&](Index j, double& s) { s += alibi_term(at(in.slopes, h), q, j); });
  if (terms.relative)
    each_open([&](Index j, double& s) { s += at(in.relative, in.buckets.bucket(q, j), h); });
  write_scores(p, a, *this, ScoreStage::biased);

  // w = exp(s - top) / (exp(sink - top) + sum exp(s - top)); a logit of -inf weighs nothing: its pair is
  // closed
  empty = true;
  const bool sink = terms.sinks && listed;
  double top = sink ? at(in.sinks, h) : kMinusInfinity;
  each_open([&](Index j, double& s) {
    if (s == kMinusInfinity) {
      open[static_cast<std::size_t>(j)] = 0;
      return;
    }
    empty = false;
    if (!(s <= top)) top = s;
  });
  if (p.heads.norm == Norm::entmax) {
    normalize_row(at(in.alpha, h), sink ? at(in.sinks, h) : kMinusInfinity);
    return write_scores(p, a, *this, ScoreStage::weights);
  }
  double sum = sink && top > kMinusInfinity ? std::exp(at(in.sinks, h) - top) : 0;
  sink_weight = sum;
  each_open([&](Index j, double& s) { sum += weights[static_cast<std::size_t>(j)] = std::exp(s - top); });
  lse = top > kMinusInfinity || top != top ? top + std::log(sum) : kMinusInfinity;
  if (sink_weight != 0) sink_weight /= sum;
  each_open([&](Index j, double&) { weights[static_cast<std::size_t>(j)] /= sum; });
  write_scores(p, a, *this, ScoreStage::weights);
}

void Row::normalize_row(double alpha, double sink) {
  std::vector<double> s, w;
  for (Index j = 0; j < keys(); ++j)
    if (open[static_cast<std::size_t>(j)]) s.push_back(logits[static_cast<std::size_t>(j)]);
  s.push_back(sink);
  lse = normalize(s, alpha, w);
  sink_weight = w.back();
  std::size_t n = 0;
  for (std::size_t j = 0; j < static_cast<std::size_t>(keys()); ++j)
    if (open[j] && (weights[j] = w[n++]) == 0) open[j] = 0;  // outside the support: closed, like -inf
}

void Row::drop(const AttentionProblem& p, const AttentionArgs& a) {
  keep = open;
  const HeadInputs& in = a.inputs;
  if (!p.heads.terms.dropout || in.dropout == 0) return;
  const DropoutRule rule = DropoutRule::of(in.dropout, in.seed);
  const Index id = in.sequence_ids.given()
                       ? static_cast<const Index*>(in.sequence_ids.data)[sequence * in.sequence_ids.step[0]]
                       : sequence;
  for (Index j = 0; j < keys(); ++j) {
    const auto n = static_cast<std::size_t>(j);
    if (keep[n]) keep[n] = rule.keep(id, head, position(), j);
  }
}

}  // namespace headwise::ref
