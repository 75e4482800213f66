#include <cmath>

#include "headwise/kernels/ref/row.h"

namespace headwise::ref {
namespace {

double minus_x_ln_x(double x) { return x == 0 ? 0 : -x * std::log(x); }

void write_statistics(const ProbeOut& out, const Row& row) {
  double entropy = minus_x_ln_x(row.sink_weight), second_moment = 0, mean_distance = 0, top_weight = 0;
  Index top_position = -1;
  for (Index j = 0; j < row.keys(); ++j) {
    if (!row.open[static_cast<std::size_t>(j)]) continue;
    const double w = row.weights[static_cast<std::size_t>(j)];
    const Index q = row.position();
    entropy += minus_x_ln_x(w);
    second_moment += w * w;
    mean_distance += w * static_cast<double>(q < j ? j - q : q - j);
    if (top_position < 0 || w > top_weight) top_weight = w, top_position = j;
  }
  const auto put_given = [&](const AnyView& to, double value) {
    if (to.given()) put(to, value, row.place.tensor_batch, row.head, row.q_row());
  };
  put_given(out.entropy, entropy);
  put_given(out.top_weight, top_weight);
  put_given(out.top_position, static_cast<double>(top_position));
  put_given(out.second_moment, second_moment);
  put_given(out.mean_distance, mean_distance);
  put_given(out.sink_mass, row.sink_weight);
}

/// Selection by repeated search: the next key is the heaviest one after (weight, key) of the last.
void write_top_keys(const ProbeOut& out, const Row& row, Index top_k) {
  Index last = -1;
  for (Index n = 0; n < top_k; ++n) {
    Index best = -1;
    for (Index j = 0; j < row.keys() && (n == 0 || last >= 0); ++j) {
      const auto weight = [&](Index key) { return row.weights[static_cast<std::size_t>(key)]; };
      if (!row.open[static_cast<std::size_t>(j)]) continue;
      const bool after_last = n == 0 || weight(j) < weight(last) || (weight(j) == weight(last) && j > last);
      if (after_last && (best < 0 || weight(j) > weight(best))) best = j;
    }
    const Index b = row.place.tensor_batch, h = row.head, i = row.q_row();
    put(out.top_keys, static_cast<double>(best), b, h, i, n);
    put(out.top_weights, best < 0 ? 0 : row.weights[static_cast<std::size_t>(best)], b, h, i, n);
    last = best;
  }
}

void write_class_mass(const ProbeOut& out, const Row& row, Index classes) {
  for (Index c = 0; c < classes; ++c) {
    double mass = 0;
    for (Index j = 0; j < row.keys(); ++j)
      if (row.open[static_cast<std::size_t>(j)] &&
          at(out.class_of, row.place.tensor_batch, row.place.kv_row + j) == static_cast<double>(c))
        mass += row.weights[static_cast<std::size_t>(j)];
    put(out.class_mass, mass, row.place.tensor_batch, row.head, row.q_row(), c);
  }
}

}  // namespace

void write_row_probes(const AttentionProblem& p, const AttentionArgs& a, const Row& row) {
  if (p.probe.rows) write_statistics(a.probe, row);
  if (p.probe.top_k > 0) write_top_keys(a.probe, row, p.probe.top_k);
  if (p.probe.classes > 0) write_class_mass(a.probe, row, p.probe.classes);
}

}  // namespace headwise::ref
