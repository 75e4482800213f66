#include "headwise/ops/row/activation.h"

#include <initializer_list>
#include <type_traits>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/ref/activation.h"
#include "headwise/ops/checks/in_out.h"
#include "headwise/ops/checks/view.h"
#include "headwise/ops/device/here.h"
#include "headwise/ops/device/rows.h"

namespace headwise {
namespace {

constexpr Index kBlock = 256, kTaskBlocks = 64;

struct Named {
  const char* name;
  AnyView view;
};

bool same_form(const AnyView& a, const AnyView& b) {
  bool same = a.rank == b.rank && a.dtype == b.dtype;
  for (int axis = 0; same && axis < a.rank; ++axis) same = a.size[axis] == b.size[axis];
  return same;
}
bool same_places(const AnyView& a, const AnyView& b) {
  bool same = a.data == b.data;
  for (int axis = 0; same && axis < a.rank; ++axis) same = a.size[axis] <= 1 || a.step[axis] == b.step[axis];
  return same;
}

/// One form for all; outputs with a place per element, each an input itself or apart from all inputs, and
/// apart from each other.
void check(const char* op, std::initializer_list<Named> inputs, std::initializer_list<Named> outputs) {
  const Named& first = *inputs.begin();
  require(first.view.rank >= 1, ErrorKind::bad_shape, op, first.name,
          " is empty; give a tensor of rank 1 to ", kMaxRank);
  require(is_float(first.view.dtype), ErrorKind::bad_dtype, op, first.name, " is ", first.view,
          "; give f32, bf16, f16 or f64");
  for (const auto& list : {inputs, outputs})
    for (const Named& v : list) {
      require(same_form(v.view, first.view), ErrorKind::bad_shape, op, v.name, " is ", v.view, " but ",
              first.name, " is ", first.view, "; give both one dtype and sizes");
      check_memory(op, v.name, v.view);
    }
  for (const Named& out : outputs) {
    require(each_element_once(out.view), ErrorKind::bad_argument, op, out.name, " is ", out.view,
            " with steps that put several elements in one place; give each its own");
    for (const Named& in : inputs)
      require(same_places(in.view, out.view) || !may_share_bytes(in.view, out.view), ErrorKind::bad_argument,
              op, out.name, " overlaps ", in.name, " without being it; give it memory of its own, or ",
              in.name, " itself to work in place");
    for (const Named& other : outputs)
      require(&other == &out || !may_share_bytes(other.view, out.view), ErrorKind::bad_argument, op, out.name,
              " overlaps ", other.name, "; give it memory of its own");
  }
}

/// Offset of the first element of row `row` of all axes but the last.
Index row_offset(const AnyView& v, Index row) {
  Index offset = 0;
  for (int axis = v.rank - 2; axis >= 0; --axis) {
    offset += row % v.size[axis] * v.step[axis];
    row /= v.size[axis];
  }
  return offset;
}

template <int In, int Out>
struct Views {
  AnyView in[In], out[Out];
};

/// Calls body(in, count, out) on blocks of T; T is float for everything but f64. Blocks never cross a row.
template <class T, int In, int Out, class Body>
void over_blocks(const Views<In, Out>& v, ThreadPool& pool, const Body& body) {
  const AnyView& x = v.in[0];
  const Index columns = x.size[x.rank - 1], rows = x.count() / columns, cuts = ceil_div(columns, kBlock);
  const cpu::GemmKernels& kernels = *cpu::chosen_isa().gemm();
  const cpu::RowType type = x.dtype == DType::bf16  ? cpu::RowType::bf16
                            : x.dtype == DType::f16 ? cpu::RowType::f16
                                                    : cpu::RowType::f32;
  const auto place = [&](const AnyView& view, Index row) {
    return static_cast<std::byte*>(view.data) + row_offset(view, row) * size_of(view.dtype);
  };
  const auto axis = [&](const AnyView& view) { return cpu::Axis{columns, view.step[view.rank - 1], 0}; };
  pool.parallel_for(ceil_div(rows * cuts, kTaskBlocks), [&](Index task, int) noexcept {
    for (Index block = task * kTaskBlocks; block < min_of(rows * cuts, (task + 1) * kTaskBlocks); ++block) {
      const Index row = block / cuts, c = block % cuts * kBlock, count = min_of(kBlock, columns - c);
      T in[In][kBlock], out[Out][kBlock];
      for (int i = 0; i < In; ++i) {
        if constexpr (std::is_same_v<T, float>)
          kernels.load_stretch(place(v.in[i], row), type, axis(v.in[i]), c, count, in[i]);
        else
          for (Index j = 0; j < count; ++j)
            in[i][j] = reinterpret_cast<const double*>(place(v.in[i], row))[(c + j) * axis(v.in[i]).step];
      }
      body(in, count, out);
      for (int i = 0; i < Out; ++i) {
        if constexpr (std::is_same_v<T, float>)
          kernels.store_stretch(out[i], count, type, place(v.out[i], row), axis(v.out[i]), c);
        else
          for (Index j = 0; j < count; ++j)
            reinterpret_cast<double*>(place(v.out[i], row))[(c + j) * axis(v.out[i]).step] = out[i][j];
      }
    }
  });
}

/// value = act(x), and its slope.
void evaluate(Activation act, const float* x, Index count, float* value, float* slope) {
  cpu::chosen_isa().gemm()->slopes(static_cast<int>(act), x, count, value, slope);
}
void evaluate(Activation act, const double* x, Index count, double* value, double* slope) {
  for (Index i = 0; i < count; ++i) value[i] = ref::activate(act, x[i]), slope[i] = ref::slope_of(act, x[i]);
}

template <int In, int Out, class Body>
void run(const Views<In, Out>& v, Context& ctx, const Body& body) {
  if (v.in[0].count() == 0) return;
  const FloatEnv env;
  if (v.in[0].dtype == DType::f64)
    over_blocks<double>(v, ctx.pool(), body);
  else
    over_blocks<float>(v, ctx.pool(), body);
}

/// On a CUDA device: gate empty for a plain activation; dout given: the gradient.
struct There {
  const char* op;
  Activation act;
  AnyView x, gate = {}, dout = {}, out, dgate = {};
};
void run_there(const There& t, Device there, Context& ctx) {
  start(cuda::ActivationTask{.x = rows_on_device(t.op, "x", t.x),
                             .gate = rows_on_device(t.op, "gate", t.gate),
                             .dout = rows_on_device(t.op, "dout", t.dout),
                             .out = rows_on_device(t.op, "out", t.out),
                             .dgate = rows_on_device(t.op, "dgate", t.dgate),
                             .rows = row_count(t.x),
                             .columns = column_count(t.x),
                             .kind = t.act,
                             .backward = t.dout.given()},
        there, ctx.stream());
}

}  // namespace

void activation(Activation act, const InputView& x, const AnyView& out, Context& ctx) {
  const Device there = device_of("activation", {{"x", x}, {"out", out}});
  check("activation", {{"x", as_checked(x)}}, {{"out", as_checked(out)}});
  if (!there.is_cpu()) return run_there({.op = "activation", .act = act, .x = x, .out = out}, there, ctx);
  run(Views<1, 1>{{x}, {out}}, ctx, [&](const auto& in, Index count, auto& to) noexcept {
    std::remove_cvref_t<decltype(to[0])> slope;
    evaluate(act, in[0], count, to[0], slope);
  });
}

void activation_backward(Activation act, const InputView& x, const InputView& dout, const AnyView& dx,
                         Context& ctx) {
  constexpr const char* kOp = "activation_backward";
  const Device there = device_of(kOp, {{"x", x}, {"dout", dout}, {"dx", dx}});
  check(kOp, {{"x", as_checked(x)}, {"dout", as_checked(dout)}}, {{"dx", as_checked(dx)}});
  if (!there.is_cpu()) return run_there({.op = kOp, .act = act, .x = x, .dout = dout, .out = dx}, there, ctx);
  run(Views<2, 1>{{x, dout}, {dx}}, ctx, [&](const auto& in, Index count, auto& to) noexcept {
    std::remove_cvref_t<decltype(to[0])> value;
    evaluate(act, in[0], count, value, to[0]);
    for (Index i = 0; i < count; ++i) to[0][i] *= in[1][i];
  });
}

void gated(Activation act, const InputView& y, const InputView& gate, const AnyView& out, Context& ctx) {
  const Device there = device_of("gated", {{"y", y}, {"gate", gate}, {"out", out}});
  check("gated", {{"y", as_checked(y)}, {"gate", as_checked(gate)}}, {{"out", as_checked(out)}});
  if (!there.is_cpu())
    return run_there({.op = "gated", .act = act, .x = y, .gate = gate, .out = out}, there, ctx);
  run(Views<2, 1>{{y, gate}, {out}}, ctx, [&](const auto& in, Index count, auto& to) noexcept {
    std::remove_cvref_t<decltype(to[0])> slope;
    evaluate(act, in[1], count, to[0], slope);
    for (Index i = 0; i < count; ++i) to[0][i] *= in[0][i];
  });
}

void gated_backward(Activation act, const InputView& y, const InputView& gate, const InputView& dout,
                    const AnyView& dy, const AnyView& dgate, Context& ctx) {
  constexpr const char* kOp = "gated_backward";
  const Device there =
      device_of(kOp, {{"y", y}, {"gate", gate}, {"dout", dout}, {"dy", dy}, {"dgate", dgate}});
  check(kOp, {{"y", as_checked(y)}, {"gate", as_checked(gate)}, {"dout", as_checked(dout)}},
        {{"dy", as_checked(dy)}, {"dgate", as_checked(dgate)}});
  if (!there.is_cpu())
    return run_there({.op = kOp, .act = act, .x = y, .gate = gate, .dout = dout, .out = dy, .dgate = dgate},
                     there, ctx);
  run(Views<3, 2>{{y, gate, dout}, {dy, dgate}}, ctx, [&](const auto& in, Index count, auto& to) noexcept {
    evaluate(act, in[1], count, to[0], to[1]);
    for (Index i = 0; i < count; ++i) {
      to[1][i] *= in[2][i] * in[0][i];  // out = y act(g)  ->  dg = dout y act'(g)
      to[0][i] *= in[2][i];             // dy = dout act(g)
    }
  });
}

}  // namespace headwise
