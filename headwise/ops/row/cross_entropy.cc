#include "headwise/ops/row/cross_entropy.h"

#include <cmath>

#include "headwise/base/arena.h"
#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/row/row.h"
#include "headwise/ops/checks/in_out.h"

namespace headwise {
namespace {

constexpr Index kTaskElements = 1 << 12;

Index label_at(const AnyView& labels, Index row) {
  return labels.dtype == DType::i64 ? static_cast<const std::int64_t*>(labels.data)[row * labels.step[0]]
                                    : static_cast<const std::int32_t*>(labels.data)[row * labels.step[0]];
}

void check_logits(const char* op, const AnyView& logits, const AnyView& dlogits, double weight) {
  require(logits.rank == 2 && is_float(logits.dtype), ErrorKind::bad_shape, op, "logits is ", logits,
          "; give [rows classes] of a float type");
  check_memory(op, "logits", logits);
  if (dlogits.given()) check_in_out(op, logits, dlogits, "logits", "dlogits");
  require(std::isfinite(weight), ErrorKind::bad_argument, op, "weight is ", weight, "; give a finite number");
}

/// f(row) -> loss of the row, in parallel; then their sum in ascending order.
template <class F>
double sum_rows(Index rows, Index columns, Context& ctx, const F& f) {
  Arena measure = Arena::measuring();
  measure.take<double>("cross_entropy.losses", rows);
  Arena arena(ctx.workspace(measure.used()));
  double* losses = arena.take<double>("cross_entropy.losses", rows);
  const Index grain = max_of(1, kTaskElements / max_of(1, columns));
  ctx.pool().parallel_for(ceil_div(rows, grain), [&](Index task, int) noexcept {
    for (Index row = task * grain; row < min_of(rows, (task + 1) * grain); ++row) losses[row] = f(row);
  });
  double sum = 0;
  for (Index row = 0; row < rows; ++row) sum += losses[row];
  return sum;
}

/// One row; dx null: not wanted.
template <class T>
struct LossTask {
  const T* x;
  Index step, classes, label;
  double smoothing, weight;
  T* dx;
  Index dx_step;
};
template <class T>
double row_loss(const LossTask<T>& task) {
  const auto [x, step, classes, label, smoothing, weight, dx, dx_step] = task;
  double top = -INFINITY, sum = 0, all = 0, block[cpu::kRowBlock];
  bool nan = false;
  for (Index c = 0; c < classes; ++c) {
    const double value = cpu::widen(x[c * step]);
    top = value > top ? value : top;
    nan = nan || std::isnan(value);
  }
  if (nan) top = NAN;
  for (Index c = 0; c < classes; ++c) {
    const double value = cpu::widen(x[c * step]);
    sum += std::exp(value - top);
    all += value;
  }
  const double lse = top + std::log(sum), share = smoothing / static_cast<double>(classes);
  const double at_label = cpu::widen(x[label * step]);
  // An absent smoothing leaves out its term: a class of -inf elsewhere must not make 0 * inf.
  double loss = (1 - smoothing) * (lse - at_label);
  if (smoothing > 0) loss += smoothing * lse - share * all;
  if (!dx) return loss;
  for (Index begin = 0; begin < classes; begin += cpu::kRowBlock) {
    const Index count = min_of(cpu::kRowBlock, classes - begin);
    for (Index i = 0; i < count; ++i) {
      const double q = (begin + i == label ? 1 - smoothing : 0.0) + share;
      block[i] = (std::exp(cpu::widen(x[(begin + i) * step]) - lse) - q) * weight;
    }
    cpu::store_row(block, count, dx + begin * dx_step, dx_step);
  }
  return loss;
}

/// The same for rows of side-by-side f32: exponentials in f32, sums in double.
double run_loss(const float* x, Index classes, Index label, double smoothing, double weight, float* dx) {
  const auto at_label = static_cast<double>(x[label]);  // dx may be x
  const cpu::ExpRow r = cpu::chosen_isa().gemm()->rows.exp_row(x, classes, dx);
  const double lse = static_cast<double>(r.top) + std::log(r.sum),
               share = smoothing / static_cast<double>(classes);
  double loss = (1 - smoothing) * (lse - at_label);
  if (smoothing > 0) loss += smoothing * lse - share * r.all;
  if (!dx) return loss;
  const double p = static_cast<double>(dx[label]) / r.sum;
  const auto scale = static_cast<float>(weight / r.sum), shift = static_cast<float>(share * weight);
  for (Index c = 0; c < classes; ++c) dx[c] = dx[c] * scale - shift;
  dx[label] = static_cast<float>((p - (1 - smoothing) - share) * weight);
  return loss;
}

}  // namespace

Index counted_labels(const InputView& labels, Index ignore) {
  require(labels.rank == 1 && (labels.dtype == DType::i64 || labels.dtype == DType::i32),
          ErrorKind::bad_shape, "cross_entropy", "labels is ", labels, "; give i64 or i32 [rows]");
  Index counted = 0;
  for (Index row = 0; row < labels.size[0]; ++row) counted += label_at(labels, row) != ignore ? 1 : 0;
  return counted;
}

LossSum cross_entropy(const InputView& logits, const InputView& labels, const CrossEntropyOptions& o,
                      const AnyView& dlogits, double weight, Context& ctx) {
  constexpr const char* kOp = "cross_entropy";
  check_logits(kOp, logits, dlogits, weight);
  const Index rows = logits.size[0], classes = logits.size[1];
  require(labels.rank == 1 && labels.size[0] == rows &&
              (labels.dtype == DType::i64 || labels.dtype == DType::i32),
          ErrorKind::bad_shape, kOp, "labels is ", labels, " but logits is ", logits, "; give i64 or i32 [",
          rows, "]");
  check_memory(kOp, "labels", labels);
  if (dlogits.given()) check_apart(kOp, dlogits, "labels", labels, "dlogits");
  require(o.label_smoothing >= 0 && o.label_smoothing <= 1, ErrorKind::bad_argument, kOp,
          "label_smoothing is ", o.label_smoothing, "; give a number from 0 to 1");
  for (Index row = 0; row < rows; ++row) {
    const Index label = label_at(labels, row);
    require(label == o.ignore || (0 <= label && label < classes), ErrorKind::bad_argument, kOp, "labels[",
            row, "] is ", label, " but there are ", classes, " classes; give 0 to ", classes - 1, ", or ",
            o.ignore, " to leave the row out");
  }
  const FloatEnv env;
  LossSum total;
  total.counted = counted_labels(labels, o.ignore);
  if (rows == 0 || classes == 0) return total;
  visit_float(logits.dtype, [&]<class T>(Type<T>) {
    total.loss = sum_rows(rows, classes, ctx, [&](Index row) noexcept {
      const T* x = static_cast<const T*>(logits.data) + row * logits.step[0];
      T* dx = dlogits.given() ? static_cast<T*>(dlogits.data) + row * dlogits.step[0] : nullptr;
      const Index label = label_at(labels, row), dx_step = dlogits.given() ? dlogits.step[1] : 0;
      if (label == o.ignore) {
        for (Index c = 0; dx && c < classes; ++c) dx[c * dx_step] = cpu::narrow<T>(0.0);
        return 0.0;
      }
      if constexpr (std::is_same_v<T, float>)
        if (logits.step[1] == 1 && (!dx || dx_step == 1))
          return run_loss(x, classes, label, o.label_smoothing, weight, dx);
      return row_loss<T>({.x = x,
                          .step = logits.step[1],
                          .classes = classes,
                          .label = label,
                          .smoothing = o.label_smoothing,
                          .weight = weight,
                          .dx = dx,
                          .dx_step = dx_step});
    });
  });
  return total;
}

LossSum binary_cross_entropy(const InputView& logits, const InputView& labels, const AnyView& dlogits,
                             double weight, Context& ctx) {
  constexpr const char* kOp = "binary_cross_entropy";
  check_logits(kOp, logits, dlogits, weight);
  const Index rows = logits.size[0], classes = logits.size[1];
  require(labels.rank == 2 && labels.size[0] == rows && labels.size[1] == classes &&
              (is_float(labels.dtype) || labels.dtype == DType::u8),
          ErrorKind::bad_shape, kOp, "labels is ", labels, " but logits is ", logits,
          "; give u8 or a float type of its sizes");
  check_memory(kOp, "labels", labels);
  if (dlogits.given()) check_apart(kOp, dlogits, "labels", labels, "dlogits");
  const auto label = [&](Index row, Index c) {
    return load_double(labels.data, labels.dtype, row * labels.step[0] + c * labels.step[1]);
  };
  for (Index row = 0; row < rows; ++row)
    for (Index c = 0; c < classes; ++c)
      require(label(row, c) >= 0 && label(row, c) <= 1, ErrorKind::bad_argument, kOp, "labels[", row, " ", c,
              "] is ", label(row, c), "; give numbers from 0 to 1");
  const FloatEnv env;
  LossSum total;
  total.counted = rows * classes;
  if (total.counted == 0) return total;
  visit_float(logits.dtype, [&]<class T>(Type<T>) {
    total.loss = sum_rows(rows, classes, ctx, [&](Index row) noexcept {
      double sum = 0;
      for (Index c = 0; c < classes; ++c) {
        const double x =
            cpu::widen(static_cast<const T*>(logits.data)[row * logits.step[0] + c * logits.step[1]]);
        const double y = label(row, c), e = std::exp(-std::abs(x));
        sum += (x > 0 ? x : x < 0 ? 0.0 : x) - x * y + std::log1p(e);
        const double s = x >= 0 ? 1 / (1 + e) : e / (1 + e);
        if (dlogits.given())
          static_cast<T*>(dlogits.data)[row * dlogits.step[0] + c * dlogits.step[1]] =
              cpu::narrow<T>((s - y) * weight);
      }
      return sum;
    });
  });
  return total;
}

}  // namespace headwise
