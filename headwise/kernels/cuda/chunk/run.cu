#include "headwise/kernels/cuda/chunk/run.h"

#include <cstdint>
#include <cstdio>

#include "headwise/kernels/cuda/chunk/wgmma_products.h"
#include "headwise/kernels/cuda/hopper/common.h"
#include "headwise/kernels/cuda/mma/forward.h"
#include "headwise/kernels/cuda/mma/tile.cuh"

namespace headwise::cuda::chunk {

using mma::MmaTile;
namespace {

/// Planes of a group; a job alone may be larger.
constexpr Index kGroupBytes = Index{1} << 30;

template <class F>
Status of_dtype(DType t, F&& f) {
  switch (t) {
    case DType::bf16: return f.template operator()<bf16>();
    case DType::f16: return f.template operator()<f16>();
    default: return f.template operator()<float>();
  }
}
int scores_shared(const AttentionProblem& p, Index dim) {
  const auto d = static_cast<int>(dim);
  return p.dtype == DType::f32
             ? MmaTile<float>::bytes(kChunkRows, d) + 2 * MmaTile<float>::bytes(MmaTile<float>::kKeys, d)
             : MmaTile<bf16>::bytes(kChunkRows, d) + 2 * MmaTile<bf16>::bytes(MmaTile<bf16>::kKeys, d);
}
HeadsView heads_of(const AnyView& v, const HeadLayout& layout) {
  return {v.data, {v.step[0], v.step[1], v.step[2], v.step[3]}, layout};
}

}  // namespace

void chunks_refused(const AttentionProblem& p, char (&why)[kSentenceBytes]) {
  inputs_refused(p, why);
  if (why[0]) return;
  const auto say = [&](auto... parts) { std::snprintf(why, sizeof why, parts...); };
  if (p.dtype == DType::f64) return say("dtype f64; it takes f32, bf16 and f16");
  if (p.keys == KeyForm::paged) return say("keys lie in pages");
  if (p.probe.any()) return say("probes");
  if (p.heads.terms.rows) return say("heads list their rows");
  const int device = p.device.index;
  if (const int bytes = scores_shared(p, max_of(p.heads.q.dim, p.heads.v.dim)),
      most = facts_of(device).shared_bytes;
      bytes > most)
    return say("head_dim %lld and value_dim %lld need %d bytes of shared memory; device %d lends a block %d",
               static_cast<long long>(p.heads.q.dim), static_cast<long long>(p.heads.v.dim), bytes, device,
               most);
  if (p.heads.q.heads > 65535 || p.heads.v.heads > 65535) return say("its grid ends at 65,535 heads");
  if (p.batch > 65535) return say("its grid ends at 65,535 sequences");
  if (p.q_tokens > kFar || p.kv_tokens > kFar) return say("sequences past 2^29 tokens");
}

void chunk_gradients_refused(const BackwardProblem& problem, const GradientSpec& rest,
                             const char* takes_words, char (&why)[kSentenceBytes]) {
  const HeadSpec& h = problem.forward.heads;
  if (!problem.forward.lse)
    std::snprintf(why, sizeof why, "the forward kept no lse; it needs out and lse");
  else if (h.q.row || h.k.row || h.v.row || h.q.group != 1)
    std::snprintf(why, sizeof why, "heads that lie in rows or share q; it takes [batch tokens heads dim]");
  else if (!(rest == GradientSpec{}))
    std::snprintf(why, sizeof why, "gradients beside %s", takes_words);
}

ChunkRun::ChunkRun(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream,
                   Index pair_bytes)
    : p_(p),
      a_(a),
      device_(device),
      plan_(plan_chunks(p, a, pair_bytes, kGroupBytes)),
      current_(std::in_place, device) {
  state_ = state_of(device, static_cast<cudaStream_t>(stream));
  if (state_) lock_ = std::unique_lock(state_->mutex);
  runs_ = mma::opens_runs(a.mask);
}

Status ChunkRun::reserve(RunInputs& in, std::size_t bytes) {
  if (!current_->status().ok()) return current_->status();
  if (!state_) return kNoState;
  const Status status = gather_inputs(p_, a_, *state_, 1, in, bytes);
  in.out.layout = HeadLayout::split(p_.heads.v.heads, p_.heads.v.dim);
  places_ = in.places, scales_ = in.scales, scale_count_ = in.scale_count;
  return status;
}
Status ChunkRun::send_jobs() {
  const auto* from = reinterpret_cast<const std::byte*>(plan_.jobs.data());
  const std::size_t all = plan_.jobs.size() * sizeof(ChunkJob);
  for (std::size_t at = 0; at < all; at += kUploadBytes) {
    const Status status = upload(reinterpret_cast<std::byte*>(jobs_) + at, from + at,
                                 all - at < kUploadBytes ? all - at : kUploadBytes, state_->stream);
    if (!status.ok()) return status;
  }
  return {};
}

Status ChunkRun::box_map(const AnyView& v, int box_rows, CUtensorMap& map) {
  return state_->map_of(hopper::map_spec(p_, v, box_rows, 1), map);
}

bool ChunkRun::by_chunks_of(const HeadsView& v) const {
  const Index chunk = 16 / size_of(p_.dtype);
  if (v.layout.row || v.step[3] != 1 || reinterpret_cast<std::uintptr_t>(v.data) % 16 != 0) return false;
  return v.step[0] % chunk == 0 && v.step[1] % chunk == 0 && v.step[2] % chunk == 0;
}

Status ChunkRun::scores(const HeadsView& x, const HeadsView& y, bool by_scale, int planes, float* to,
                        int keys) {
  const ChunkScores s{group_,
                      x,
                      y,
                      by_chunks_of(x),
                      by_chunks_of(y),
                      static_cast<int>(x.layout.heads),
                      planes,
                      by_scale ? scales_ : nullptr,
                      scale_count_,
                      to};
  return of_dtype(p_.dtype, [&]<class T>() { return chunk_scores<T>(s, keys, device_, state_->stream); });
}
ChunkValues ChunkRun::values_of(const void* w, const HeadsView& y, const HeadsView& to, Index planes) const {
  ChunkValues v{};
  v.group = group_, v.w = w, v.y = y, v.to = to, v.vector_y = by_chunks_of(y);
  v.heads = static_cast<int>(y.layout.heads), v.planes = static_cast<int>(planes), v.factor = 1.f;
  return v;
}
Status ChunkRun::values(const ChunkValues& v) {
  return of_dtype(p_.dtype, [&]<class T>() { return chunk_values<T>(v, device_, state_->stream); });
}

ChunkGradients ChunkRun::gradients_of(const BackwardArgs& a, Bytes256& room) const {
  const HeadSpec& h = p_.heads;
  ChunkGradients g;
  g.dout = heads_of(a.dout, HeadLayout::split(h.v.heads, h.v.dim));
  g.dq = heads_of(a.dq, h.q), g.dk = heads_of(a.dk, h.k), g.dv = heads_of(a.dv, h.v);
  g.vector_dout = by_chunks_of(g.dout);
  const Index rows = p_.batch * p_.kv_tokens;
  if (a.dk.given()) g.dk_sums = room.take<float>(rows * h.k.slots() * h.k.dim);
  if (a.dv.given()) g.dv_sums = room.take<float>(rows * h.v.slots() * h.v.dim);
  return g;
}
bool ChunkRun::products_fit(const ChunkGradients& g, const RunInputs& in) const {
  const auto fits = [&](const HeadsView& v) {
    return !v.data || (by_chunks_of(v) && v.layout.group == 1 && v.layout.dim <= 64 && v.layout.dim % 8 == 0);
  };
  return p_.dtype != DType::f32 && facts_of(device_).major == 9 && fits(in.q) && fits(in.k) && fits(g.dout) &&
         fits(g.dq) && fits(g.dk) && fits(g.dv);
}
Status ChunkRun::gradients(const ChunkGradients& g, const RunInputs& in, const GradientPlanes& of) {
  Status status;
  if (!of.blocked && products_fit(g, in)) {
    ChunkProducts p{group_,
                    {},
                    {},
                    in.q,
                    in.k,
                    g.dout,
                    g.dq,
                    g.dk,
                    g.dv,
                    static_cast<int>(of.ds_planes),
                    static_cast<int>(of.w_planes),
                    of.first,
                    static_cast<int>(p_.kv_tokens),
                    g.dk_sums,
                    g.dv_sums};
    status = product_map(of.ds, of.ds_planes, kChunkRows, p.ds_map);
    if (status.ok()) status = product_map(of.w, of.w_planes, kChunkRows, p.w_map);
    if (!status.ok()) return status;
    return p_.dtype == DType::bf16 ? chunk_products<bf16>(p, of.sequences, device_, state_->stream)
                                   : chunk_products<f16>(p, of.sequences, device_, state_->stream);
  }
  if (g.dq.data) {
    ChunkValues v = values_of(of.ds, in.k, g.dq, of.ds_planes);
    v.blocked = of.blocked, status = values(v);
  }
  ChunkKeysBoth both{};
  const auto add = [&](const void* plane, const HeadsView& x, const HeadsView& to, Index planes,
                       float* sums) {
    if (!to.data) return;
    both.of[both.count++] = {group_,
                             plane,
                             of.blocked,
                             x,
                             to,
                             by_chunks_of(x),
                             static_cast<int>(planes),
                             of.first,
                             static_cast<int>(p_.kv_tokens),
                             sums};
  };
  add(of.ds, in.q, g.dk, of.ds_planes, g.dk_sums), add(of.w, g.dout, g.dv, of.w_planes, g.dv_sums);
  if (status.ok())
    status = of_dtype(p_.dtype,
                      [&]<class T>() { return chunk_keys<T>(both, of.sequences, device_, state_->stream); });
  return status;
}

}  // namespace headwise::cuda::chunk
