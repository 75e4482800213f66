#include "headwise/ops/route/token.h"

namespace headwise {
namespace {

using namespace routing;

/// [batch tokens heads head_dim] of floats.
void check_q(std::string_view op, const char* name, const AnyView& q, const RouteOptions& o, bool written) {
  check_options(op, o);
  require(q.rank == 4 && is_float(q.dtype) && q.size[2] == o.heads, ErrorKind::bad_shape, op, name, " is ", q,
          " but floats with ", o.heads, " heads are needed, [batch tokens heads head_dim]");
  ArgChecks{op}.check_memory(name, q, written);
}
double element(const AnyView& q, Index b, Index t, Index h, Index c) {
  return load_double(q.data, q.dtype, b * q.step[0] + t * q.step[1] + h * q.step[2] + c * q.step[3]);
}

/// |q| of the routed heads of one token, and their mean and unbiased deviation; 0 where all are equal.
struct Norms {
  double* of;
  double mean = 0, deviation = 0;
  Norms(const RouteOptions& o, const AnyView& q, Index b, Index t, double* memory) : of(memory) {
    const Index n = o.routed();
    for (Index h = 0; h < n; ++h) {
      double sum = 0;
      for (Index c = 0; c < q.size[3]; ++c) {
        const double x = element(q, b, t, o.shared + h, c);
        sum += x * x;
      }
      of[h] = std::sqrt(sum);
      mean += of[h] / static_cast<double>(n);
    }
    double square = 0;
    for (Index h = 0; h < n; ++h) square += (of[h] - mean) * (of[h] - mean);
    if (n > 1) deviation = std::sqrt(square / static_cast<double>(n - 1));
  }
};

}  // namespace

void route_by_norm(const RouteOptions& o, const InputView& q, const AnyView& gate, const AnyView& chosen,
                   Context& ctx) {
  constexpr std::string_view kOp = "route_by_norm";
  check_q(kOp, "q", q, o, false);
  check_rows(kOp, {"gate", gate, o.heads, "[batch tokens heads]"}, q, true);
  check_rows(kOp, {"chosen", chosen, o.chosen, "[batch tokens chosen]", true}, q, true);
  // Dividing by the deviation and the softmax keep the order: the norms themselves choose.
  each_token(gate, 2 * o.heads, ctx, [&](Index b, Index t, double* memory) {
    const Norms norms(o, q, b, t, memory);
    double* mark = memory + o.heads;
    mark_largest(norms.of, o.routed(), o.chosen, mark);
    for (Index h = 0; h < o.shared; ++h) put(gate, b, t, h, 1);
    Index n = 0;
    for (Index h = 0; h < o.routed(); ++h) {
      put(gate, b, t, o.shared + h, mark[h]);
      if (mark[h] != 0)
        static_cast<Index*>(chosen.data)[b * chosen.step[0] + t * chosen.step[1] + n++ * chosen.step[2]] =
            o.shared + h;
    }
  });
}

void route_by_norm_backward(const RouteOptions& o, const InputView& q, const InputView& dgate,
                            const AnyView& dq, Context& ctx) {
  constexpr std::string_view kOp = "route_by_norm_backward";
  check_q(kOp, "q", q, o, false);
  check_q(kOp, "dq", dq, o, true);
  check_rows(kOp, {"dgate", dgate, o.heads, "[batch tokens heads]"}, q, false);
  require(dq.size[0] == q.size[0] && dq.size[1] == q.size[1] && dq.size[3] == q.size[3], ErrorKind::bad_shape,
          kOp, "dq is ", dq, " but q is ", q, "; give equal sizes");
  each_token(dgate, 3 * o.heads, ctx, [&](Index b, Index t, double* memory) {
    const Index n = o.routed();
    const Norms norms(o, q, b, t, memory);
    if (norms.deviation == 0) return;  // scores are equal whatever q is
    double *score = memory + o.heads, *d = memory + 2 * o.heads;
    for (Index h = 0; h < n; ++h)
      score[h] = norms.of[h] / norms.deviation, d[h] = get(dgate, b, t, o.shared + h);
    softmax(score, n);
    softmax_backward(score, d, n);
    // z = |q| / std: d|q|_h = dz_h / std - (sum_j dz_j |q|_j / std^2) (|q|_h - mean) / ((n - 1) std)
    double dot = 0;
    for (Index h = 0; h < n; ++h) dot += d[h] * norms.of[h];
    const double of_std = dot / (norms.deviation * norms.deviation);
    for (Index h = 0; h < n; ++h) {
      const double dnorm = d[h] / norms.deviation - of_std * (norms.of[h] - norms.mean) /
                                                        (static_cast<double>(n - 1) * norms.deviation);
      if (norms.of[h] == 0) continue;
      for (Index c = 0; c < q.size[3]; ++c) {
        const Index at = b * dq.step[0] + t * dq.step[1] + (o.shared + h) * dq.step[2] + c * dq.step[3];
        const double x = dnorm * element(q, b, t, o.shared + h, c) / norms.of[h];
        store_double(dq.data, dq.dtype, at, load_double(dq.data, dq.dtype, at) + x);
      }
    }
  });
}

}  // namespace headwise
