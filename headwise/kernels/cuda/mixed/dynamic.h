// Dynamic mixes of up to 16 heads of up to 64 columns and rank 2: tiles of pairs, each token with a record.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/mixed/tiles.h"

namespace headwise::cuda::mixed {

/// A token's numbers: two mixes of five rows (w1 of both ranks, w2 of both ranks, the gate) of 16 heads. Of a
/// query also lse in exponents of 2, delta, and the first and one past the last key it may see.
inline constexpr int kRecord = 208, kRecordMix = 80, kRecordLse = 160, kRecordDelta = 176, kRecordOpen = 192,
                     kDynamicRank = 2;
/// Four heads of a lane stand together: those of its columns in a tile of 8 and in the next one.
HW_FN constexpr int record_place(int head) { return head % 8 / 2 * 4 + head / 8 * 2 + head % 2; }
/// Keys of a block, and sums it has for each query's coefficients.
inline constexpr int kDynamicPart = 512, kDynamicSums = 2 * kRecordMix;

struct DynamicTiles {
  MixTiles tiles;  // .records: of queries
  float* key_records;
  Index key_tokens;
  float* sums;  // [slot, 64, keys / kDynamicPart, kDynamicSums], or null
  AnyView dmix_q, dmix_k;
};
/// Bytes of shared memory; 32 records behind the last token's are read.
int mixed_dynamic_shared(bool backward);
/// Records of all keys; then, group by group, of queries: with the run's lse where `backward`.
Status fill_key_records(const DynamicTiles& p, const AnyView& mix_k, cudaStream_t stream);
Status fill_query_records(const DynamicTiles& p, const AnyView& mix_q, bool backward, cudaStream_t stream);
/// Rows of dmix_q out of the group's sums.
Status join_query_sums(const DynamicTiles& p, cudaStream_t stream);
/// As mixed_tiles; backward also writes the rows of dmix_q.
template <class T>
Status mixed_dynamic(const DynamicTiles& p, int keys, int device, cudaStream_t stream);
template <class T>
Status mixed_dynamic_backward(const DynamicTiles& p, int keys, int device, cudaStream_t stream);
/// dmix_k, once every group has its deltas.
template <class T>
Status mixed_dynamic_keys(const DynamicTiles& p, Index kv_tokens, Index batch, int device,
                          cudaStream_t stream);

}  // namespace headwise::cuda::mixed
