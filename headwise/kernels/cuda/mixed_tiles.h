// Fixed mixes of up to 16 heads of up to 64 columns on Hopper: a chunk's rows straight from q, k, v and dout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/mixed_rows.h"

namespace headwise::cuda {

/// Keys of a block.
inline constexpr int kMixPart = 1024;
/// Sums a chunk has for each part of its keys: two halves of its rows, two matrices.
inline constexpr int kTileProducts = 2 * 2 * 16 * 16;

struct MixTiles {
  MixRows rows;
  float2* parts;  // [keys / kMixPart, slot, heads, 64]: maximum and sum of a part in exponents of 2; or delta
  HeadsView dout;
  float* products;  // [slot, half, keys / kMixPart, 2, 16, 16]: sums of scores times dlogits, weights times
                    // dout.v
  int part_count, part_keys;
  float* records;  // of queries, as mixed_dynamic.h says: lse and delta go there too; or null
};
int mixed_tiles_shared(bool backward);
/// lse or delta of each row out of its parts.
Status join_lse(const MixTiles& p, cudaStream_t stream);
Status join_delta(const MixTiles& p, cudaStream_t stream);
/// Writes rows.lse and rows.weights of a group.
template <class T>
Status mixed_tiles(const MixTiles& p, int keys, int device, cudaStream_t stream);
/// Writes rows.weights, rows.dscores, rows.delta and rows.dsink_rows; adds to dbefore and dafter where given.
template <class T>
Status mixed_tiles_backward(const MixTiles& p, int keys, double* dbefore, double* dafter, int device,
                            cudaStream_t stream);

}  // namespace headwise::cuda
