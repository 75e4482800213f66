// The f32 instances of the gradients by mma.sync.
#include "headwise/kernels/cuda/mma/backward.cuh"

namespace headwise::cuda::mma {

template int mma_backward_shared<float>(int);
template Status mma_backward<float>(const MmaBackwardParams&, int, int, cudaStream_t);

}  // namespace headwise::cuda::mma
