#include "headwise/kernels/cuda/gemm/mma.cuh"

namespace headwise::cuda::gemm {

template Status start_mma<bf16>(const Product&, int, cudaStream_t);

}  // namespace headwise::cuda::gemm
