// The f16 instances of the gradients by mma.sync.
#include "headwise/kernels/cuda/mma/backward.cuh"

namespace headwise::cuda::mma {

template int mma_backward_shared<f16>(int);
template Status mma_backward<f16>(const MmaBackwardParams&, int, int, cudaStream_t);

}  // namespace headwise::cuda::mma
