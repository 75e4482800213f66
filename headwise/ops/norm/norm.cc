#include "headwise/ops/norm/norm.h"

#include <cmath>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/row/norm.h"
#include "headwise/ops/checks/in_out.h"
#include "headwise/ops/device/here.h"
#include "headwise/ops/device/rows.h"
#include "headwise/ops/norm/weights.h"

namespace headwise {
namespace {

constexpr Index kTaskElements = 1 << 12;

Weights weights_in(Context& ctx, const char* op, const AnyView& weight, double added, const AnyView& x) {
  if (!weight.given()) return {};
  Arena measure = Arena::measuring();
  take_weights(op, measure, weight, x);
  Arena arena(ctx.workspace(measure.used()));
  return fill_weights(take_weights(op, arena, weight, x), weight, added, x);
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
  cpu::chosen_isa();  // an unknown level is said before tasks start
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

/// On a CUDA device; what a weight of each head would ask is refused there.
void rms_norm_there(const AnyView& x, const AnyView& weight, const AnyView& out,
                    const RmsNormOptions& options, Device there, Context& ctx) {
  constexpr const char* kOp = "rms_norm";
  check_norm(kOp, as_checked(x), as_checked(out), options.eps);
  if (weight.given()) check_weight(kOp, "weight", as_checked(weight), as_checked(x), false);
  start(cuda::NormTask{.x = rows_on_device(kOp, "x", x),
                       .out = rows_on_device(kOp, "out", out),
                       .weight = numbers_on_device(kOp, "weight", weight),
                       .rows = row_count(x),
                       .columns = column_count(x),
                       .eps = static_cast<float>(options.eps),
                       .added = options.weight_form == WeightForm::one_plus ? 1.0f : 0.0f,
                       .layer = false},
        there, ctx.stream());
}

}  // namespace

void rms_norm(const InputView& x, const InputView& weight, const AnyView& out, const RmsNormOptions& options,
              Context& ctx) {
  const Device there = device_of("rms_norm", {{"x", x}, {"weight", weight}, {"out", out}});
  if (!there.is_cpu()) return rms_norm_there(x, weight, out, options, there, ctx);
  check_norm("rms_norm", x, out, options.eps);
  if (weight.given()) {
    check_weight("rms_norm", "weight", weight, x, false);
    check_apart("rms_norm", out, "weight", weight);
  }
  const FloatEnv env;
  const double added = options.weight_form == WeightForm::one_plus ? 1.0 : 0.0;
  const Index dim = x.size[x.rank - 1];
  norm_rows(x, out, weights_in(ctx, "rms_norm", weight, added, x), ctx.pool(),
            [&](double sum) noexcept { return cpu::rms_factor(sum, dim, options.eps); });
}

void l2_norm(const InputView& x, const InputView& scale, const AnyView& out, const L2NormOptions& options,
             Context& ctx) {
  check_norm("l2_norm", x, out, options.eps);
  if (scale.given()) {
    check_weight("l2_norm", "scale", scale, x, true);
    check_apart("l2_norm", out, "scale", scale);
  }
  const FloatEnv env;
  norm_rows(x, out, weights_in(ctx, "l2_norm", scale, 0.0, x), ctx.pool(),
            [&](double sum) noexcept { return cpu::l2_factor(sum, options.eps); });
}

}  // namespace headwise
