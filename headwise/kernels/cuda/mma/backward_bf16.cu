// The bf16 instances of the gradients by mma.sync.
#include "headwise/kernels/cuda/mma/backward.cuh"

namespace headwise::cuda::mma {

template int mma_backward_shared<bf16>(int);
template Status mma_backward<bf16>(const MmaBackwardParams&, int, int, cudaStream_t);

}  // namespace headwise::cuda::mma
