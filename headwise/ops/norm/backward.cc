#include <cmath>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/row/norm.h"
#include "headwise/ops/checks/view.h"
#include "headwise/ops/device/here.h"
#include "headwise/ops/device/memory.h"
#include "headwise/ops/device/rows.h"
#include "headwise/ops/norm/norm.h"
#include "headwise/ops/norm/weights.h"

namespace headwise {
namespace {

/// Tokens whose part of dweight is summed at once: fixed, so that no sum knows the number of threads.
constexpr Index kChunkTokens = 256;

struct Op {
  const char *name, *weight;
  bool repeats;  // a size of 1 in the weight stands for any
};

void check(const Op& op, const NormBackwardArgs& a, double eps) {
  require(a.x.rank >= 1, ErrorKind::bad_shape, op.name, "x is empty; give a tensor of rank 1 to ", kMaxRank);
  require(is_float(a.x.dtype), ErrorKind::bad_dtype, op.name, "gradients asked of integer inputs: x is ", a.x,
          "; give f32, bf16, f16 or f64");
  check_memory(op.name, "x", a.x);
  bool same = a.dout.rank == a.x.rank;
  for (int axis = 0; same && axis < a.x.rank; ++axis) same = a.dout.size[axis] == a.x.size[axis];
  require(same && a.dout.dtype == a.x.dtype, same ? ErrorKind::bad_dtype : ErrorKind::bad_shape, op.name,
          "dout is ", a.dout, " but x is ", a.x, "; give dout the dtype and sizes of x");
  check_memory(op.name, "dout", a.dout);
  require(eps >= 0 && std::isfinite(eps), ErrorKind::bad_argument, op.name, "eps is ", eps,
          "; give a finite number from 0 up");
  require(a.dx.given() || a.dweight.given(), ErrorKind::bad_argument, op.name,
          "no gradient is asked; give dx, dweight or both");
  if (a.weight.given()) check_weight(op.name, op.weight, a.weight, a.x, op.repeats);
  if (a.dx.given()) {
    check_in_out(op.name, a.dout, a.dx, "dout", "dx");
    check_apart(op.name, a.dx, "x", a.x, "dx");
    if (a.weight.given()) check_apart(op.name, a.dx, op.weight, a.weight, "dx");
  }
  if (!a.dweight.given()) return;
  require(a.weight.given(), ErrorKind::bad_argument, op.name, "dweight is given but ", op.weight,
          " is not; give the ", op.weight, " of the forward or leave dweight empty");
  same = a.dweight.rank == a.weight.rank;
  for (int axis = 0; same && axis < a.weight.rank; ++axis) same = a.dweight.size[axis] == a.weight.size[axis];
  require(same && is_float(a.dweight.dtype), same ? ErrorKind::bad_dtype : ErrorKind::bad_shape, op.name,
          "dweight is ", a.dweight, " but ", op.weight, " is ", a.weight,
          "; give a float type and its sizes");
  check_memory(op.name, "dweight", a.dweight);
  require(each_element_once(a.dweight), ErrorKind::bad_argument, op.name, "dweight is ", a.dweight,
          " with steps that put several elements in one place; give each its own");
  check_apart(op.name, a.dweight, "x", a.x, "dweight");
  check_apart(op.name, a.dweight, "dout", a.dout, "dweight");
  check_apart(op.name, a.dweight, op.weight, a.weight, "dweight");
  if (a.dx.given()) check_apart(op.name, a.dweight, "dx", a.dx, "dweight");
}

/// dweight = the sums of all chunks in ascending order; an axis of size 1 sums over what it stood for.
void fold(const AnyView& dweight, const double* sums, Index chunks, Index rows, Index dim) {
  const int last = dweight.rank - 1;
  const Index columns = dweight.size[last], span = columns == dim ? 1 : dim;
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < columns; ++c) {
      double sum = 0;
      for (Index i = c; i < c + span; ++i)
        for (Index chunk = 0; chunk < chunks; ++chunk) sum += sums[(chunk * rows + r) * dim + i];
      const Index at = (dweight.rank == 2 ? r * dweight.step[0] : 0) + c * dweight.step[last];
      store_double(dweight.data, dweight.dtype, at, sum);
    }
}

/// factors(sum of squares, g.x) gives a and c of cpu::NormSlope.
template <class Factors>
void run(const Op& op, const NormBackwardArgs& a, double added, Context& ctx, const Factors& factors) {
  const AnyView& x = a.x;
  const Index dim = x.size[x.rank - 1], heads = x.rank >= 2 ? x.size[x.rank - 2] : 1;
  const Index rows = x.count() == 0 ? 0 : x.count() / dim,
              each = a.weight.given() ? weight_rows(a.weight) : 1;
  const Index grain = kChunkTokens * (each > 1 ? heads : 1), chunks = ceil_div(rows, grain);
  Weights weights;
  double* sums = nullptr;
  const auto lay_out = [&](Arena& arena) {
    double* to = a.weight.given() ? take_weights(op.name, arena, a.weight, x) : nullptr;
    if (a.dweight.given()) sums = arena.take<double>("norm.dweight", chunks * each * dim);
    return to;
  };
  Arena measure = Arena::measuring();
  lay_out(measure);
  Arena arena(ctx.workspace(measure.used()));
  if (double* to = lay_out(arena); a.weight.given()) weights = fill_weights(to, a.weight, added, x);

  const int last = x.rank - 1;
  cpu::chosen_isa();  // an unknown level is said before tasks start
  visit_float(x.dtype, [&]<class T>(Type<T>) {
    ctx.pool().parallel_for(chunks, [&](Index chunk, int) noexcept {
      double* sum = sums ? sums + chunk * each * dim : nullptr;
      for (Index i = 0; sum && i < each * dim; ++i) sum[i] = 0;
      for (Index row = chunk * grain; row < min_of(rows, (chunk + 1) * grain); ++row) {
        const Index head = each > 1 ? row % heads : 0;
        cpu::NormRow<T> r;
        r.x = static_cast<const T*>(x.data) + row_offset(x, row), r.x_step = x.step[last];
        r.dout = static_cast<const T*>(a.dout.data) + row_offset(a.dout, row),
        r.dout_step = a.dout.step[last];
        if (a.dx.given())
          r.dx = static_cast<T*>(a.dx.data) + row_offset(a.dx, row), r.dx_step = a.dx.step[last];
        r.weight = weights.data ? weights.data + head * weights.head_step : nullptr;
        r.dweight = sum ? sum + head * dim : nullptr;
        r.dim = dim;
        cpu::norm_backward(r, factors(cpu::sum_squares(r.x, r.x_step, dim), cpu::sum_products(r)));
      }
    });
  });
  if (sums) fold(a.dweight, sums, chunks, each, dim);
}

/// On a CUDA device: 1/rms of each row into args.room, then the gradients; dweight is written, as on the CPU.
void rms_norm_backward_there(const Op& op, const NormBackwardArgs& a, const RmsNormOptions& options,
                             Device there, Context& ctx) {
  NormBackwardArgs checked = a;
  checked.x = as_checked(a.x), checked.weight = as_checked(a.weight), checked.dout = as_checked(a.dout);
  checked.dx = as_checked(a.dx), checked.dweight = as_checked(a.dweight);
  check(op, checked, options.eps);
  const Index rows = row_count(a.x);
  require(a.room.dtype == DType::f32 && a.room.count() >= rows, ErrorKind::bad_argument, op.name, "room is ",
          a.room, "; on a device give f32 [", rows, "] to work in");
  auto* inverse = static_cast<float*>(a.room.data);
  const float added = options.weight_form == WeightForm::one_plus ? 1.0f : 0.0f;
  const cuda::Rows x = rows_on_device(op.name, "x", a.x);
  start(cuda::NormTask{.x = x,
                       .inverse = inverse,
                       .rows = rows,
                       .columns = column_count(a.x),
                       .eps = static_cast<float>(options.eps),
                       .layer = false},
        there, ctx.stream());
  if (a.dweight.given()) clear_bytes(a.dweight, ctx);
  start(cuda::NormGradTask{.x = x,
                           .dout = rows_on_device(op.name, "dout", a.dout),
                           .dx = rows_on_device(op.name, "dx", a.dx),
                           .weight = numbers_on_device(op.name, op.weight, a.weight),
                           .inverse = inverse,
                           .dweight = sums_on_device(op.name, "dweight", a.dweight),
                           .rows = rows,
                           .columns = column_count(a.x),
                           .added = added,
                           .layer = false},
        there, ctx.stream());
}

}  // namespace

void rms_norm_backward(const NormBackwardArgs& args, const RmsNormOptions& options, Context& ctx) {
  constexpr Op kOp{"rms_norm_backward", "weight", false};
  const Device there = device_of(kOp.name, {{"x", args.x},
                                            {"weight", args.weight},
                                            {"dout", args.dout},
                                            {"dx", args.dx},
                                            {"dweight", args.dweight},
                                            {"room", args.room}});
  if (!there.is_cpu()) return rms_norm_backward_there(kOp, args, options, there, ctx);
  check(kOp, args, options.eps);
  const FloatEnv env;
  const Index dim = args.x.size[args.x.rank - 1];
  const double added = options.weight_form == WeightForm::one_plus ? 1.0 : 0.0;
  run(kOp, args, added, ctx, [&](double sum, double product) noexcept {
    const double factor = cpu::rms_factor(sum, dim, options.eps);
    return cpu::NormSlope{factor, factor * product / static_cast<double>(dim)};
  });
}

void l2_norm_backward(const NormBackwardArgs& args, const L2NormOptions& options, Context& ctx) {
  constexpr Op kOp{"l2_norm_backward", "scale", true};
  check(kOp, args, options.eps);
  const FloatEnv env;
  run(kOp, args, 0.0, ctx, [&](double sum, double product) noexcept {
    const double factor = cpu::l2_factor(sum, options.eps);
    // Below eps the divisor is a constant: the second term is the slope of the length, and goes.
    return cpu::NormSlope{factor, std::sqrt(sum) < options.eps ? 0.0 : factor * product};
  });
}

}  // namespace headwise
