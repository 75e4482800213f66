// The instances of the Hopper decode whose blocks share items.
#include "headwise/kernels/cuda/hopper_decode.cuh"

namespace headwise::cuda {

template DecodeFunction decode_in_shares<bf16>;
template DecodeFunction decode_in_shares<f16>;

}  // namespace headwise::cuda
