// One product of the CUDA library's layer table as a plain function, for benchmarks/gpu/gpu_products.py.
#include <dlfcn.h>

#include <cstring>

#include "headwise/kernels/cuda/table/layers.h"

using namespace headwise;

namespace {

const cuda::LayerTable* table = nullptr;

MatrixView matrix(void* data, DType dtype, const long* shape) {  // rows, columns, their steps
  MatrixView v;
  v.data = data, v.dtype = dtype;
  v.rows = {shape[0], shape[0], shape[2], 0}, v.columns = {shape[1], shape[1], shape[3], 0};
  return v;
}

}  // namespace

extern "C" {

/// 0: the library is loaded.
int layers_open(const char* path) {
  void* library = dlopen(path, RTLD_NOW);
  const auto function =
      library ? reinterpret_cast<cuda::LayerTableFunction>(dlsym(library, cuda::kLayerTableName)) : nullptr;
  table = function ? function() : nullptr;
  return table ? 0 : 1;
}

struct ShimProduct {
  const char* kernel;
  void *a, *b, *out, *bias, *residual;
  long a_shape[4], b_shape[4], out_shape[4];
  int in, result, bias_dtype, activation, accumulate, device;
  void* stream;
  char words[256];
};

/// 0: started; 1: refused, 2: failed, with words.
int layers_product(ShimProduct* s) {
  const auto in = static_cast<DType>(s->in), result = static_cast<DType>(s->result);
  const GemmProblem p{.m = s->out_shape[0],
                      .n = s->out_shape[1],
                      .k = s->a_shape[1],
                      .a = in,
                      .b = in,
                      .out = result,
                      .accumulate = s->accumulate != 0,
                      .bias = s->bias != nullptr,
                      .residual = s->residual != nullptr,
                      .activation = static_cast<Activation>(s->activation),
                      .device = Device::cuda(s->device)};
  GemmArgs g;
  g.a = matrix(s->a, in, s->a_shape), g.b = matrix(s->b, in, s->b_shape),
  g.out = matrix(s->out, result, s->out_shape);
  if (s->residual) g.residual = matrix(s->residual, result, s->out_shape);
  if (s->bias) g.bias = AnyView::packed(s->bias, static_cast<DType>(s->bias_dtype), {p.n});
  for (int n = 0; n < table->gemm_count; ++n) {
    const cuda::GemmEntries& kernel = table->gemm[n];
    if (std::strcmp(kernel.name, s->kernel) != 0) continue;
    s->words[0] = '\0';
    kernel.refuse(p, s->words);
    if (s->words[0]) return 1;
    const cuda::Status status = kernel.run(p, g, s->device, s->stream);
    if (status.ok()) return 0;
    std::strncpy(s->words, status.words ? status.words : status.launch, sizeof s->words - 1);
    return 2;
  }
  std::strcpy(s->words, "no such kernel");
  return 2;
}

/// Row operations over packed rows: addresses and sizes in the order of the cases. 0: started.
int layers_row(const char* what, void** p, const long* n, int code, void* stream) {
  const auto dtype = static_cast<DType>(code);
  const auto rows = [&](void* at) { return cuda::Rows{at, dtype, n[1]}; };
  const auto floats = [&](int i) { return static_cast<float*>(p[i]); };
  const cuda::RowTable& r = table->rows;
  cuda::Status s;
  if (std::strcmp(what, "norm") == 0) {
    s = r.norm({.x = rows(p[0]),
                .out = rows(p[1]),
                .weight = {p[2], dtype},
                .bias = {p[3], dtype},
                .mean = floats(4),
                .inverse = floats(5),
                .rows = n[0],
                .columns = n[1]},
               0, stream);
  } else if (std::strcmp(what, "norm_backward") == 0) {
    s = r.norm_backward({.x = rows(p[0]),
                         .dout = rows(p[1]),
                         .dx = rows(p[2]),
                         .weight = {p[3], dtype},
                         .mean = floats(4),
                         .inverse = floats(5),
                         .dweight = floats(6),
                         .dbias = floats(7),
                         .rows = n[0],
                         .columns = n[1]},
                        0, stream);
  } else if (std::strcmp(what, "loss") == 0) {
    s = r.cross_entropy({.logits = rows(p[0]),
                         .dlogits = rows(p[1]),
                         .labels = p[2],
                         .wide_labels = true,
                         .rows = n[0],
                         .classes = n[1],
                         .loss = static_cast<double*>(p[3]),
                         .total = static_cast<double*>(p[4])},
                        0, stream);
  } else if (std::strcmp(what, "embedding_backward") == 0) {
    s = r.embedding({.table = {p[0], DType::f32, n[1]},
                     .out = rows(p[1]),
                     .ids = p[2],
                     .wide_ids = true,
                     .tokens = n[0],
                     .table_rows = n[2],
                     .columns = n[1],
                     .backward = true},
                    0, stream);
  } else if (std::strcmp(what, "gated") == 0) {
    s = r.activation({.x = rows(p[0]),
                      .gate = rows(p[1]),
                      .out = rows(p[2]),
                      .rows = n[0],
                      .columns = n[1],
                      .kind = Activation::silu},
                     0, stream);
  } else {
    s = r.adamw({.parameters = static_cast<const cuda::AdamWParameter*>(p[0]),
                 .words = static_cast<const cuda::AdamWWords*>(p[1]),
                 .count = static_cast<int>(n[0]),
                 .blocks = n[1],
                 .clear_gradients = false},
                0, stream);
  }
  return s.ok() ? 0 : 2;
}

}  // extern "C"
