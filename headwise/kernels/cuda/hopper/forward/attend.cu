// cuda/hopper: when the tiled forward of Hopper takes a problem, how it cuts it, and its start.
#include <bit>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "headwise/kernels/cuda/hopper/common.h"
#include "headwise/kernels/cuda/hopper/forward/block_lists.h"
#include "headwise/kernels/cuda/hopper/forward_params.h"
#include "headwise/kernels/cuda/hopper/mend.h"
#include "headwise/kernels/cuda/inputs/run_inputs.h"
#include "headwise/kernels/cuda/table/kernels.h"

namespace headwise::cuda::hopper::forward {
namespace {

constexpr double kL2Share = 28e6;  // bytes of k and v a section of heads may hold: about half of L2

/// Scores meet more than one positive scale.
bool has_terms(const AttentionProblem& p) {
  return p.heads.terms.softcap || p.heads.terms.alibi || p.heads.terms.bias || p.run.no_positive_scale;
}
/// What the instance for terms alone does.
bool needs_terms(const AttentionProblem& p) {
  return has_terms(p) || p.heads.terms.gate || p.heads.terms.dropout || p.run.block_keys;
}

/// The instance a problem takes: bits depend on its keys of a tile.
ForwardWidths widths_of(const AttentionProblem& p) {
  return forward_widths(p.heads.q.dim, p.heads.v.dim, needs_terms(p) || p.probe.rows);
}
int keys_of(ForwardWidths w) { return forward_keys(w.head, w.value); }

/// Bits of a block mask travel with launches; its lists are made on the device.
constexpr Index kMostBlockBits = Index{1} << 20, kMostBlockLists = Index{1} << 28;
BlockBytes block_bytes_of(const AttentionProblem& p) {
  if (!p.run.block_keys) return {0, 0};
  const MaskStep blocks{.op = MaskOp::blocks, .b = p.run.block_keys, .n = p.run.block_rows};
  return block_bytes(blocks, p.kv_tokens, p.run.apart ? p.batch : 1,
                     ceil_div(max_of(p.q_tokens, 1), forward_rows(2)), keys_of(widths_of(p)));
}

void refuse(const AttentionProblem& p, char (&why)[kSentenceBytes]) {
  hopper_refuses(p, why, {.pairs = true, .blocks = true});
  if (why[0]) return;
  const RunFacts& run = p.run;
  if (p.keys == KeyForm::paged && run.pieces) {
    std::snprintf(why, sizeof why, "documents(...) over keys in pages: a document may begin inside a copy");
    return;
  }
  if (p.keys == KeyForm::paged && run.large_table) {
    std::snprintf(why, sizeof why, "a page table of more than 2^29 entries");
    return;
  }
  if (run.block_keys && run.pieces) {
    std::snprintf(why, sizeof why, "blocks(...) under documents(...), which it takes apart");
    return;
  }
  if (run.block_keys && run.block_keys < kLeastBlock) {
    std::snprintf(why, sizeof why, "blocks of %lld keys; it takes %lld and more",
                  static_cast<long long>(run.block_keys), static_cast<long long>(kLeastBlock));
    return;
  }
  if (const BlockBytes bytes = block_bytes_of(p);
      bytes.bits > kMostBlockBits || bytes.lists > kMostBlockLists) {
    std::snprintf(why, sizeof why, "blocks(...) in %lld bytes and lists of %lld; it takes %lld and %lld",
                  static_cast<long long>(bytes.bits), static_cast<long long>(bytes.lists),
                  static_cast<long long>(kMostBlockBits), static_cast<long long>(kMostBlockLists));
    return;
  }
  if (p.probe.rows && !forward_probes(widths_of(p).value)) {
    std::snprintf(why, sizeof why, "the statistics of rows; it takes them up to head_dim and value_dim 128");
    return;
  }
  if (run.pieces && p.heads.terms.dropout) {
    std::snprintf(why, sizeof why, "dropout under documents(...), which it takes apart");
    return;
  }
  const Checked tiles = Checked(p.batch) * Checked(max_of(run.pieces, 1)) * Checked(p.heads.q.heads) *
                        Checked(ceil_div(p.q_tokens, 128));
  if (!tiles.ok || tiles.value > kFar)
    std::snprintf(why, sizeof why,
                  "it counts tiles in an int: batch * documents * heads * q_tokens / 128 ends at 2^29");
}

/// Work of one head in tiles of 64 x keys, one tile more for what stands around the loop, and the longest
/// tile. A group of 64 queries leaves out what lies on either side of its open keys.
struct Work {
  double all = 0, longest = 0;
};
Work work_of(int groups, int keys, const Band& band, const Place& place) {
  Work w;
  const int rows = forward_rows(groups), back = static_cast<int>(band.back),
            ahead = static_cast<int>(band.ahead);
  const int step = place.q_tokens / rows > 4096 ? place.q_tokens / 4096 / rows * rows : rows;
  for (int q = 0; q < place.q_tokens; q += step) {
    const int first = place.q_start + q;
    double tile = 0;
    for (int g = 0; g < groups; ++g) {
      const int own = first + 64 * g;
      const KeyTiles open = key_tiles(own, own + 63, back, ahead, place.kv_tokens, keys);
      tile += q + 64 * g >= place.q_tokens ? 2 : open.end - open.begin + 1;
    }
    w.all += tile * (step / rows);
    w.longest = tile > w.longest ? tile : w.longest;
  }
  return w;
}

/// Two or three groups of 64 queries share a tile; the bits are the same. Three read k and v less often; two
/// waste less where sequences are short. A row of three costs `gain` less, fitted to measurements at
/// 512..16k.
int groups_for(const AttentionProblem& p, const Band& band, const Place& place, TileTerms passes,
               int processors) {
  const ForwardWidths widths = widths_of(p);
  const int head_dim = widths.head, value_dim = widths.value;
  if (value_dim > 128 || passes == TileTerms::terms) return 2;
  if (head_dim != value_dim || head_dim == 96 || passes == TileTerms::probes) return 3;
  const double gain = head_dim == 64 ? 1.22 : 1.15;
  const double pairs = static_cast<double>(p.batch * pieces_of(band) * p.heads.q.heads);
  const auto time_of = [&](int groups, double speed) {
    const Work w = work_of(groups, keys_of(widths), band, place);
    double even = pairs * w.all / processors;
    if (band.whole) {  // tiles of one length: in the last round some processors wait
      const auto tiles = static_cast<double>(ceil_div(max_of(place.q_tokens, 1), forward_rows(groups)));
      even = std::ceil(pairs * tiles / processors) * w.all / tiles;
    }
    return (even > w.longest ? even : w.longest) / speed;
  };
  return time_of(3, gain) < time_of(2, 1.0) ? 3 : 2;
}

/// The largest piece that divides a page and a tile of `keys`.
ForwardPages pages_of(const AttentionProblem& p, const AttentionArgs& a, int keys) {
  const AnyView& table = a.page_table.table;
  const auto size = static_cast<unsigned>(p.page_size);
  return {static_cast<const std::int32_t*>(table.data),
          {static_cast<int>(table.step[0]), static_cast<int>(table.step[1])},
          std::countr_zero(size),
          std::gcd(keys, static_cast<int>(size))};
}

/// Maps for tiles of `rows` queries and copies of `box` keys; of the bias, where it comes in tiles.
Status set_maps(const AttentionProblem& p, const AttentionArgs& a, int rows, int box, StreamState& state,
                ForwardParams& f, ForwardMaps& maps) {
  Status status = state.map_of(map_spec(p, a.q, rows, 0), maps.q);
  if (status.ok()) status = state.map_of(map_spec(p, a.k, box, 0), maps.k);
  if (status.ok()) status = state.map_of(map_spec(p, a.v, box, 0), maps.v);
  if (status.ok()) status = state.map_of(map_spec(p, a.out, 64, 0), maps.out);
  const ForwardWidths widths = widths_of(p);
  MapSpec bias;
  if (status.ok() && p.heads.terms.bias && forward_bias_tiles(widths.head, widths.value) &&
      bias_map(p, a.inputs.bias, rows, bias)) {
    f.bias_tiles = true;
    status = state.map_of(bias, maps.bias);
  }
  return status;
}

/// Places of a group in a block's list, four warps a tile.
int lost_each(Index tiles, int processors) {
  return static_cast<int>(min_of(tiles, kLostShare * (tiles / processors + 1)) * 4);
}
/// Before the tiles are known: at most those of 128 queries.
std::size_t lost_bytes(const AttentionProblem& p, const Band& band, int processors) {
  if (band.whole) return 0;
  const Index tiles = p.batch * pieces_of(band) * p.heads.q.heads * ceil_div(max_of(p.q_tokens, 1), 128);
  return static_cast<std::size_t>(3 * processors * lost_each(tiles, processors)) * sizeof(int2);
}

/// Sections of pairs whose k and v share L2. The last section of a band holds about two of the longest tiles
/// a block, or they would be the kernel's tail: 15 % of the time idle at 8k with equal sections.
void set_sections(int processors, double pair_bytes, ForwardParams& f) {
  const int pairs = f.batch * f.heads;
  // Where heads have few tiles, a section is what all blocks take at once: k and v then come from memory all
  // along, not all at once with a section's longest tiles. Causal, 512 tokens: 3 % at D64 and D128, 4 % at
  // D256; at 2k it lost 1 %.
  constexpr int kFewTiles = 8;
  const int at_once = (processors + f.q_tiles * f.group - 1) / (f.q_tiles * f.group);
  int fitting = static_cast<int>(kL2Share / pair_bytes);
  if (f.q_tiles <= kFewTiles && at_once < fitting) fitting = at_once;
  const int cap = (fitting > 1 ? fitting : 1) * f.group;
  const int even = (4 * processors + f.q_tiles - 1) / f.q_tiles;
  int last = f.side_by_side ? cap : even < 2 * cap ? even : 2 * cap;
  last = last < cap ? cap : last;
  last = last > pairs ? pairs : last;
  f.sections = (pairs - last + cap - 1) / cap;
  f.section = f.sections ? (pairs - last) / f.sections / f.group * f.group : pairs;
  f.section = f.section < f.group ? f.group : f.section;
}

template <class T>
Status start(const AttentionProblem& p, const AttentionArgs& a, StreamState& state, int device,
             Sequences which) {
  const int processors = facts_of(device).processors, head_dim = static_cast<int>(p.heads.q.dim),
            value_dim = static_cast<int>(p.heads.v.dim);
  const ForwardWidths widths = widths_of(p);
  Band band;
  const char* why = nullptr;
  band_of(a.mask, 0, band, why);
  ForwardParams f;
  const bool ids = p.heads.terms.dropout && a.inputs.sequence_ids.given();
  const std::size_t id_bytes = ids ? static_cast<std::size_t>(round_up(p.batch, 2)) * sizeof(Index) : 0;
  const BlockBytes block_bytes = block_bytes_of(p);
  const auto bits_bytes = static_cast<std::size_t>(block_bytes.bits),
             list_bytes = static_cast<std::size_t>(block_bytes.lists);
  const std::size_t before = (id_bytes + bits_bytes + list_bytes + 15) / 16 * 16;
  Status status = sequence_places(
      p, a, state, {1 + kLostCounters, before + lost_bytes(p, band, processors), which}, f.place, f.places);
  if (status.ok() && ids) {
    auto* to = reinterpret_cast<Index*>(state.scratch);
    status = send_ids(a.inputs.sequence_ids, p.batch, to, state.stream);
    f.sequence_ids = to;
  }
  if (!status.ok()) return status;
  const TileTerms passes = needs_terms(p) ? TileTerms::terms
                           : p.probe.rows ? TileTerms::probes
                                          : TileTerms::band;
  set_terms(p, a, f);
  set_outputs(p, a, f);
  f.probes = probes_of(p, a), f.terms = has_terms(p);
  if (p.heads.terms.bias) {
    f.bias = pair_bias(a.inputs.bias);
  }
  if (p.heads.terms.dropout) {
    f.drops = true, f.rule = DropoutRule::of(a.inputs.dropout, a.inputs.seed);
    f.kept = static_cast<float>(1 / (1 - a.inputs.dropout));
  }
  f.store_rows = p.ragged || band.documents;
  const bool paged = p.keys == KeyForm::paged;
  f.clear_tail = paged || p.ragged || band.documents || band.keys < p.kv_tokens || band.by_length;
  f.counter = state.counters;
  f.pieces = static_cast<int>(pieces_of(band));
  f.batch = static_cast<int>(p.batch) * f.pieces, f.heads = static_cast<int>(p.heads.q.heads);
  f.group = static_cast<int>(p.heads.k.group);
  f.back = static_cast<int>(band.back), f.ahead = static_cast<int>(band.ahead);
  const int groups = groups_for(p, band, f.place, passes, processors), rows = forward_rows(groups);
  f.q_tiles = static_cast<int>(ceil_div(max_of(f.place.q_tokens, 1), rows));
  f.tiles = f.q_tiles * f.batch * f.heads;
  f.side_by_side = passes == TileTerms::band && band.whole;
  set_sections(processors, 2.0 * static_cast<double>(max_of(f.place.kv_tokens, 1)) * (head_dim + value_dim),
               f);

  const int keys = keys_of(widths);
  if (band.blocks) {
    std::byte* bits = state.scratch + id_bytes;
    status = make_block_lists({.blocks = *band.blocks,
                               .kv_tokens = p.kv_tokens,
                               .rows = rows,
                               .keys = keys,
                               .bits = bits,
                               .lists = bits + bits_bytes},
                              f, state.stream);
    if (!status.ok()) return status;
  }
  if (paged) f.pages = pages_of(p, a, keys);
  f.out_chunks = value_dim / 8;
  const LostRows lost = lost_rows(state.counters + 1);
  if (!band.whole) {
    f.tensors = tensors_of(p, a);
    if (passes != TileTerms::band)
      f.lost_any = lost.found;
    else
      f.lost = {reinterpret_cast<int2*>(state.scratch + before), lost_each(f.tiles, processors)};
  }
  ForwardMaps maps{};
  status = set_maps(p, a, rows, paged ? f.pages.piece : keys, state, f, maps);
  if (!status.ok()) return status;
  status = attend_tiles<T>({.head_dim = widths.head,
                            .groups = groups,
                            .passes = passes,
                            .device = device,
                            .processors = processors,
                            .stream = state.stream},
                           maps, f);
  return status.ok() && f.lost_any ? mend({f, lost}, p.dtype, processors, state.stream) : status;
}

Status run(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream) {
  return run_sequences(p, a, device, stream, Sequences::all);
}

void numerics(const AttentionProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/hopper sm_90a %s k%d", name_of(p.dtype).data(),
                keys_of(widths_of(p)));
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
  return p.dtype == DType::bf16 ? start<bf16>(p, a, *state, device, which)
                                : start<f16>(p, a, *state, device, which);
}

const Kernel kAttend = {"cuda/hopper", refuse, run, numerics};

}  // namespace headwise::cuda::hopper::forward
