// Fixed mixes of up to 16 heads of up to 64 columns, forward: lse and weights of a chunk straight from q and
// k. SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/mixed_rows.h"

namespace headwise::cuda {

/// Keys of a block.
inline constexpr int kMixPart = 256;

struct MixTiles {
  MixRows rows;
  float2* parts;  // [2 keys / kMixPart, slot, heads, 64]: maximum and sum of a part, in exponents of 2
};
int mixed_tiles_shared();
/// Writes rows.lse and rows.weights of a group.
template <class T>
Status mixed_tiles(const MixTiles& p, int keys, int device, cudaStream_t stream);

}  // namespace headwise::cuda
