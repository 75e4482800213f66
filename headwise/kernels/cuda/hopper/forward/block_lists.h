// Block masks of cuda/hopper: which tiles of keys each tile of queries visits, made on the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/forward_params.h"

namespace headwise::cuda {

/// The bytes of a mask's bits and of the lists of `sequences`.
struct BlockBytes {
  Index bits, lists;
};
BlockBytes block_bytes(const MaskStep& blocks, Index kv_tokens, Index sequences, Index q_tiles, int keys);

/// Sends the bits of `blocks` to `bits` and makes the lists of all tiles of p at `lists`; fills p.blocks. p
/// knows its places, its band and its tiles, which have `rows` queries and `keys` keys.
Status make_block_lists(const MaskStep& blocks, Index kv_tokens, int rows, int keys, std::byte* bits,
                        std::byte* lists, ForwardParams& p, cudaStream_t stream);

}  // namespace headwise::cuda
