#include "headwise/kernels/cuda/hopper/forward/block_lists.h"

#include "headwise/kernels/cuda/device/stream_state.h"

namespace headwise::cuda::hopper::forward {
namespace {

/// A warp a list: 32 tiles of keys at a time, from right to left.
__global__ void list_tiles(const __grid_constant__ ForwardParams p, int sequences, int rows, int keys) {
  const int number = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32), b = number / p.q_tiles, q = number % p.q_tiles * rows;
  if (b >= sequences) return;
  const Place place = p.places ? p.places[b] : p.place;
  if (q >= place.q_tokens) return;
  const int end = min(q + rows, place.q_tokens), first = place.q_start + q, last = place.q_start + end - 1;
  const KeyTiles t = key_tiles(first, last, p.back, p.ahead, place.kv_tokens, keys);
  int* list = p.blocks.lists + static_cast<std::int64_t>(number) * p.blocks.step;
  int count = 0;
  for (int from = t.end - 1; from >= t.begin; from -= 32) {
    const int n = from - lane, key_end = min((n + 1) * keys, place.kv_tokens);
    TileOfBlocks kind;
    if (n >= t.begin && n * keys < key_end)
      kind = tile_of_blocks(p.blocks, first, last + 1, n * keys, key_end);
    const bool closed = kind.closed || n < t.full_begin || n >= t.full_end;
    const unsigned open = __ballot_sync(~0u, kind.open), masked = __ballot_sync(~0u, closed);
    const auto follower = [&](unsigned lanes) {
      return 2 + static_cast<int>(masked >> (__ffs(static_cast<int>(lanes)) - 1) & 1u);
    };
    const unsigned left = lane < 31 ? open >> (lane + 1) << (lane + 1) : 0;
    if (kind.open) list[count + __popc(open & ((1u << lane) - 1u))] = 4 * n + (left ? follower(left) : 0);
    if (lane == 0 && open && count) list[count - 1] += follower(open);
    count += __popc(open);
    __syncwarp();
  }
  if (lane == 0 && count == 0) list[0] = 4 * t.begin;  // a closed tile for all; the first one is masked
}

}  // namespace

BlockBytes block_bytes(const MaskStep& blocks, Index kv_tokens, Index sequences, Index q_tiles, int keys) {
  const Checked bits = Checked(blocks.n) * Checked(4 * block_words(blocks, kv_tokens, keys));
  const Checked lists = Checked(sequences) * Checked(q_tiles) * Checked(4 * list_step(kv_tokens, keys));
  constexpr Index kTooMuch = Index{1} << 60;
  return {round_up(min_of(saturated(bits), kTooMuch), 16), round_up(min_of(saturated(lists), kTooMuch), 16)};
}

Status make_block_lists(const BlockListTask& task, ForwardParams& p, cudaStream_t stream) {
  const MaskStep& blocks = task.blocks;
  std::byte* bits = task.bits;
  BlockLists& b = p.blocks;
  b.bits = reinterpret_cast<const std::uint32_t*>(bits), b.lists = reinterpret_cast<int*>(task.lists);
  b.rows = static_cast<int>(blocks.n);
  b.words = static_cast<int>(block_words(blocks, task.kv_tokens, task.keys));
  b.q_block = static_cast<int>(min_of(blocks.a, kFar)), b.kv_block = static_cast<int>(min_of(blocks.b, kFar));
  b.step = static_cast<int>(list_step(task.kv_tokens, task.keys));
  std::uint32_t held[kUploadBytes / 4];
  std::size_t count = 0;
  Status status;
  const auto flush = [&] {
    status = upload(bits, held, count * 4, stream);
    bits += count * 4, count = 0;
    return status.ok();
  };
  each_block_word(blocks, b.words, [&](std::uint32_t word) {
    held[count++] = word;
    return count * 4 < kUploadBytes || flush();
  });
  if (status.ok() && count) flush();
  if (!status.ok()) return status;
  const int sequences = p.places ? p.batch : 1;
  const auto lists_made = static_cast<Index>(sequences) * p.q_tiles;
  return launch({"cuda/block_lists", dim3(static_cast<unsigned>(ceil_div(lists_made, 4))), 128, 0, stream},
                list_tiles, p, sequences, task.rows, task.keys);
}

}  // namespace headwise::cuda::hopper::forward
