// cuda/mixed and cuda/mixed_backward: talking heads and DCMHA, chunks of queries with all their heads.
#include <cstdio>

#include "headwise/kernels/cuda/chunk/run.h"
#include "headwise/kernels/cuda/entmax/pairs.h"
#include "headwise/kernels/cuda/hopper/common.h"
#include "headwise/kernels/cuda/mixed/dynamic.h"
#include "headwise/kernels/cuda/mixed/pairs/pairs.h"
#include "headwise/kernels/cuda/mixed/tiles.h"
#include "headwise/kernels/cuda/mma/forward.h"
#include "headwise/kernels/cuda/table/kernels.h"

namespace headwise::cuda::mixed {

using chunk::Bytes256;
using chunk::ChunkGroup;
using chunk::ChunkRun;
namespace {

void refuse(const AttentionProblem& p, char (&why)[kSentenceBytes]) {
  chunk::chunks_refused(p, why);
  if (why[0]) return;
  const auto say = [&](auto... parts) { std::snprintf(why, sizeof why, parts...); };
  const HeadSpec& h = p.heads;
  if (!h.mixes()) return say("heads are not mixed");
  if (h.norm != Norm::softmax) return say("entmax of mixed heads");
  if (const Index most = max_of(max_of(h.q.heads, h.normal_heads()), h.v.heads); most > kMostMixHeads)
    return say("%lld heads; it mixes up to %d", static_cast<long long>(most), kMostMixHeads);
  if (p.kv_tokens > Index{1} << 19) return say("sequences past 2^19 keys");
  if (h.mix_rank > kMostMixRank)
    return say("a mix of rank %lld; it takes up to %d", static_cast<long long>(h.mix_rank), kMostMixRank);
}
void refuse_backward(const BackwardProblem& problem, char (&why)[kSentenceBytes]) {
  refuse(problem.forward, why);
  if (why[0]) return;
  GradientSpec rest = problem.wants;
  rest.q = rest.k = rest.v = rest.sinks = rest.mix_before = rest.mix_after = rest.mix_q = rest.mix_k = false;
  chunk::chunk_gradients_refused(problem, rest, "dq, dk, dv, dsinks and those of the mix", why);
}

/// What both directions know of a mix, and copies of its coefficients.
MixPairs rows_of(const AttentionProblem& p) {
  const HeadSpec& h = p.heads;
  MixPairs f{};
  f.rank = static_cast<int>(h.mix_rank), f.heads = static_cast<int>(h.normal_heads());
  f.before = {h.before, static_cast<int>(h.q.heads), f.heads, 0, nullptr};
  f.after = {h.after, f.heads, static_cast<int>(h.v.heads),
             h.before == Mix::dynamic ? 2 * static_cast<int>(h.mix_rank) + 1 : 0, nullptr};
  f.mix_rows = h.mix_rows(), f.dtype = p.dtype;
  f.q_rows = p.ragged ? p.q_total : p.q_tokens, f.k_rows = p.ragged ? p.kv_total : p.kv_tokens;
  f.key_pitch = round_up((p.ragged ? 1 : p.batch) * f.k_rows, 32);
  f.score_planes = static_cast<int>(max_of(h.q.heads, h.normal_heads()));
  return f;
}
void take_coefficients(const HeadInputs& in, MixPairs& f, Bytes256& room) {
  if (in.mix_before.given()) f.before.given = room.take<float>(in.mix_before.count());
  if (in.mix_after.given()) f.after.given = room.take<float>(in.mix_after.count());
  if (in.mix_q.given()) f.of_queries = room.take<float>(in.mix_q.count());
  if (in.mix_k.given()) f.of_keys = room.take<float>(f.mix_rows * f.heads * f.key_pitch);
}
/// `sums`: so many numbers that begin at 0, or null.
Status send_coefficients(const HeadInputs& in, const MixPairs& f, double* sums, Index count,
                         cudaStream_t stream) {
  Status status;
  if (f.before.given || f.after.given || sums)
    status = begin_matrices(in.mix_before, const_cast<float*>(f.before.given), in.mix_after,
                            const_cast<float*>(f.after.given), sums, count, stream);
  if (status.ok() && f.of_queries)
    status = copy_coefficients(in.mix_q, const_cast<float*>(f.of_queries), stream);
  if (status.ok() && f.of_keys)
    status = turn_coefficients(in.mix_k, const_cast<float*>(f.of_keys), f.key_pitch, stream);
  return status;
}

/// Scores need not be in memory: mixed_tiles or mixed_dynamic takes the run.
enum class Tiles { none, fixed, dynamic };
Tiles tiles_of(const AttentionProblem& p, const AttentionArgs& a, int device, bool backward) {
  const HeadSpec& h = p.heads;
  const Terms& t = h.terms;
  const bool fit = p.dtype != DType::f32 && max_of(max_of(h.q.heads, h.normal_heads()), h.v.heads) <= 16 &&
                   h.q.dim <= 64 && h.q.dim % 16 == 0 &&
                   !(t.softcap || t.bias || t.alibi || t.relative || t.dropout) && mma::opens_runs(a.mask) &&
                   a.mask.count <= 1 && mma::by_chunks(a.q, h.q, 2) && mma::by_chunks(a.k, h.k, 2) &&
                   facts_of(device).major >= 9;
  if (!fit) return Tiles::none;
  const int shared = facts_of(device).shared_bytes;
  if (h.before != Mix::dynamic && h.after != Mix::dynamic)
    return shared >= (backward ? mixed_queries_shared() : mixed_tiles_shared()) ? Tiles::fixed : Tiles::none;
  return h.mix_rank <= kDynamicRank && !a.inputs.mix_before.given() && !a.inputs.mix_after.given() &&
                 shared >= mixed_dynamic_shared(backward)
             ? Tiles::dynamic
             : Tiles::none;
}
Tiles backward_tiles_of(const AttentionProblem& p, const BackwardArgs& a, int device) {
  const HeadLayout& v = p.heads.v;
  return !p.heads.terms.gate && v.dim <= 64 && v.dim % 16 == 0 && mma::by_chunks(a.forward.v, v, 2) &&
                 mma::by_chunks(a.dout, HeadLayout::split(v.heads, v.dim), 2)
             ? tiles_of(p, a.forward, device, true)
             : Tiles::none;
}
/// No weights in memory either: mixed_sums and mixed_values take the run. They have sixteen heads whatever is
/// asked; half as many are left to mixed_tiles.
bool streams(const AttentionProblem& p, const AttentionArgs& a, Tiles tiles, int device) {
  const HeadSpec& h = p.heads;
  const DeviceFacts facts = facts_of(device);
  constexpr int kStatic = 1024;  // they have no static shared memory
  return tiles == Tiles::fixed && p.dtype == DType::bf16 &&
         max_of(max_of(h.q.heads, h.normal_heads()), h.v.heads) > 8 && h.q.group == 1 && h.v.dim <= 64 &&
         h.v.dim % 16 == 0 && !h.v.row && !copy_refuses(a.q) && !copy_refuses(a.k) && !copy_refuses(a.v) &&
         mma::by_chunks(a.out, HeadLayout::split(h.v.heads, h.v.dim), 2) && facts.major == 9 &&
         facts.shared_bytes + kStatic >= max_of(mixed_sums_shared(), mixed_values_shared());
}
/// Memory that does not grow with the pairs: coefficients, parts, records.
void take_tiles(const AttentionProblem& p, const HeadInputs& in, Tiles tiles, const ChunkRun& chunks,
                DynamicTiles& d, Bytes256& room) {
  MixTiles& t = d.tiles;
  MixPairs& f = t.rows;
  if (tiles != Tiles::dynamic) take_coefficients(in, f, room);
  if (tiles == Tiles::none) return;
  t.part_keys = tiles == Tiles::fixed ? kMixPart : kDynamicPart;
  t.part_count = static_cast<int>(ceil_div(chunks.pitch(), t.part_keys));
  t.parts = room.take<float2>(t.part_count * f.heads * chunks.rows());
  if (tiles == Tiles::fixed) return;
  const Index batch = p.ragged ? 1 : p.batch;
  d.key_tokens = batch * f.k_rows;
  t.records = room.take<float>((batch * f.q_rows + chunk::kChunkKeys) * kRecord);
  d.key_records = room.take<float>((d.key_tokens + chunk::kChunkKeys) * kRecord);
}
template <class F>
Status of_halves(DType dtype, F&& f) {
  return dtype == DType::bf16 ? f.template operator()<bf16>() : f.template operator()<f16>();
}

Status run(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream) {
  if (p.batch == 0 || p.heads.q.heads == 0 || p.q_tokens == 0) return {};
  const Index element = size_of(p.dtype), v_heads = p.heads.v.heads;
  const Tiles tiles = tiles_of(p, a, device, false);
  DynamicTiles d{};
  MixTiles& t = d.tiles;
  MixPairs& f = t.rows = rows_of(p);
  const bool whole = tiles == Tiles::none, streamed = streams(p, a, tiles, device);
  ChunkRun chunks(p, a, device, stream, streamed ? 1 : (whole ? 4 * f.score_planes : 0) + element * v_heads);
  Status status = chunks.begin(f.in, [&](Bytes256& room) {
    const Index rows = chunks.rows(), plane = rows * chunks.pitch();
    take_tiles(p, a.inputs, tiles, chunks, d, room);
    if (whole) f.scores = room.take<float>(f.score_planes * plane);
    if (streamed) {
      t.past = room.take<int>(t.part_count * rows / chunk::kChunkRows * 2 * 16);
      t.left = room.take<std::uint8_t>(t.part_count * rows / 8);
    } else {
      f.weights = room.take<std::byte>(element * v_heads * plane);
    }
    f.lse = room.take<float>(f.heads * rows);
  });
  MixValues values{};
  CUtensorMap sum_keys{};
  if (streamed && status.ok()) {
    status = chunks.box_map(a.q, kMixBoxRows, values.q);
    if (status.ok()) status = chunks.box_map(a.k, kMixBoxRows, values.k);
    if (status.ok()) status = chunks.box_map(a.v, kMixBoxRows, values.v);
    if (status.ok()) status = chunks.box_map(a.k, kMixSumKeys, sum_keys);
  }
  if (status.ok())
    status = tiles == Tiles::dynamic ? fill_key_records(d, a.inputs.mix_k, chunks.stream())
                                     : send_coefficients(a.inputs, f, nullptr, 0, chunks.stream());
  if (!status.ok()) return status;
  return chunks.each_group([&](const ChunkGroup& group, int keys, int, int) {
    f.group = group;
    Status done;
    if (streamed) {
      done = mixed_sums({f, t.parts, t.past, t.left, values.q, sum_keys}, keys, device, chunks.stream());
      if (done.ok())
        done = mixed_tiles<bf16>(t, keys, device, chunks.stream());  // what mixed_sums left, then lse
      values.rows = f, values.past = t.past;
      return done.ok() ? mixed_values(values, device, chunks.stream()) : done;
    }
    if (tiles == Tiles::fixed) {
      done = of_halves(p.dtype, [&]<class T>() { return mixed_tiles<T>(t, keys, device, chunks.stream()); });
    } else if (tiles == Tiles::dynamic) {
      done = fill_query_records(d, a.inputs.mix_q, false, chunks.stream());
      if (done.ok())
        done =
            of_halves(p.dtype, [&]<class T>() { return mixed_dynamic<T>(d, keys, device, chunks.stream()); });
    } else {
      done = chunks.scores(f.in.q, f.in.k, true, f.score_planes, f.scores, keys);
      if (done.ok()) done = mix_logits(f, chunks.stream());
      if (done.ok()) done = mix_lse(f, chunks.stream());
      if (done.ok()) done = mix_weights(f, chunks.stream());
    }
    chunk::ChunkValues v = chunks.values_of(f.weights, f.in.v, f.in.out, v_heads);
    v.blocked = !whole, v.lse = f.lse, v.lse_heads = f.heads, v.all_heads = p.heads.after != Mix::none;
    v.gate = f.in.gate, v.gate_dtype = f.in.gate_dtype;
    for (int axis = 0; axis < 3; ++axis) v.gate_step[axis] = f.in.gate_step[axis];
    return done.ok() ? chunks.values(v) : done;
  });
}

/// The gradient of one stage's coefficients: x and dy are what went in and the gradient of what came out.
MixGradient gradient_of(const MixPairs& f, const MixStage& stage, const BackwardArgs& a) {
  MixGradient g{};
  g.stage = stage, g.rank = f.rank, g.heads = f.heads, g.mix_rows = static_cast<int>(f.mix_rows);
  g.of_queries = f.of_queries, g.of_keys = f.of_keys;
  g.q_rows = f.q_rows, g.k_rows = f.k_rows, g.key_pitch = f.key_pitch;
  if (stage.kind != Mix::dynamic) return g;
  g.dmix_q = a.dmix_q.data, g.dmix_q_dtype = a.dmix_q.dtype;
  g.dmix_k = a.dmix_k.data, g.dmix_k_dtype = a.dmix_k.dtype;
  for (int axis = 0; axis < 4; ++axis)
    g.dmix_q_step[axis] = a.dmix_q.step[axis], g.dmix_k_step[axis] = a.dmix_k.step[axis];
  return g;
}

/// Gradients of one run: its memory, and the work of a group of chunks.
struct MixedBackwardRun {
  const AttentionProblem& p;
  const BackwardArgs& a;
  int device;
  Tiles tiles = backward_tiles_of(p, a, device);
  bool whole = tiles == Tiles::none,  // any number of heads: planes of all pairs in memory
      rests = tiles == Tiles::fixed && p.dtype == DType::f16;
  Index element = size_of(p.dtype), q_heads = p.heads.q.heads, v_heads = p.heads.v.heads;
  DynamicTiles d = {};
  MixTiles& t = d.tiles;
  MixPairs& f = t.rows = rows_of(p);
  Index sum_count = f.heads + q_heads * f.heads + f.heads * v_heads;
  ChunkRun chunks;
  chunk::ChunkGradients g = {};
  MixGradient before = {}, after = {};
  double* sums = nullptr;
  float* key_sums = nullptr;
  QueryMaps maps = {};

  MixedBackwardRun(const AttentionProblem& problem, const BackwardArgs& args, int on_device, void* stream)
      : p(problem),
        a(args),
        device(on_device),
        chunks(p, a.forward, device, stream,
               (whole ? 4 * (q_heads + v_heads + 2 * f.heads) : 0) + element * (q_heads + v_heads) +
                   (rests ? 2 * q_heads : 0)) {
    f.probabilities_given = f.gated = true;
    f.score_planes = static_cast<int>(q_heads);  // the logits do not take their place here
  }

  void take_planes(Bytes256& room) {
    const Index rows = chunks.rows(), plane = rows * chunks.pitch();
    take_tiles(p, a.forward.inputs, tiles, chunks, d, room);
    if (tiles == Tiles::fixed) {
      t.exponents = room.take<int>(plane / (32 * 64) * 16);
      if (rests) t.score_rests = room.take<std::uint16_t>(q_heads * plane);
      if (a.dmix_before.given() || a.dmix_after.given())
        t.products = room.take<float>(kQueryBlocks * kTileProducts);
    }
    if (tiles == Tiles::dynamic && a.dmix_q.given())
      d.sums = room.take<float>(rows * t.part_count * kDynamicSums);
    if (whole) {
      f.scores = room.take<float>(q_heads * plane), f.dweights = room.take<float>(v_heads * plane);
      f.probabilities = room.take<float>(f.heads * plane);
      f.dprobabilities = room.take<float>(f.heads * plane);
    }
    f.weights = room.take<std::byte>(element * v_heads * plane);
    f.dscores = room.take<std::byte>(element * q_heads * plane);
    f.lse = room.take<float>(f.heads * rows), f.delta = room.take<float>(f.heads * rows);
    if (a.dsinks.given()) f.dsink_rows = room.take<float>(f.heads * rows);
  }
  void take_sums(Bytes256& room) {
    const Index rows = chunks.rows();
    sums = room.take<double>(sum_count);
    if (a.dmix_k.given() && whole) key_sums = room.take<float>(f.mix_rows * f.heads * f.key_pitch);
    before = gradient_of(f, f.before, a), after = gradient_of(f, f.after, a);
    if (a.dmix_before.given()) before.given = sums + f.heads;
    if (a.dmix_after.given()) after.given = sums + f.heads + q_heads * f.heads;
    if (before.given && whole) before.products = room.take<float>(rows * q_heads * f.heads);
    if (after.given && whole) after.products = room.take<float>(rows * f.heads * v_heads);
    before.x = f.scores, before.x_planes = f.score_planes, before.dy = f.dprobabilities;
    before.dy_planes = f.heads;
    after.x = f.probabilities, after.x_planes = f.heads, after.dy = f.dweights;
    after.dy_planes = static_cast<int>(v_heads);
    g = chunks.gradients_of(a, room), t.dout = g.dout;
  }
  /// Memory, coefficients and maps; sums begin at 0.
  Status begin() {
    Status status = chunks.begin(f.in, [&](Bytes256& room) { take_planes(room), take_sums(room); });
    if (!status.ok()) return status;
    if (tiles == Tiles::dynamic) {
      status = status_of("cuda/clear",
                         cudaMemsetAsync(sums, 0, static_cast<std::size_t>(sum_count) * 8, chunks.stream()));
      if (status.ok()) status = fill_key_records(d, a.forward.inputs.mix_k, chunks.stream());
    } else {
      status = send_coefficients(a.forward.inputs, f, sums, sum_count, chunks.stream());
    }
    if (tiles == Tiles::fixed) {
      const auto map = [&](const void* plane, Index heads, CUtensorMap& to) {
        if (status.ok() && plane) status = chunks.plane_map(plane, heads, kQueryBoxPanels, to);
      };
      map(f.dscores, q_heads, maps.scores), map(f.weights, v_heads, maps.weights);
      map(t.score_rests, q_heads, maps.rests);
    }
    d.dmix_q = a.dmix_q, d.dmix_k = a.dmix_k;
    before.softcap = f.in.softcap;
    return status;
  }

  /// Up to 16 heads, their pairs in shared memory.
  Status mix_tiles(int keys) {
    cudaStream_t on = chunks.stream();
    Status done;
    if (tiles == Tiles::dynamic) done = fill_query_records(d, a.forward.inputs.mix_q, true, on);
    if (done.ok())
      done = of_halves(p.dtype, [&]<class T>() {
        return tiles == Tiles::dynamic
                   ? mixed_dynamic_backward<T>(d, keys, device, on)
                   : mixed_queries<T>(t, maps, keys, before.given, after.given, device, on);
      });
    return done;
  }
  /// Any number of heads, their pairs in planes.
  Status mix_planes(int keys) {
    cudaStream_t on = chunks.stream();
    Status done = chunks.scores(f.in.q, f.in.k, true, f.score_planes, f.scores, keys);
    if (done.ok()) done = chunks.scores(g.dout, f.in.v, false, static_cast<int>(v_heads), f.dweights, keys);
    if (done.ok()) done = mix_probabilities(f, on);
    if (done.ok()) done = mix_delta(f, on);
    if (done.ok()) done = mix_weights(f, on);
    if (done.ok()) done = mix_scores_gradient(f, on);
    return done;
  }
  Status add_group(const ChunkGroup& group, int keys, int first, int sequences) {
    f.group = before.group = after.group = group;
    Status done = whole ? mix_planes(keys) : mix_tiles(keys);
    if (done.ok() && f.dsink_rows)
      done = entmax::add_rows(f.dsink_rows, sums, f.heads, group.count, chunks.stream());
    if (whole)
      for (MixGradient* m : {&before, &after}) {
        if (m->stage.kind == Mix::dynamic) m->key_sums = key_sums;
        m->first_sequence = first, m->sequences = sequences, m->kv_tokens = static_cast<int>(p.kv_tokens);
        if (done.ok()) done = mix_gradient(*m, chunks.stream());
      }
    if (!done.ok()) return done;
    return chunks.gradients(g, f.in,
                            {.ds = f.dscores,
                             .ds_planes = q_heads,
                             .w = f.weights,
                             .w_planes = v_heads,
                             .first = first,
                             .sequences = sequences,
                             .blocked = tiles == Tiles::dynamic});
  }
  /// Sums over all groups go to their tensors.
  Status finish() {
    Status status;
    if (tiles == Tiles::dynamic && a.dmix_k.given())
      status = of_halves(p.dtype, [&]<class T>() {
        return mixed_dynamic_keys<T>(d, p.kv_tokens, p.batch, device, chunks.stream());
      });
    if (status.ok() && f.dsink_rows) status = entmax::write_heads(sums, f.heads, a.dsinks, chunks.stream());
    if (status.ok() && (before.given || after.given))
      status = write_matrices(before.given, a.dmix_before, after.given, a.dmix_after, chunks.stream());
    return status;
  }
};

Status run_backward(const BackwardProblem& problem, const BackwardArgs& a, int device, void* stream) {
  const AttentionProblem& p = problem.forward;
  if (p.batch == 0 || p.heads.q.heads == 0) return {};
  MixedBackwardRun run(p, a, device, stream);
  Status status = run.begin();
  if (status.ok())
    status = run.chunks.each_group([&](const ChunkGroup& group, int keys, int first, int sequences) {
      return run.add_group(group, keys, first, sequences);
    });
  return status.ok() ? run.finish() : status;
}

void numerics(const AttentionProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/mixed sm_80 %s r64", name_of(p.dtype).data());
}
void numerics_backward(const BackwardProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/mixed_backward sm_80 %s r64", name_of(p.forward.dtype).data());
}

}  // namespace

const Kernel kAttend = {"cuda/mixed", refuse, run, numerics};
const BackwardKernel kBackward = {"cuda/mixed_backward", refuse_backward, run_backward, numerics_backward};

}  // namespace headwise::cuda::mixed
