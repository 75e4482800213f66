// The bf16 instances of the gradients on Hopper.
#include "headwise/kernels/cuda/hopper/backward/products.cuh"

namespace headwise::cuda::hopper::backward {

template Status backward<bf16>(int, BackwardPasses, const BackwardMaps&, const BackwardParams&,
                               const LaunchPlace&);

}  // namespace headwise::cuda::hopper::backward
