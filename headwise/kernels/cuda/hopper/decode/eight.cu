// The instances of the Hopper decode over keys and values of 8 bits: int8 stands for e4m3 too, which
// Params tells apart.
#include "headwise/kernels/cuda/hopper/decode/products.cuh"

namespace headwise::cuda::hopper::decode {

template Function attend<bf16, std::int8_t>;
template Function attend<f16, std::int8_t>;

}  // namespace headwise::cuda::hopper::decode
