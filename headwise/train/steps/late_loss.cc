#include "headwise/train/steps/late_loss.h"

#include <cmath>

#include "headwise/ops/device/here.h"
#include "headwise/ops/device/rows.h"

namespace headwise {
namespace {

void check(const char* op, const InputView& logits, const AnyView& dlogits, double weight,
           const AnyView& sum) {
  require(logits.rank == 2 && !logits.on_cpu() && logits.where() == sum.where() && sum.dtype == DType::f64,
          ErrorKind::bad_argument, op, "logits is ", logits, " on ", logits.where(), " and the sum on ",
          sum.where(), "; give [rows classes] on a CUDA device and an f64 [1] beside it");
  require(!dlogits.given() || (dlogits.rank == 2 && dlogits.size[0] == logits.size[0] &&
                               dlogits.size[1] == logits.size[1] && dlogits.where() == logits.where()),
          ErrorKind::bad_shape, op, "dlogits is ", dlogits, " but logits is ", logits, "; give one like it");
  require(std::isfinite(weight), ErrorKind::bad_argument, op, "weight is ", weight, "; give a finite number");
}

}  // namespace

Index late_cross_entropy(const InputView& logits, const InputView& labels, const CrossEntropyOptions& o,
                         const AnyView& dlogits, double weight, const AnyView& sum, Call& call) {
  constexpr const char* kOp = "cross_entropy";
  check(kOp, logits, dlogits, weight, sum);
  const Index rows = logits.size[0], classes = logits.size[1];
  const Index counted = counted_labels(labels, o.ignore);
  require(labels.size[0] == rows, ErrorKind::bad_shape, kOp, "labels is ", labels, " but logits is ", logits,
          "; give i64 or i32 [", rows, "]");
  for (Index row = 0; row < rows; ++row) {
    const auto label = static_cast<Index>(load_double(labels.data, labels.dtype, row * labels.step[0]));
    require(label == o.ignore || (0 <= label && label < classes), ErrorKind::bad_argument, kOp, "labels[",
            row, "] is ", label, " but there are ", classes, " classes; give 0 to ", classes - 1, ", or ",
            o.ignore, " to leave the row out");
  }
  const AnyView there = to(labels, call.memory, call.ctx), losses = call.memory.take(DType::f64, {rows});
  start(cuda::LossTask{.logits = rows_on_device(kOp, "logits", logits),
                       .dlogits = rows_on_device(kOp, "dlogits", dlogits),
                       .labels = there.data,
                       .wide_labels = labels.dtype == DType::i64,
                       .rows = rows,
                       .classes = classes,
                       .ignore = o.ignore,
                       .smoothing = static_cast<float>(o.label_smoothing),
                       .weight = static_cast<float>(weight),
                       .loss = static_cast<double*>(losses.data),
                       .total = static_cast<double*>(sum.data)},
        logits.where(), call.ctx.stream());
  return counted;
}

Index late_binary_cross_entropy(const InputView& logits, const InputView& labels, const AnyView& dlogits,
                                double weight, const AnyView& sum, Call& call) {
  constexpr const char* kOp = "binary_cross_entropy";
  check(kOp, logits, dlogits, weight, sum);
  const Index rows = logits.size[0], classes = logits.size[1];
  require(labels.rank == 2 && labels.size[0] == rows && labels.size[1] == classes, ErrorKind::bad_shape, kOp,
          "labels is ", labels, " but logits is ", logits, "; give as many");
  for (Index i = 0; i < labels.count(); ++i) {
    const double y =
        load_double(labels.data, labels.dtype, i / classes * labels.step[0] + i % classes * labels.step[1]);
    require(y >= 0 && y <= 1, ErrorKind::bad_argument, kOp, "labels[", i / classes, " ", i % classes, "] is ",
            y, "; give numbers from 0 to 1");
  }
  const AnyView there = to(labels, call.memory, call.ctx), losses = call.memory.take(DType::f64, {rows});
  start(cuda::BinaryLossTask{.logits = rows_on_device(kOp, "logits", logits),
                             .labels = rows_on_device(kOp, "labels", there),
                             .dlogits = rows_on_device(kOp, "dlogits", dlogits),
                             .rows = rows,
                             .classes = classes,
                             .weight = static_cast<float>(weight),
                             .loss = static_cast<double*>(losses.data),
                             .total = static_cast<double*>(sum.data)},
        logits.where(), call.ctx.stream());
  return rows * classes;
}

AnyView no_losses(Call& call) {
  const AnyView sum = call.memory.take(DType::f64, {1});
  clear_bytes(sum, call.ctx);
  return sum;
}

double read_losses(const AnyView& sum, Call& call) {
  double at_home = 0;
  to(sum, AnyView::packed(&at_home, DType::f64, {1}), call.ctx);
  return at_home;
}

}  // namespace headwise
