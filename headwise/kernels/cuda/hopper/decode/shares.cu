// The instances of the Hopper decode whose blocks share items.
#include "headwise/kernels/cuda/hopper/decode/products.cuh"

namespace headwise::cuda::hopper::decode {

template Function attend_in_shares<bf16>;
template Function attend_in_shares<f16>;
template Status shared_items<bf16>(int, int, int, int&);
template Status shared_items<f16>(int, int, int, int&);

}  // namespace headwise::cuda::hopper::decode
