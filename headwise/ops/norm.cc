#include "headwise/ops/norm.h"

#include <cmath>

#include "headwise/base/arena.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/norm.h"
#include "headwise/ops/in_out_checks.h"

namespace headwise {
namespace {

constexpr Index kTaskElements = 1 << 14;

/// Weights as the kernels read them: doubles, row h for head h, or one row for all.
struct Weights {
  const double* data = nullptr;
  Index head_step = 0;
};

/// `repeats`: an axis of size 1 stands for any size.
void check_weight(const char* op, const char* name, const AnyView& weight, const AnyView& x, bool repeats) {
  require(is_float(weight.dtype), ErrorKind::bad_dtype, op, name, " is ", weight,
          "; give f32, bf16, f16 or f64");
  const auto fits = [&](Index got, Index needed) { return got == needed || (repeats && got == 1); };
  const bool one = weight.rank == 1 && fits(weight.size[0], x.size[x.rank - 1]);
  const bool each = weight.rank == 2 && x.rank >= 2 && fits(weight.size[0], x.size[x.rank - 2]) &&
                    fits(weight.size[1], x.size[x.rank - 1]);
  require(one || each, ErrorKind::bad_shape, op, name, " is ", weight, " but x is ", x,
          repeats ? "; give [dim] or [heads dim], 1 repeats" : "; give [dim] or [heads dim]");
  check_memory(op, name, weight);
}

Weights fill_weights(const char* op, const AnyView& weight, double added, const AnyView& x, Context& ctx) {
  if (!weight.given()) return {};
  const Index dim = x.size[x.rank - 1], rows = weight.rank == 2 ? weight.size[0] : 1;
  const Checked count = Checked(rows) * Checked(dim);
  require(count.ok, ErrorKind::bad_shape, op, "x is ", x, ", which no memory holds; use smaller sizes");
  Arena measure = Arena::measuring();
  measure.take<double>("norm.weights", count.value);
  Arena arena(ctx.workspace(measure.used()));
  double* to = arena.take<double>("norm.weights", count.value);
  const int last = weight.rank - 1;
  const Index row_step = weight.rank == 2 ? weight.step[0] : 0,
              step = weight.size[last] == 1 ? 0 : weight.step[last];
  for (Index r = 0; r < rows; ++r)
    for (Index i = 0; i < dim; ++i)
      to[r * dim + i] = added + load_double(weight.data, weight.dtype, r * row_step + i * step);
  return {to, rows > 1 ? dim : 0};
}

/// Offset of row `row` of all axes but the last.
Index row_offset(const AnyView& v, Index row) {
  Index offset = 0;
  for (int axis = v.rank - 2; axis >= 0; --axis) {
    offset += row % v.size[axis] * v.step[axis];
    row /= v.size[axis];
  }
  return offset;
}

void check_norm(const char* op, const AnyView& x, const AnyView& out, double eps) {
  require(x.rank >= 1, ErrorKind::bad_shape, op, "x is empty; give a tensor of rank 1 to ", kMaxRank);
  check_in_out(op, x, out);
  require(eps >= 0 && std::isfinite(eps), ErrorKind::bad_argument, op, "eps is ", eps,
          "; give a finite number from 0 up");
}

/// factor(sum of squares) is what a row is multiplied by.
template <class Factor>
void norm_rows(const AnyView& x, const AnyView& out, const Weights& weights, ThreadPool& pool,
               const Factor& factor) {
  if (x.count() == 0) return;
  const Index dim = x.size[x.rank - 1], rows = x.count() / dim, heads = x.rank >= 2 ? x.size[x.rank - 2] : 1;
  const Index grain = max_of(1, kTaskElements / dim), x_step = x.step[x.rank - 1],
              out_step = out.step[x.rank - 1];
  visit_float(x.dtype, [&]<class T>(Type<T>) {
    pool.parallel_for(ceil_div(rows, grain), [&](Index task, int) noexcept {
      for (Index row = task * grain; row < min_of(rows, (task + 1) * grain); ++row) {
        const T* from = static_cast<const T*>(x.data) + row_offset(x, row);
        T* to = static_cast<T*>(out.data) + row_offset(out, row);
        const double* weight = weights.data ? weights.data + row % heads * weights.head_step : nullptr;
        cpu::scale_row(from, x_step, to, out_step, dim, factor(cpu::sum_squares(from, x_step, dim)), weight);
      }
    });
  });
}

}  // namespace

void rms_norm(const AnyView& x, const AnyView& weight, const AnyView& out, const RmsNormOptions& options,
              Context& ctx) {
  check_norm("rms_norm", x, out, options.eps);
  if (weight.given()) {
    check_weight("rms_norm", "weight", weight, x, false);
    check_apart("rms_norm", out, "weight", weight);
  }
  const FloatEnv env;
  const double added = options.weight_form == WeightForm::one_plus ? 1.0 : 0.0;
  const Index dim = x.size[x.rank - 1];
  norm_rows(x, out, fill_weights("rms_norm", weight, added, x, ctx), ctx.pool(),
            [&](double sum) noexcept { return cpu::rms_factor(sum, dim, options.eps); });
}

void l2_norm(const AnyView& x, const AnyView& scale, const AnyView& out, const L2NormOptions& options,
             Context& ctx) {
  check_norm("l2_norm", x, out, options.eps);
  if (scale.given()) {
    check_weight("l2_norm", "scale", scale, x, true);
    check_apart("l2_norm", out, "scale", scale);
  }
  const FloatEnv env;
  norm_rows(x, out, fill_weights("l2_norm", scale, 0.0, x, ctx), ctx.pool(),
            [&](double sum) noexcept { return cpu::l2_factor(sum, options.eps); });
}

}  // namespace headwise
