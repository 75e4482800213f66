// The bf16 instances of the gradients of heads of 256 on Hopper.
#include "headwise/kernels/cuda/hopper_wide.cuh"

namespace headwise::cuda {

template Status wide_backward<bf16>(WideGradient, bool, const BackwardMaps&, const BackwardParams&, int, int,
                                    cudaStream_t);

}  // namespace headwise::cuda
