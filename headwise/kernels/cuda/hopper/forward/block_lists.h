// Block masks of cuda/hopper: which tiles of keys each tile of queries visits, made on the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/forward_params.h"

namespace headwise::cuda::hopper::forward {

/// The bytes of a mask's bits and of the lists of `sequences`.
struct BlockBytes {
  Index bits, lists;
};
BlockBytes block_bytes(const MaskStep& blocks, Index kv_tokens, Index sequences, Index q_tiles, int keys);

/// A mask's blocks, tiles of `rows` queries and `keys` keys, and where its bits and lists go.
struct BlockListTask {
  const MaskStep& blocks;
  Index kv_tokens;
  int rows, keys;
  std::byte *bits, *lists;
};
/// Sends the bits of the blocks and makes the lists of all tiles of p; fills p.blocks. p knows its places,
/// its band and its tiles.
Status make_block_lists(const BlockListTask& task, ForwardParams& p, cudaStream_t stream);

}  // namespace headwise::cuda::hopper::forward
