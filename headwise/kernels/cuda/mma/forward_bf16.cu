// The bf16 instances of attention by mma.sync.
#include "headwise/kernels/cuda/mma/forward.cuh"

namespace headwise::cuda::mma {

template int mma_shared<bf16>(int, int, int, int);
template int mma_width<bf16>(int);
template Status mma_forward<bf16>(const MmaParams&, int, int, cudaStream_t);

}  // namespace headwise::cuda::mma
