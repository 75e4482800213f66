#include "headwise/ops/norm/layer_norm.h"

#include <cmath>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/row/layer_norm.h"
#include "headwise/ops/checks/view.h"
#include "headwise/ops/device/here.h"
#include "headwise/ops/device/rows.h"
#include "headwise/ops/norm/weights.h"

namespace headwise {
namespace {

/// Rows whose part of dweight and dbias is summed at once: fixed, so that no sum knows the number of threads.
constexpr Index kChunkRows = 64;
constexpr Index kTaskElements = 1 << 14;

void check_vector(const char* op, const char* name, const AnyView& v, const AnyView& x) {
  if (!v.given()) return;
  const bool fits = v.rank == 1 && v.size[0] == x.size[x.rank - 1];
  require(fits && is_float(v.dtype), fits ? ErrorKind::bad_dtype : ErrorKind::bad_shape, op, name, " is ", v,
          " but x is ", x, "; give [dim] of a float type");
  check_memory(op, name, v);
}
void check_eps(const char* op, double eps) {
  require(eps >= 0 && std::isfinite(eps), ErrorKind::bad_argument, op, "eps is ", eps,
          "; give a finite number from 0 up");
}
void check_sum(const char* name, const AnyView& v, const LayerNormGrads& a) {
  constexpr const char* kOp = "layer_norm_backward";
  if (!v.given()) return;
  check_vector(kOp, name, v, a.x);
  require(each_element_once(v), ErrorKind::bad_argument, kOp, name, " is ", v,
          " with steps that put several elements in one place; give each its own");
  check_apart(kOp, v, "x", a.x, name);
  check_apart(kOp, v, "dout", a.dout, name);
  if (a.weight.given()) check_apart(kOp, v, "weight", a.weight, name);
  if (a.dx.given()) check_apart(kOp, v, "dx", a.dx, name);
}

/// Of as many rows as x has; null where v is empty.
cpu::RowMoments* moments_in(const char* op, const AnyView& v, const AnyView& x) {
  if (!v.given()) return nullptr;
  const Index rows = x.size[x.rank - 1] ? x.count() / x.size[x.rank - 1] : 0;
  require(v.rank == 2 && v.dtype == DType::f64 && v.size[0] == rows && v.size[1] == 2 && v.step[0] == 2 &&
              v.step[1] == 1,
          ErrorKind::bad_shape, op, "moments is ", v, "; give f64 [", rows, " 2], row-major");
  check_memory(op, "moments", v);
  check_apart(op, v, "x", x, "moments");
  return static_cast<cpu::RowMoments*>(v.data);
}

/// v as doubles in memory of the arena; null while measuring, or where v is empty.
double* doubles_of(Arena& arena, const AnyView& v, Index dim) {
  if (!v.given()) return nullptr;
  double* to = arena.take<double>("layer_norm.weights", dim);
  if (to)
    for (Index i = 0; i < dim; ++i) to[i] = load_double(v.data, v.dtype, i * v.step[0]);
  return to;
}

/// On a CUDA device: f32 [2 rows], all means first; null where v is empty.
float* moments_there(const char* op, const AnyView& v, Index rows) {
  if (!v.given()) return nullptr;
  require(v.rank == 2 && v.dtype == DType::f32 && v.size[0] == 2 && v.size[1] == rows && v.step[0] == rows &&
              v.step[1] == 1,
          ErrorKind::bad_shape, op, "moments is ", v, " on ", v.where(), "; give f32 [2 ", rows,
          "], row-major, there");
  return static_cast<float*>(v.data);
}

void layer_norm_there(const LayerNormArgs& a, Device there, Context& ctx) {
  constexpr const char* kOp = "layer_norm";
  check_in_out(kOp, as_checked(a.x), as_checked(a.out));
  check_eps(kOp, a.eps);
  check_vector(kOp, "weight", as_checked(a.weight), a.x);
  check_vector(kOp, "bias", as_checked(a.bias), a.x);
  const Index rows = row_count(a.x);
  float* moments = moments_there(kOp, a.moments, rows);
  start(cuda::NormTask{.x = rows_on_device(kOp, "x", a.x),
                       .out = rows_on_device(kOp, "out", a.out),
                       .weight = numbers_on_device(kOp, "weight", a.weight),
                       .bias = numbers_on_device(kOp, "bias", a.bias),
                       .mean = moments,
                       .inverse = moments ? moments + rows : nullptr,
                       .rows = rows,
                       .columns = column_count(a.x),
                       .eps = static_cast<float>(a.eps)},
        there, ctx.stream());
}

void layer_norm_backward_there(const LayerNormGrads& a, Device there, Context& ctx) {
  constexpr const char* kOp = "layer_norm_backward";
  check_in_out(kOp, as_checked(a.x), as_checked(a.dout), "x", "dout");
  if (a.dx.given()) check_in_out(kOp, as_checked(a.dout), as_checked(a.dx), "dout", "dx");
  if (a.residual.given()) check_in_out(kOp, as_checked(a.residual), as_checked(a.dx), "residual", "dx");
  check_vector(kOp, "weight", as_checked(a.weight), a.x);
  check_vector(kOp, "dweight", as_checked(a.dweight), a.x);
  check_vector(kOp, "dbias", as_checked(a.dbias), a.x);
  const Index rows = row_count(a.x);
  float* moments = moments_there(kOp, a.moments, rows);
  start(cuda::NormGradTask{.x = rows_on_device(kOp, "x", a.x),
                           .dout = rows_on_device(kOp, "dout", a.dout),
                           .residual = rows_on_device(kOp, "residual", a.residual),
                           .dx = rows_on_device(kOp, "dx", a.dx),
                           .weight = numbers_on_device(kOp, "weight", a.weight),
                           .mean = moments,
                           .inverse = moments ? moments + rows : nullptr,
                           .dweight = sums_on_device(kOp, "dweight", a.dweight),
                           .dbias = sums_on_device(kOp, "dbias", a.dbias),
                           .rows = rows,
                           .columns = column_count(a.x)},
        there, ctx.stream());
}

}  // namespace

void layer_norm(const LayerNormArgs& a, Context& ctx) {
  constexpr const char* kOp = "layer_norm";
  require(a.x.rank >= 1, ErrorKind::bad_shape, kOp, "x is empty; give a tensor of rank 1 to ", kMaxRank);
  const Device there = device_of(
      kOp, {{"x", a.x}, {"weight", a.weight}, {"bias", a.bias}, {"out", a.out}, {"moments", a.moments}});
  if (!there.is_cpu()) return layer_norm_there(a, there, ctx);
  check_in_out(kOp, a.x, a.out);
  check_eps(kOp, a.eps);
  check_vector(kOp, "weight", a.weight, a.x);
  check_vector(kOp, "bias", a.bias, a.x);
  if (a.weight.given()) check_apart(kOp, a.out, "weight", a.weight);
  if (a.bias.given()) check_apart(kOp, a.out, "bias", a.bias);
  cpu::RowMoments* moments = moments_in(kOp, a.moments, a.x);
  if (moments) check_apart(kOp, a.out, "moments", a.moments);
  if (a.x.count() == 0) return;
  const FloatEnv env;
  const int last = a.x.rank - 1;
  const Index dim = a.x.size[last], rows = a.x.count() / dim, grain = max_of(1, kTaskElements / dim);
  Arena measure = Arena::measuring();
  doubles_of(measure, a.weight, dim), doubles_of(measure, a.bias, dim);
  Arena arena(ctx.workspace(measure.used()));
  const double* weight = doubles_of(arena, a.weight, dim);
  const double* bias = doubles_of(arena, a.bias, dim);
  visit_float(a.x.dtype, [&]<class T>(Type<T>) {
    ctx.pool().parallel_for(ceil_div(rows, grain), [&](Index task, int) noexcept {
      for (Index row = task * grain; row < min_of(rows, (task + 1) * grain); ++row) {
        cpu::LayerNormRow<T> r;
        r.x = static_cast<const T*>(a.x.data) + row_offset(a.x, row), r.x_step = a.x.step[last];
        r.out = static_cast<T*>(a.out.data) + row_offset(a.out, row), r.out_step = a.out.step[last];
        r.dim = dim, r.weight = weight, r.bias = bias, r.eps = a.eps;
        r.moments = moments ? moments + row : nullptr;
        cpu::layer_norm_row(r);
      }
    });
  });
}

void layer_norm_backward(const LayerNormGrads& a, Context& ctx) {
  constexpr const char* kOp = "layer_norm_backward";
  require(a.x.rank >= 1, ErrorKind::bad_shape, kOp, "x is empty; give a tensor of rank 1 to ", kMaxRank);
  const Device there = device_of(kOp, {{"x", a.x},
                                       {"weight", a.weight},
                                       {"dout", a.dout},
                                       {"residual", a.residual},
                                       {"moments", a.moments},
                                       {"dx", a.dx},
                                       {"dweight", a.dweight},
                                       {"dbias", a.dbias}});
  if (!there.is_cpu()) return layer_norm_backward_there(a, there, ctx);
  bool same = a.dout.rank == a.x.rank;
  for (int axis = 0; same && axis < a.x.rank; ++axis) same = a.dout.size[axis] == a.x.size[axis];
  require(same && a.dout.dtype == a.x.dtype && is_float(a.x.dtype),
          same ? ErrorKind::bad_dtype : ErrorKind::bad_shape, kOp, "dout is ", a.dout, " but x is ", a.x,
          "; give both one float dtype and the same sizes");
  check_memory(kOp, "x", a.x);
  check_memory(kOp, "dout", a.dout);
  check_eps(kOp, a.eps);
  const cpu::RowMoments* moments = moments_in(kOp, a.moments, a.x);
  check_vector(kOp, "weight", a.weight, a.x);
  require(a.dx.given() || a.dweight.given() || a.dbias.given(), ErrorKind::bad_argument, kOp,
          "no gradient is asked; give dx, dweight or dbias");
  if (a.dx.given()) {
    check_in_out(kOp, a.dout, a.dx, "dout", "dx");
    check_apart(kOp, a.dx, "x", a.x, "dx");
    if (a.weight.given()) check_apart(kOp, a.dx, "weight", a.weight, "dx");
    if (a.residual.given()) check_in_out(kOp, a.residual, a.dx, "residual", "dx");
  }
  check_sum("dweight", a.dweight, a);
  check_sum("dbias", a.dbias, a);
  if (a.dweight.given() && a.dbias.given()) check_apart(kOp, a.dweight, "dbias", a.dbias, "dweight");
  if (a.x.count() == 0) return;
  const FloatEnv env;
  const int last = a.x.rank - 1;
  const Index dim = a.x.size[last], rows = a.x.count() / dim, chunks = ceil_div(rows, kChunkRows);
  double *weight = nullptr, *dweight = nullptr, *dbias = nullptr;
  const auto lay_out = [&](Arena& arena) {
    weight = doubles_of(arena, a.weight, dim);
    if (a.dweight.given()) dweight = arena.take<double>("layer_norm.dweight", chunks * dim);
    if (a.dbias.given()) dbias = arena.take<double>("layer_norm.dbias", chunks * dim);
  };
  Arena measure = Arena::measuring();
  lay_out(measure);
  Arena arena(ctx.workspace(measure.used()));
  lay_out(arena);
  visit_float(a.x.dtype, [&]<class T>(Type<T>) {
    ctx.pool().parallel_for(chunks, [&](Index chunk, int) noexcept {
      for (double* sums : {dweight, dbias})
        for (Index i = 0; sums && i < dim; ++i) sums[chunk * dim + i] = 0;
      for (Index row = chunk * kChunkRows; row < min_of(rows, (chunk + 1) * kChunkRows); ++row) {
        cpu::LayerNormSlope<T> r;
        r.x = static_cast<const T*>(a.x.data) + row_offset(a.x, row), r.x_step = a.x.step[last];
        r.dout = static_cast<const T*>(a.dout.data) + row_offset(a.dout, row),
        r.dout_step = a.dout.step[last];
        if (a.dx.given())
          r.dx = static_cast<T*>(a.dx.data) + row_offset(a.dx, row), r.dx_step = a.dx.step[last];
        if (a.residual.given())
          r.residual = static_cast<const T*>(a.residual.data) + row_offset(a.residual, row),
          r.residual_step = a.residual.step[last];
        r.dim = dim, r.weight = weight, r.eps = a.eps;
        r.moments = moments ? moments + row : nullptr;
        r.dweight = dweight ? dweight + chunk * dim : nullptr;
        r.dbias = dbias ? dbias + chunk * dim : nullptr;
        cpu::layer_norm_row_backward(r);
      }
    });
  });
  const auto add = [&](const AnyView& to, double* sums) {
    if (!sums) return;
    for (Index i = 0; i < dim; ++i) sums[i] += load_double(to.data, to.dtype, i * to.step[0]);
    for (Index chunk = 1; chunk < chunks; ++chunk)
      for (Index i = 0; i < dim; ++i) sums[i] += sums[chunk * dim + i];
    for (Index i = 0; i < dim; ++i) store_double(to.data, to.dtype, i * to.step[0], sums[i]);
  };
  add(a.dweight, dweight), add(a.dbias, dbias);
}

}  // namespace headwise
