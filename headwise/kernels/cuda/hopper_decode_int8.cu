// The instances of the Hopper decode over int8 keys and values.
#include "headwise/kernels/cuda/hopper_decode.cuh"

namespace headwise::cuda {

template DecodeFunction decode<bf16, std::int8_t>;
template DecodeFunction decode<f16, std::int8_t>;

}  // namespace headwise::cuda
