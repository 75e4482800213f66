// The instances of the Hopper decode.
#include "headwise/kernels/cuda/hopper_decode.cuh"

namespace headwise::cuda {

template Status decode<bf16>(int, int, const DecodeMaps&, const DecodeParams&, int, int, cudaStream_t);
template Status decode<f16>(int, int, const DecodeMaps&, const DecodeParams&, int, int, cudaStream_t);

}  // namespace headwise::cuda
