// Fixed mixes of up to 16 heads of up to 64 columns on Hopper: a chunk's rows straight from q, k, v and dout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/mixed/pairs/pairs.h"

namespace headwise::cuda::mixed {

/// Keys of a block.
inline constexpr int kMixPart = 512;
/// Gradients: keys of a block at a time, blocks that share a query at most, and blocks of a launch at most.
inline constexpr int kQueryPart = 1024, kQueryRanks = 8, kQueryBlocks = 512;
/// Such a block's planes travel in boxes of a query, 16 heads and this many panels of 64 keys.
inline constexpr int kQueryBoxPanels = 8;
struct QueryMaps {
  CUtensorMap scores, weights, rests;
};
/// Sums of such a block: of two matrices.
inline constexpr int kTileProducts = 2 * 16 * 16;

struct MixTiles {
  MixPairs rows;
  float2* parts;  // [keys / kMixPart, slot, heads, 64]: maximum and sum of a part in exponents of 2; or delta
  HeadsView dout;
  float* products;  // [kQueryBlocks, 2, 16, 16]: sums of scores times dlogits, weights times dout.v
  int part_count, part_keys;
  std::uint16_t* score_rests;  // f16: beside rows.dscores, what its scores leave of 22 bits
  int* exponents;              // [slot, 2 x 32 rows, pitch / 64, 16]: scores there are divided by 2^this
  int* past;                   // [keys / kMixPart, slot, 2, 16]: the largest exponent a head's scores needed
  std::uint8_t* left;          // [keys / kMixPart, slot, 8]: lse of queries with a bit alone; or null: of all
  float* records;              // of queries, as mixed_dynamic.h says: lse and delta go there too; or null
};
/// Rows of q, k and v in a bulk copy of the next two; of k in one of the sums.
inline constexpr int kMixBoxRows = 32, kMixSumKeys = 16;
/// Maxima and sums of each part of keys, as `parts` of MixTiles, in bf16.
struct MixSums {
  MixPairs rows;
  float2* parts;
  int* past;
  std::uint8_t* left;
  CUtensorMap q, k;
};
int mixed_sums_shared();
Status mixed_sums(const MixSums& p, int keys, int device, cudaStream_t stream);

/// Weights and their product with v in one sweep, in bf16.
struct MixValues {
  MixPairs rows;
  const int* past;
  CUtensorMap q, k, v;
};
int mixed_values_shared();
Status mixed_values(const MixValues& p, int device, cudaStream_t stream);

int mixed_tiles_shared();
int mixed_queries_shared();
/// lse or delta of each row out of its parts.
Status join_lse(const MixTiles& p, cudaStream_t stream);
Status join_delta(const MixTiles& p, cudaStream_t stream);
/// Writes rows.lse of a group, and rows.weights where there is room for them.
template <class T>
Status mixed_tiles(const MixTiles& p, int keys, int device, cudaStream_t stream);
/// Scores of a group as f16 in rows.dscores, dout.v in rows.weights; what is past the range is in
/// `exponents`.
template <class T>
Status mixed_planes(const MixTiles& p, int keys, int device, cudaStream_t stream);
/// Writes rows.weights, rows.dscores and rows.dsink_rows; adds to dbefore and dafter where given.
template <class T>
Status mixed_queries(const MixTiles& p, const QueryMaps& maps, int keys, double* dbefore, double* dafter,
                     int device, cudaStream_t stream);

}  // namespace headwise::cuda::mixed
