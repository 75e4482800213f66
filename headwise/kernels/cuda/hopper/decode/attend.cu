// cuda/decode: when the split-key kernel of Hopper takes a problem, and its start.
#include <cstdio>

#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/hopper/common.h"
#include "headwise/kernels/cuda/hopper/decode/decode.h"
#include "headwise/kernels/cuda/hopper/mend.h"
#include "headwise/kernels/cuda/table/kernels.h"

namespace headwise::cuda::hopper::decode {
namespace {

/// Bytes of keys and values from which on L2 is not told to forget them first. Below, what others left in L2
/// stays there; above, it goes anyway, and on an H200 537 MB are read in 140 us instead of 144.
constexpr double kMuch = 256 << 20;

Index splits_of(const AttentionProblem& p) { return p.kv_tokens > 0 ? split_of(p.kv_tokens - 1) + 1 : 0; }

void refuse(const AttentionProblem& p, char (&why)[kSentenceBytes]) {
  hopper_refuses(p, why, {.eight_bits = true});
  if (why[0]) return;
  if (p.probe.rows) {
    std::snprintf(why, sizeof why, "probes");
    return;
  }
  if (const Index dim = p.heads.q.dim; dim != p.heads.v.dim || (dim != 64 && dim != 128 && dim != 256)) {
    std::snprintf(why, sizeof why, "head_dim %lld and value_dim %lld; it takes 64, 128 and 256 of both",
                  static_cast<long long>(dim), static_cast<long long>(p.heads.v.dim));
    return;
  }
  if (p.run.pieces) {
    std::snprintf(why, sizeof why, "documents(...) cut the rows of its queries");
    return;
  }
  const Index rows = p.q_tokens * p.heads.k.group;
  if (rows > kMostDecodeRows)
    std::snprintf(why, sizeof why, "%lld rows of queries a kv head; it takes up to %lld",
                  static_cast<long long>(rows), static_cast<long long>(kMostDecodeRows));
  else if (!p.eight_bit_kv() && tiles_suit(p.q_tokens, p.kv_tokens))
    std::snprintf(why, sizeof why,
                  p.q_tokens < kDecodeChunk
                      ? "%lld query tokens meet %lld keys, too few to split: cuda/hopper takes less time"
                      : "%lld query tokens and %lld keys: a chunk has the bits of longer ones in cuda/hopper",
                  static_cast<long long>(p.q_tokens), static_cast<long long>(p.kv_tokens));
  const Checked items = Checked(p.batch) * Checked(p.heads.k.slots()) * Checked(4) * Checked(splits_of(p));
  if (!items.ok || items.value > kFar)
    std::snprintf(why, sizeof why,
                  "it counts splits in an int: batch * kv_heads * kv_tokens / 256 ends at 2^29");
}

Scales scales_of(const AnyView& v) {
  return {static_cast<const float*>(v.data), {v.step[0], v.step[1], v.step[2]}};
}

/// Behind the kernel: what values of keys reached that some queries of their tile may not see.
Status mend_rows(const AttentionProblem& p, const AttentionArgs& a, const Params& d, const LostRows& lost,
                 cudaStream_t stream) {
  ForwardParams f;
  set_terms(p, a, f), set_outputs(p, a, f);
  f.place = d.place, f.places = d.places;
  f.batch = d.batch, f.heads = static_cast<int>(p.heads.q.heads), f.group = d.group;
  f.back = d.back, f.ahead = d.ahead;
  f.pages.table = d.pages;
  for (int axis = 0; axis < 2; ++axis) f.pages.step[axis] = static_cast<int>(d.pages_step[axis]);
  f.tensors = tensors_of(p, a);
  return mend({f, lost}, p.dtype, facts_of(p.device.index).processors, stream);
}

Status start(const AttentionProblem& p, const AttentionArgs& a, StreamState& state, int device,
             Sequences which) {
  const auto head_dim = static_cast<int>(p.heads.q.dim);
  Band band;
  const char* why = nullptr;
  band_of(a.mask, 0, band, why);
  Params d;
  const Index rows = p.q_tokens * p.heads.k.group;
  const int processors = facts_of(device).processors;
  const Index pairs = p.batch * p.heads.k.slots();
  const int block_rows =
      rows_of(rows, head_dim, pairs * ceil_div(rows, Index{16}) * splits_of(p), processors);
  d.ragged = p.ragged;
  d.batch = static_cast<int>(p.batch), d.kv_heads = static_cast<int>(p.heads.k.slots());
  d.group = static_cast<int>(p.heads.k.group);
  d.row_blocks = static_cast<int>(ceil_div(rows, block_rows));
  d.splits = static_cast<int>(splits_of(p));
  const Index blocks = pairs * d.row_blocks;
  d.items = static_cast<int>(blocks * d.splits);
  d.by_group = Divisor(d.group), d.by_row_blocks = Divisor(d.row_blocks);
  d.by_kv_heads = Divisor(d.kv_heads), d.by_blocks = Divisor(static_cast<int>(blocks));
  const bool paged = p.keys == KeyForm::paged, eight = p.eight_bit_kv(), half = p.dtype == DType::f16;
  int shares = 1;
  if (!paged && !eight && block_rows <= 16 && d.items <= processors / shares_of(head_dim)) {
    int at_once = 0;
    const Status asked = half ? shared_items<f16>(head_dim, block_rows, device, at_once)
                              : shared_items<bf16>(head_dim, block_rows, device, at_once);
    if (!asked.ok()) return asked;
    if (d.items <= at_once) shares = shares_of(head_dim);
  }
  const auto partial_rows = static_cast<std::size_t>(d.items) * static_cast<std::size_t>(block_rows);
  const std::size_t partials = d.splits > 1 ? partial_rows * static_cast<std::size_t>(head_dim) * 4 : 0;
  const std::size_t stats = d.splits > 1 ? partial_rows * 8 * static_cast<std::size_t>(shares) : 0;
  // The counter of items comes first, as in cuda/hopper.
  const Status status = sequence_places(
      p, a, state, {1 + blocks * shares + kLostCounters, partials + stats, which}, d.place, d.places);
  if (!status.ok()) return status;
  d.partials = reinterpret_cast<float*>(state.scratch);
  d.partial_stats = reinterpret_cast<float*>(state.scratch + partials);
  d.counter = state.counters, d.arrived = state.counters + 1;
  set_terms(p, a, d);
  set_outputs(p, a, d);
  d.q = a.q.data;
  for (int axis = 0; axis < 3; ++axis) d.q_step[axis] = a.q.step[axis];
  if (paged) {
    const AnyView& table = a.page_table.table;
    d.pages = static_cast<const std::int32_t*>(table.data), d.page_size = static_cast<int>(p.page_size);
    d.pages_step[0] = table.step[0], d.pages_step[1] = table.step[1];
  }
  d.page_count = static_cast<int>(paged ? p.pages : p.batch);
  if (eight) d.k_scale = scales_of(a.k_scale), d.v_scale = scales_of(a.v_scale);
  d.e4m3 = p.kv_dtype() == DType::e4m3;
  const Index of_token = 2 * size_of(p.kv_dtype()) * d.kv_heads * head_dim;
  d.keep = static_cast<double>(p.batch * p.kv_tokens) * static_cast<double>(of_token) > kMuch
               ? ptx::kEvictNormal
               : ptx::kEvictFirst;
  d.clear_tail = paged || p.ragged || band.keys < p.kv_tokens || band.by_length || !band.whole;
  d.back = static_cast<int>(band.back), d.ahead = static_cast<int>(band.ahead);
  Maps maps;
  const bool whole = whole_rows_of(block_rows, head_dim, eight);
  const int box_rows = paged        ? page_piece(d.page_size)
                       : shares > 1 ? keys_of(head_dim) / shares
                                    : tile_keys(block_rows, head_dim, eight),
            box_panels = !whole && (paged || eight) ? 1 : head_dim / 64;
  Status mapped = state.map_of(map_spec(p, a.k, box_rows, box_panels, whole), maps.k);
  if (mapped.ok()) mapped = state.map_of(map_spec(p, a.v, box_rows, box_panels, whole), maps.v);
  if (!mapped.ok()) return mapped;
  // One query's closed keys are cleared; several share tiles that some of them see.
  const LostRows lost = lost_rows(state.counters + 1 + blocks * shares);
  if (!band.whole && p.q_tokens > 1 && !eight) d.lost = lost.found;
  Function* own = half ? attend<f16, f16> : attend<bf16, bf16>;
  Function* eight_bits = half ? attend<f16, std::int8_t> : attend<bf16, std::int8_t>;
  Function* in_shares = half ? attend_in_shares<f16> : attend_in_shares<bf16>;
  mapped = (eight        ? eight_bits
            : shares > 1 ? in_shares
                         : own)({.head_dim = head_dim,
                                 .rows = block_rows,
                                 .device = device,
                                 .processors = processors,
                                 .stream = state.stream},
                                maps, d);
  return mapped.ok() && d.lost ? mend_rows(p, a, d, lost, state.stream) : mapped;
}

Status run(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream) {
  return run_sequences(p, a, device, stream, Sequences::all);
}

void numerics(const AttentionProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/decode sm_90a %s%s k%d s%dx%d+%d", name_of(p.dtype).data(),
                kv_words(p), keys_of(static_cast<int>(p.heads.q.dim)), kShortSplits, kShortSplit, kLongSplit);
}

}  // namespace

Status run_sequences(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream,
                     Sequences which) {
  if (p.batch == 0 || p.heads.q.heads == 0 || p.q_tokens == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  StreamState* state = state_of(device, static_cast<cudaStream_t>(stream));
  if (!state) return kNoState;
  const std::lock_guard lock(state->mutex);
  return start(p, a, *state, device, which);
}

const Kernel kAttend = {"cuda/decode", refuse, run, numerics};

}  // namespace headwise::cuda::hopper::decode
