// The f16 instances of the Hopper forward.
#include "headwise/kernels/cuda/hopper/forward/start.cuh"

namespace headwise::cuda::hopper::forward {

template Status attend_tiles<f16>(const ForwardTask&, const ForwardMaps&, const ForwardParams&);

}  // namespace headwise::cuda::hopper::forward
