// The f16 instances of attention by mma.sync.
#include "headwise/kernels/cuda/mma/forward.cuh"

namespace headwise::cuda::mma {

template int mma_shared<f16>(int, int, int, int);
template int mma_width<f16>(int);
template Status mma_forward<f16>(const MmaParams&, int, int, cudaStream_t);

}  // namespace headwise::cuda::mma
