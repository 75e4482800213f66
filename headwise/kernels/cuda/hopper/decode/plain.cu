// The instances of the Hopper decode over keys and values of q's own type.
#include "headwise/kernels/cuda/hopper/decode/products.cuh"

namespace headwise::cuda {

template DecodeFunction decode<bf16, bf16>;
template DecodeFunction decode<f16, f16>;

}  // namespace headwise::cuda
