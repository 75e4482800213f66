// The instances of the Hopper decode over keys and values of q's own type.
#include "headwise/kernels/cuda/hopper/decode/products.cuh"

namespace headwise::cuda::hopper::decode {

template Function attend<bf16, bf16>;
template Function attend<f16, f16>;

}  // namespace headwise::cuda::hopper::decode
