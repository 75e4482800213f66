// The bf16 instances of the gradients in two sweeps on Hopper.
#include "headwise/kernels/cuda/hopper/backward/sweeps.cuh"

namespace headwise::cuda::hopper::backward {

template Status sweep_backward<bf16>(const SweepInstance&, const BackwardMaps&, const BackwardParams&,
                                     const LaunchPlace&);

}  // namespace headwise::cuda::hopper::backward
