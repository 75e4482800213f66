#include "headwise/ops/device/layer_table.h"

#include <dlfcn.h>

#include "headwise/ops/attention/backend_cuda.h"
#include "headwise/ops/device/products.h"

namespace headwise {
namespace {

bool fits(const cuda::LayerTable& t) {
  const auto kernels = cuda_gemm_kernels();
  if (t.version != cuda::kLayerTableVersion || t.gemm_problem_bytes != sizeof(GemmProblem) ||
      t.gemm_args_bytes != sizeof(GemmArgs) || t.row_bytes != cuda::kRowBytes ||
      static_cast<std::size_t>(t.gemm_count) != kernels.size())
    return false;
  for (const CudaGemmKernel& kernel : kernels)
    if (std::string_view(kernel.name) != t.gemm[kernel.number].name) return false;
  return true;
}

CudaLayers load() {
  CudaLayers l;
  l.why = cuda_backend().why;
  if (!l.why.empty()) return l;
  const auto function =
      reinterpret_cast<cuda::LayerTableFunction>(dlsym(cuda_backend().library, cuda::kLayerTableName));
  const cuda::LayerTable* table = function ? function() : nullptr;
  if (table == nullptr || !fits(*table))
    l.why =
        std::string(cuda::kLibraryName) + " has other layer kernels than this headwise; build both together";
  else
    l.table = table;
  return l;
}

}  // namespace

const CudaLayers& cuda_layers() {
  static const CudaLayers layers = load();
  return layers;
}

}  // namespace headwise
