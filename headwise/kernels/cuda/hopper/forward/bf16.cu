// The bf16 instances of the Hopper forward.
#include "headwise/kernels/cuda/hopper/forward/start.cuh"

namespace headwise::cuda {

template Status forward<bf16>(int, int, TilePasses, const ForwardMaps&, const ForwardParams&, int, int,
                              cudaStream_t);

}  // namespace headwise::cuda
