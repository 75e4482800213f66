// The second table of the CUDA library: products and row operations.
#include "headwise/kernels/cuda/table/layers.h"

extern "C" __attribute__((visibility("default"))) const headwise::cuda::LayerTable* headwise_cuda_layers() {
  using namespace headwise::cuda;
  static const GemmEntries products[] = {gemm::kHopper, gemm::kMma,      gemm::kPlain, gemm::kStream,
                                         gemm::kWgmma,  gemm::kCublasLt, gemm::kParts};
  static const LayerTable table = {
      kLayerTableVersion,
      sizeof(headwise::GemmProblem),
      sizeof(headwise::GemmArgs),
      kRowBytes,
      static_cast<int>(sizeof products / sizeof *products),
      products,
      {row::norm, row::norm_backward, row::column_sums, row::activation, row::dropout, row::rope,
       row::embedding, row::bag, row::pool, row::cross_entropy, row::binary_cross_entropy, row::adamw, row::sgd, row::norm_of},
      {memory::allocate, memory::release, memory::copy, memory::clear, memory::wait, memory::pin,
       memory::unpin, memory::mark, memory::reached, memory::unmark, memory::room}};
  return &table;
}
