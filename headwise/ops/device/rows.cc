#include "headwise/ops/device/rows.h"

#include "headwise/ops/attention/choice.h"
#include "headwise/ops/device/layer_table.h"

namespace headwise {
namespace {

void check_sizes(const char* op, Index rows, Index columns) {
  require(rows >= 0 && columns >= 0, ErrorKind::bad_shape, op, "got [", rows, " ", columns,
          "]; sizes start at 0");
  require(rows < (Index{1} << 31), ErrorKind::bad_shape, op, "got ", rows, " rows; give fewer than 2^31");
}
void check_rows(const char* op, const char* name, const cuda::Rows& r, Index columns) {
  if (columns == 0) return;
  require(r.data != nullptr, ErrorKind::bad_argument, op, name,
          " is missing; give its address on the device");
  require(r.dtype == DType::f32 || r.dtype == DType::bf16 || r.dtype == DType::f16, ErrorKind::bad_dtype, op,
          name, " is ", r.dtype, "; give f32, bf16 or f16");
  require(r.step >= 0, ErrorKind::bad_argument, op, name, " has steps of ", r.step, "; give 0 or more");
}
/// Of a table of rows, which is added to row by row.
void check_table_gradient(const char* op, const cuda::Rows& table) {
  require(table.dtype == DType::f32, ErrorKind::bad_dtype, op, "the gradient of the table is ", table.dtype,
          "; give f32, since 16 bits lose what is added last");
}
/// Starts a checked task, or says in words why not.
template <class Task>
void go(const char* op, cuda::Status (*cuda::RowTable::*which)(const Task&, int, void*), const Task& task,
        Device device, void* stream) {
  require(!device.is_cpu(), ErrorKind::bad_argument, op,
          "the task is for the CPU; call the operation of its name");
  const CudaLayers& layers = cuda_layers();
  require(layers.table != nullptr, ErrorKind::unsupported, op, layers.why);
  require_started(op, device, (layers.table->rows.*which)(task, device.index, stream));
}

}  // namespace

void start(const cuda::NormTask& t, Device device, void* stream) {
  constexpr const char* kOp = "norm";
  check_sizes(kOp, t.rows, t.columns);
  check_rows(kOp, "x", t.x, t.columns);
  if (t.inverse == nullptr || t.out.data != nullptr) check_rows(kOp, "out", t.out, t.columns);
  go(kOp, &cuda::RowTable::norm, t, device, stream);
}

void start(const cuda::NormGradTask& t, Device device, void* stream) {
  constexpr const char* kOp = "norm_backward";
  check_sizes(kOp, t.rows, t.columns);
  check_rows(kOp, "x", t.x, t.columns), check_rows(kOp, "dout", t.dout, t.columns);
  require(t.inverse != nullptr && (t.mean != nullptr || !t.layer), ErrorKind::bad_argument, kOp,
          "the moments of the forward are missing; give mean and inverse [rows]");
  go(kOp, &cuda::RowTable::norm_backward, t, device, stream);
}

void start(const cuda::ColumnSumTask& t, Device device, void* stream) {
  constexpr const char* kOp = "column_sums";
  check_sizes(kOp, t.rows, t.columns);
  check_rows(kOp, "x", t.x, t.columns);
  require(t.sums != nullptr || t.columns == 0, ErrorKind::bad_argument, kOp,
          "the sums are missing; give f32 [columns] on the device");
  go(kOp, &cuda::RowTable::column_sums, t, device, stream);
}

void start(const cuda::ActivationTask& t, Device device, void* stream) {
  constexpr const char* kOp = "activation";
  check_sizes(kOp, t.rows, t.columns);
  check_rows(kOp, "x", t.x, t.columns), check_rows(kOp, "out", t.out, t.columns);
  if (t.backward) check_rows(kOp, "dout", t.dout, t.columns);
  if (t.backward && t.gate.data) check_rows(kOp, "dgate", t.dgate, t.columns);
  go(kOp, &cuda::RowTable::activation, t, device, stream);
}

void start(const cuda::DropoutTask& t, Device device, void* stream) {
  constexpr const char* kOp = "dropout";
  check_sizes(kOp, t.rows, t.columns);
  check_rows(kOp, "x", t.x, t.columns), check_rows(kOp, "out", t.out, t.columns);
  require(t.first_row >= 0, ErrorKind::bad_argument, kOp, "first_row is ", t.first_row,
          "; rows count from 0");
  go(kOp, &cuda::RowTable::dropout, t, device, stream);
}

void start(const cuda::RopeTask& t, Device device, void* stream) {
  constexpr const char* kOp = "rope";
  check_sizes(kOp, t.tokens, t.dim);
  require(t.pairs >= 0 && t.pairs <= cuda::RopeTask::kMostPairs && 2 * t.pairs <= t.dim, ErrorKind::bad_shape,
          kOp, t.pairs, " pairs turn in heads of ", t.dim, "; give at most ", cuda::RopeTask::kMostPairs,
          " and half of the head");
  go(kOp, &cuda::RowTable::rope, t, device, stream);
}

void start(const cuda::EmbeddingTask& t, Device device, void* stream) {
  constexpr const char* kOp = "embedding";
  check_sizes(kOp, t.tokens, t.columns);
  check_rows(kOp, "table", t.table, t.columns), check_rows(kOp, "out", t.out, t.columns);
  require(t.ids != nullptr || t.tokens == 0, ErrorKind::bad_argument, kOp, "ids are missing");
  if (t.backward) check_table_gradient(kOp, t.table);
  go(kOp, &cuda::RowTable::embedding, t, device, stream);
}

void start(const cuda::BagTask& t, Device device, void* stream) {
  constexpr const char* kOp = "bag";
  check_sizes(kOp, t.bags, t.columns);
  check_rows(kOp, "table", t.table, t.columns), check_rows(kOp, "out", t.out, t.columns);
  require(t.offsets != nullptr && (t.backward ? t.tokens && t.starts && t.runs : t.rows != nullptr),
          ErrorKind::bad_argument, kOp, "lists of rows are missing");
  if (t.backward) check_table_gradient(kOp, t.table);
  go(kOp, &cuda::RowTable::bag, t, device, stream);
}

void start(const cuda::PoolTask& t, Device device, void* stream) {
  constexpr const char* kOp = "pool";
  check_sizes(kOp, t.texts, t.columns);
  require(t.outputs >= 0 && t.outputs < 65536, ErrorKind::bad_shape, kOp, "got ", t.outputs,
          " queries; give fewer than 65,536");
  check_rows(kOp, "x", t.x, t.columns), check_rows(kOp, "out", t.out, t.columns);
  if (t.queries) check_rows(kOp, "query", t.query, t.columns);
  if (t.backward) check_rows(kOp, "dx", t.dx, t.columns);
  require(t.rows && t.offsets && t.weights && (t.slopes || !t.backward || !t.queries),
          ErrorKind::bad_argument, kOp, "lists of rows or the weights are missing");
  go(kOp, &cuda::RowTable::pool, t, device, stream);
}

void start(const cuda::LossTask& t, Device device, void* stream) {
  constexpr const char* kOp = "cross_entropy";
  check_sizes(kOp, t.rows, t.classes);
  check_rows(kOp, "logits", t.logits, t.classes);
  require((t.labels != nullptr && t.loss != nullptr) || t.rows == 0, ErrorKind::bad_argument, kOp,
          "labels or the losses of rows are missing");
  require(t.smoothing >= 0 && t.smoothing <= 1, ErrorKind::bad_argument, kOp, "label_smoothing is ",
          t.smoothing, "; give a number from 0 to 1");
  go(kOp, &cuda::RowTable::cross_entropy, t, device, stream);
}

void start(const cuda::BinaryLossTask& t, Device device, void* stream) {
  constexpr const char* kOp = "binary_cross_entropy";
  check_sizes(kOp, t.rows, t.classes);
  check_rows(kOp, "logits", t.logits, t.classes);
  require((t.labels.data != nullptr && t.loss != nullptr) || t.rows == 0, ErrorKind::bad_argument, kOp,
          "labels or the losses of rows are missing");
  go(kOp, &cuda::RowTable::binary_cross_entropy, t, device, stream);
}

void start(const cuda::SgdTask& t, Device device, void* stream) {
  constexpr const char* kOp = "sgd";
  require(t.blocks >= 0 && t.blocks < (Index{1} << 31), ErrorKind::bad_shape, kOp, "got ", t.blocks,
          " blocks");
  require(t.blocks == 0 || (t.parameters != nullptr && t.count > 0 && t.words != nullptr),
          ErrorKind::bad_argument, kOp, "the table of parameters or the words of the step are missing");
  go(kOp, &cuda::RowTable::sgd, t, device, stream);
}

void start(const cuda::AdamWTask& t, Device device, void* stream) {
  constexpr const char* kOp = "adamw";
  require(t.blocks >= 0 && t.blocks < (Index{1} << 31), ErrorKind::bad_shape, kOp, "got ", t.blocks,
          " blocks");
  require(t.blocks == 0 || (t.parameters != nullptr && t.count > 0), ErrorKind::bad_argument, kOp,
          "the table of parameters is missing");
  require(t.squares != nullptr || t.words != nullptr, ErrorKind::bad_argument, kOp,
          "the words of the step are missing");
  go(kOp, &cuda::RowTable::adamw, t, device, stream);
}

void start(const cuda::NormOfTask& t, Device device, void* stream) {
  require(t.squares != nullptr || t.blocks == 0, ErrorKind::bad_argument, "norm_of",
          "the sums of squares are missing");
  go("norm_of", &cuda::RowTable::norm_of, t, device, stream);
}

}  // namespace headwise
