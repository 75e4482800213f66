// The instances of the Hopper decode whose blocks share items.
#include "headwise/kernels/cuda/hopper/decode/products.cuh"

namespace headwise::cuda {

template DecodeFunction decode_in_shares<bf16>;
template DecodeFunction decode_in_shares<f16>;
template Status decode_shared_items<bf16>(int, int, int, int&);
template Status decode_shared_items<f16>(int, int, int, int&);

}  // namespace headwise::cuda
