// The f32 instances of attention by mma.sync.
#include "headwise/kernels/cuda/mma/forward.cuh"

namespace headwise::cuda::mma {

template int mma_shared<float>(int, int, int, int);
template int mma_width<float>(int);
template Status mma_forward<float>(const MmaParams&, int, int, cudaStream_t);

}  // namespace headwise::cuda::mma
