#include "headwise/kernels/cuda/gemm/wgmma.cuh"

namespace headwise::cuda::gemm {

template Status start_width<bf16, 192>(const Product&, const Lines&, int, cudaStream_t);

}  // namespace headwise::cuda::gemm
