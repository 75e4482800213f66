#include "headwise/kernels/cuda/gemm/block.cuh"

namespace headwise::cuda::gemm {

template Status start_block<f16, 64>(const Product&, const Lines&, int, cudaStream_t);
template Status start_block<f16, 128>(const Product&, const Lines&, int, cudaStream_t);

}  // namespace headwise::cuda::gemm
