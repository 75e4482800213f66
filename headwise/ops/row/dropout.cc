#include "headwise/ops/row/dropout.h"

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/row/row.h"
#include "headwise/ops/checks/in_out.h"
#include "headwise/ops/device/here.h"
#include "headwise/ops/device/rows.h"

namespace headwise {
namespace {

constexpr Index kTaskElements = 1 << 13;

/// How many blocks are drawn side by side, so that the rounds of different blocks overlap.
constexpr Index kBlocks = 16;
constexpr Index kRun = 4 * kBlocks;

/// keep[i] of columns begin..begin+kRun-1, begin a multiple of 4.
void draw(const DropoutOptions& o, std::uint32_t threshold, Index row, Index begin, bool* keep) {
  const auto number = static_cast<std::uint64_t>(row + o.first_row);
  std::uint32_t words[kBlocks][4];
  for (Index b = 0; b < kBlocks; ++b) {
    const Philox::Block block =
        Philox::block(o.seed, {static_cast<std::uint32_t>(begin / 4 + b), static_cast<std::uint32_t>(number),
                               static_cast<std::uint32_t>(number >> 32), o.site});
    for (std::size_t j = 0; j < 4; ++j) words[b][j] = block[j];
  }
  for (Index i = 0; i < kRun; ++i) keep[i] = words[i / 4][i % 4] >= threshold;
}

}  // namespace

void dropout(const InputView& x, const InputView& residual, const DropoutOptions& o, const AnyView& out,
             Context& ctx) {
  constexpr const char* kOp = "dropout";
  require(x.rank == 2, ErrorKind::bad_shape, kOp, "x is ", x, "; give [rows columns]");
  require(o.p >= 0 && o.p <= 1, ErrorKind::bad_argument, kOp, "p is ", o.p, "; give a number from 0 to 1");
  require(o.first_row >= 0, ErrorKind::bad_argument, kOp, "first_row is ", o.first_row,
          "; rows count from 0");
  const Device there = device_of(kOp, {{"x", x}, {"residual", residual}, {"out", out}});
  check_in_out(kOp, as_checked(x), as_checked(out));
  if (residual.given()) check_in_out(kOp, as_checked(residual), as_checked(out), "residual");
  const FloatEnv env;
  const Index rows = x.size[0], columns = x.size[1];
  if (rows == 0 || columns == 0) return;
  const std::uint32_t threshold = DropoutRule::of(o.p, o.seed).threshold;
  const double scale = o.p < 1 ? 1 / (1 - o.p) : 0;
  if (!there.is_cpu())
    return start(cuda::DropoutTask{.x = rows_on_device(kOp, "x", x),
                                   .residual = rows_on_device(kOp, "residual", residual),
                                   .out = rows_on_device(kOp, "out", out),
                                   .rows = rows,
                                   .columns = columns,
                                   .first_row = o.first_row,
                                   .scale = scale,
                                   .seed = o.seed,
                                   .threshold = threshold,
                                   .site = o.site,
                                   .none = o.p == 1},
                 there, ctx.stream());
  const Index grain = max_of(1, kTaskElements / columns);
  const auto in_runs = [](const AnyView& v) { return v.dtype == DType::f32 && v.step[1] == 1; };
  if (o.p < 1 && in_runs(x) && in_runs(out) && (!residual.given() || in_runs(residual))) {
    const cpu::RowKernels& kernels = cpu::chosen_isa().gemm()->rows;
    const auto at = [](const AnyView& v, Index row) { return static_cast<float*>(v.data) + row * v.step[0]; };
    ctx.pool().parallel_for(ceil_div(rows, grain), [&](Index task, int) noexcept {
      for (Index row = task * grain; row < min_of(rows, (task + 1) * grain); ++row)
        kernels.dropout({at(x, row), residual.given() ? at(residual, row) : nullptr, at(out, row), columns,
                         scale, o.seed, static_cast<std::uint64_t>(row + o.first_row), threshold, o.site});
    });
    return;
  }
  visit_float(x.dtype, [&]<class T>(Type<T>) {
    ctx.pool().parallel_for(ceil_div(rows, grain), [&](Index task, int) noexcept {
      for (Index row = task * grain; row < min_of(rows, (task + 1) * grain); ++row)
        for (Index begin = 0; begin < columns; begin += kRun) {
          const Index count = min_of(kRun, columns - begin);
          bool keep[kRun];
          double from[kRun], add[kRun];
          draw(o, threshold, row, begin, keep);
          cpu::load_row(static_cast<const T*>(x.data) + row * x.step[0] + begin * x.step[1], x.step[1], count,
                        from);
          // Selected, not multiplied by 0: a dropped infinity gives 0.
          for (Index i = 0; i < count; ++i) from[i] = keep[i] ? from[i] * scale : 0.0;
          if (o.p == 1)
            for (Index i = 0; i < count; ++i) from[i] = 0;
          if (residual.given()) {
            cpu::load_row(
                static_cast<const T*>(residual.data) + row * residual.step[0] + begin * residual.step[1],
                residual.step[1], count, add);
            for (Index i = 0; i < count; ++i) from[i] += add[i];
          }
          cpu::store_row(from, count, static_cast<T*>(out.data) + row * out.step[0] + begin * out.step[1],
                         out.step[1]);
        }
    });
  });
}

}  // namespace headwise
