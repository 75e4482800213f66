// The row operations of the CUDA library: tasks as plain data, and one table of functions that start them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/status.h"
#include "headwise/spec/gemm.h"
#include "headwise/spec/rope.h"

namespace headwise::cuda {

/// Rows of numbers side by side, `step` numbers from row to row; null: not given.
struct Rows {
  void* data = nullptr;
  DType dtype = DType::f32;
  Index step = 0;
};
/// Numbers side by side.
struct Numbers {
  const void* data = nullptr;
  DType dtype = DType::f32;
};

/// out = (x - mean) * inverse * (added + weight) + bias; RMS norm has no mean and no bias. mean, inverse
/// [rows]: written where given, the gradient reads them. out null: these alone.
struct NormTask {
  Rows x = {}, out = {};
  Numbers weight = {}, bias = {};
  float *mean = nullptr, *inverse = nullptr;
  Index rows = 0, columns = 0;
  float eps = 1e-5f, added = 0;
  bool layer = true;
};
/// dx = gradient + residual; dweight, dbias f32 [columns]: added to, in leaves of kLeafRows rows from row 0.
struct NormGradTask {
  Rows x = {}, dout = {}, residual = {}, dx = {};
  Numbers weight = {};
  const float *mean = nullptr, *inverse = nullptr;
  float *dweight = nullptr, *dbias = nullptr;
  Index rows = 0, columns = 0;
  float added = 0;
  bool layer = true;
};
inline constexpr Index kLeafRows = 128;

/// sums [columns] += the rows of x, in the same leaves.
struct ColumnSumTask {
  Rows x = {};
  float* sums = nullptr;
  Index rows = 0, columns = 0;
};

/// gate null: out = act(x), slope: dx = dout act'(x). With a gate: out = x act(gate); backward writes dx and
/// dgate. Each output may be an input.
struct ActivationTask {
  Rows x = {}, gate = {}, dout = {}, out = {}, dgate = {};
  Index rows = 0, columns = 0;
  Activation kind = Activation::none;
  bool backward = false;
};

/// out = kept ? x * scale : 0, plus residual; the draws of ops/row/dropout.h. threshold 0 keeps all: a plain
/// sum.
struct DropoutTask {
  Rows x = {}, residual = {}, out = {};
  Index rows = 0, columns = 0, first_row = 0;
  double scale = 1;
  std::uint64_t seed = 0;
  std::uint32_t threshold = 0, site = 0;
  bool none = false;  // drops all
};

/// x, out [tokens heads dim], dim side by side. positions i64 [tokens], or start + token.
struct RopeTask {
  static constexpr int kMostPairs = 128;
  void *x = nullptr, *out = nullptr;
  DType dtype = DType::f32;
  Index tokens = 0, heads = 0, dim = 0, x_step[2] = {}, out_step[2] = {};  // token, head
  const std::int64_t* positions = nullptr;
  Index start = 0;
  RopeKind kind = RopeKind::half;
  int pairs = 0;
  double factor = 1, frequency[kMostPairs] = {};  // of the angle: negative turns back
};

/// out[t] = table[ids[t]] * scale; a number that is no row gives NaN. Backward: table += out * scale, tokens
/// ascending; such numbers add nothing.
struct EmbeddingTask {
  Rows table = {}, out = {};  // backward: the gradient of the table, f32, and of out
  const void* ids = nullptr;
  bool wide_ids = false;  // i64, else i32
  Index tokens = 0, table_rows = 0, columns = 0;
  float scale = 1;
  bool backward = false;
};

/// loss [rows] f64, 0 where ignored, NaN where a label is no class; dlogits (may be logits) = (softmax - q)
/// weight. total: the sum of losses, added to what stands there; counted likewise.
struct LossTask {
  Rows logits = {}, dlogits = {};
  const void* labels = nullptr;
  bool wide_labels = false;
  Index rows = 0, classes = 0, ignore = -100;
  float smoothing = 0, weight = 1;
  double *loss = nullptr, *total = nullptr;
  long long* counted = nullptr;
};

/// Per element -y ln s - (1 - y) ln(1 - s), s = sigmoid(x); labels of any float type or u8. loss [rows] f64:
/// sums of rows; dlogits (may be logits) = (s - y) weight; total as above.
struct BinaryLossTask {
  Rows logits = {}, labels = {}, dlogits = {};
  Index rows = 0, classes = 0;
  float weight = 1;
  double *loss = nullptr, *total = nullptr;
};

/// out[t] = the sum in double of table[rows[i]], offsets[t] <= i < offsets[t + 1], over the root of their
/// number. Backward: run r adds out[tokens[i]] over the same roots, starts[r] <= i < starts[r + 1], to its
/// row runs[r] of the table's gradient, f32.
struct BagTask {
  Rows table = {}, out = {};
  const std::int32_t *rows = nullptr, *offsets = nullptr, *tokens = nullptr, *starts = nullptr,
                     *runs = nullptr;
  Index bags = 0, run_count = 0, columns = 0;
  bool backward = false;
};

/// out[b, i] = sum over the rows r of text b of a x[rows[r]], a = softmax(query_i . x scale), or the mean
/// where queries is 0 and outputs 1. weights f32 [outputs pooled] keeps a. Backward reads it and dout, writes
/// dx of these rows, and in slopes [outputs pooled] the slopes of the scores.
struct PoolTask {
  Rows x = {}, query = {}, out = {}, dx = {};
  const std::int32_t *rows = nullptr, *offsets = nullptr;
  float *weights = nullptr, *slopes = nullptr, *dquery = nullptr;  // dquery [queries columns]: added to
  Index texts = 0, pooled = 0, columns = 0, outputs = 0;
  bool queries = false, backward = false;
  float scale = 1;
};

/// One parameter of a set, a row of a table in device memory. weight: the 16-bit copy that layers read, or
/// null. average: the running mean, or null. rate: times the step's.
struct AdamWParameter {
  float *master = nullptr, *gradient = nullptr, *m = nullptr, *v = nullptr, *average = nullptr;
  float rate = 1;
  void* weight = nullptr;
  DType weight_dtype = DType::f32;
  bool decays = true;
  Index count = 0, first_block = 0;  // blocks of kAdamWBlock numbers before it
};
inline constexpr Index kAdamWBlock = 4096;
/// What a step needs beside them, in device memory: a captured step reads it anew.
struct AdamWWords {
  float rate, beta1, beta2, eps, decay;
  float size, root;  // rate / (1 - beta1^t), sqrt(1 - beta2^t)
  float gain;        // of what a running mean takes
  float factor;      // of the gradients; written by NormOfTask, as is skip
  int skip;          // not 0: nothing is touched
};
struct AdamWTask {
  const AdamWParameter* parameters = nullptr;  // in device memory, ascending first_block
  const AdamWWords* words = nullptr;
  int count = 0;
  Index blocks = 0;
  bool clear_gradients = true;
  double* squares = nullptr;  // [blocks]: instead of a step, each block's sum of squared gradients
};
/// g += decay x; b = first ? g : momentum b + gain g; x -= rate (ahead ? g + momentum b : b). The buffer b
/// stands in the parameter's m; null: no momentum.
struct SgdWords {
  float rate, momentum, gain, decay, factor;
  int first, ahead, skip;
};
struct SgdTask {
  const AdamWParameter* parameters = nullptr;
  const SgdWords* words = nullptr;
  int count = 0;
  Index blocks = 0;
  bool clear_gradients = true;
};
/// norm = sqrt(sum of squares), factor = min(1, limit / (norm + 1e-6)) into words; a norm that is not finite
/// sets skip, which stays set.
struct NormOfTask {
  const double* squares = nullptr;
  Index blocks = 0;
  float limit = 0;  // 0: no clipping
  double* norm = nullptr;
  AdamWWords* words = nullptr;
};

/// Each starts on a stream and returns. Sizes and steps were checked.
struct RowTable {
  Status (*norm)(const NormTask&, int device, void* stream);
  Status (*norm_backward)(const NormGradTask&, int device, void* stream);
  Status (*column_sums)(const ColumnSumTask&, int device, void* stream);
  Status (*activation)(const ActivationTask&, int device, void* stream);
  Status (*dropout)(const DropoutTask&, int device, void* stream);
  Status (*rope)(const RopeTask&, int device, void* stream);
  Status (*embedding)(const EmbeddingTask&, int device, void* stream);
  Status (*bag)(const BagTask&, int device, void* stream);
  Status (*pool)(const PoolTask&, int device, void* stream);
  Status (*cross_entropy)(const LossTask&, int device, void* stream);
  Status (*binary_cross_entropy)(const BinaryLossTask&, int device, void* stream);
  Status (*adamw)(const AdamWTask&, int device, void* stream);
  Status (*sgd)(const SgdTask&, int device, void* stream);
  Status (*norm_of)(const NormOfTask&, int device, void* stream);
};
namespace row {
Status norm(const NormTask& task, int device, void* stream);
Status norm_backward(const NormGradTask& task, int device, void* stream);
Status column_sums(const ColumnSumTask& task, int device, void* stream);
Status activation(const ActivationTask& task, int device, void* stream);
Status dropout(const DropoutTask& task, int device, void* stream);
Status rope(const RopeTask& task, int device, void* stream);
Status embedding(const EmbeddingTask& task, int device, void* stream);
Status bag(const BagTask& task, int device, void* stream);
Status pool(const PoolTask& task, int device, void* stream);
Status cross_entropy(const LossTask& task, int device, void* stream);
Status binary_cross_entropy(const BinaryLossTask& task, int device, void* stream);
Status adamw(const AdamWTask& task, int device, void* stream);
Status sgd(const SgdTask& task, int device, void* stream);
Status norm_of(const NormOfTask& task, int device, void* stream);
}  // namespace row

}  // namespace headwise::cuda
