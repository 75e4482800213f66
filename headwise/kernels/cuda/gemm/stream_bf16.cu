#include "headwise/kernels/cuda/gemm/stream.cuh"

namespace headwise::cuda::gemm {

template Status stream_in_tiles<bf16>(const Product&, StreamTile, int, cudaStream_t);
template Status stream_product<bf16>(const Product&, int, cudaStream_t);

}  // namespace headwise::cuda::gemm
