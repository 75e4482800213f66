// The bf16 instances of the gradients in two sweeps on Hopper.
#include "headwise/kernels/cuda/hopper/backward/sweeps.cuh"

namespace headwise::cuda::hopper::backward {

template Status sweep_backward<bf16>(SweepGradient, int, bool, const BackwardMaps&, const BackwardParams&,
                                     int, int, cudaStream_t);

}  // namespace headwise::cuda::hopper::backward
