// cuda/hopper and cuda/decode: rows of the output that values of closed keys reached, made anew.
#include "headwise/kernels/cuda/hopper/mend.h"

#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/inputs/mend.cuh"
#include "headwise/kernels/cuda/inputs/per_head.cuh"

namespace headwise::cuda::hopper {
namespace {

constexpr float kLog2e = 1.44269504088896341f;
constexpr int kThreads = 256;

/// What ForwardParams says of one query.
template <class T>
struct BandRow {
  const MendParams& m;
  const Place& place;
  int b, head, row;  // the sequence, or a piece of one; the query of it
  const T* q;
  int begin, end;
  float sink, slope;

  __device__ Index batch() const { return m.p.places ? place.batch : b; }
  __device__ int position() const { return place.q_start + row; }
  __device__ const T* token(const void* data, const Index (&step)[3], int j) const {
    const ForwardPages& pages = m.p.pages;
    Index from = batch(), at = place.kv_row + j;
    if (pages.table) {
      from = pages.table[b * pages.step[0] + j / m.page_size * pages.step[1]];
      at = j % m.page_size;
      if (from < 0 || from >= m.page_count) return nullptr;
    }
    return static_cast<const T*>(data) + from * step[0] + at * step[1] + head / m.p.group * step[2];
  }
  __device__ bool open(int j) const {
    const BlockLists& blocks = m.p.blocks;
    if (!blocks.lists) return true;
    const int q = position(), block = j / blocks.kv_block;
    if (q < 0 || q / blocks.q_block >= blocks.rows) return false;
    return blocks.bits[static_cast<Index>(q / blocks.q_block) * blocks.words + block / 32] >> (block % 32) &
           1u;
  }
  __device__ float score(int j) const {
    const ForwardParams& p = m.p;
    const T* k = token(m.k, m.k_step, j);
    float x = 0;
    for (int c = 0; k && c < m.head_dim; ++c) x = fmaf(static_cast<float>(q[c]), static_cast<float>(k[c]), x);
    x = p.cap > 0.f ? p.cap * tanhf(x * p.inverse_cap) : x * p.scale_log2;
    x = fmaf(-slope, static_cast<float>(abs(position() - j)), x);
    if (p.bias.data)
      x = fmaf(
          kLog2e,
          load_float(p.bias.data, p.bias.dtype,
                     b / p.pieces * p.bias.step[0] + head * p.bias.step[1] +
                         (place.first_query + row) * p.bias.step[2] + (place.first_key + j) * p.bias.step[3]),
          x);
    return x;
  }
  __device__ float kept(int j) const {
    if (!m.p.drops) return 1.f;
    const int n = b / m.p.pieces;
    return m.p.rule.keep(m.p.sequence_ids ? m.p.sequence_ids[n] : n, head, position(), j) ? 1.f : 0.f;
  }
  __device__ float value(int j, int c) const {
    const T* v = token(m.v, m.v_step, j);
    return v ? static_cast<float>(v[c]) : 0.f;
  }
  __device__ float factor() const {
    const RowGate& gate = m.p.gate;
    return m.p.kept * (gate.data ? number_of(gate, batch(), place.q_row + row, head) : 1.f);
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, 1) mend_band(const __grid_constant__ MendParams m) {
  ptx::wait_for_forerunner();
  const ForwardParams& p = m.p;
  const Index tokens = p.place.q_tokens;  // of the longest sequence
  mend_rows(m.lost, tokens * p.batch * p.heads, [&](Index task) {
    const int pair = static_cast<int>(task / tokens), row = static_cast<int>(task % tokens);
    const int b = pair / p.heads, head = pair % p.heads;
    const Place place = p.places ? p.places[p.by_head ? pair : b] : p.place;
    if (row >= place.q_tokens) return;
    const int position = place.q_start + row;
    const Index batch = p.places ? place.batch : b, at = place.q_row + row;
    const T* q = static_cast<const T*>(m.q) + batch * m.q_step[0] + at * m.q_step[1] + head * m.q_step[2];
    T* out = static_cast<T*>(p.out) + batch * p.out_step[0] + at * p.out_step[1] + head * p.out_step[2];
    mend_row(out, 1, m.value_dim,
             BandRow<T>{m, place, b, head, row, q, max(position - p.back, 0),
                        min(place.kv_tokens, position + p.ahead + 1),
                        p.sinks.data ? kLog2e * number_of(p.sinks, head) : -INFINITY,
                        p.slopes.data ? kLog2e * number_of(p.slopes, head) : 0.f});
  });
}

}  // namespace

MendParams mend_params(const AttentionProblem& p, const AttentionArgs& a, const ForwardParams& f,
                       const LostRows& lost) {
  return {f,
          lost,
          a.q.data,
          a.k.data,
          a.v.data,
          {a.q.step[0], a.q.step[1], a.q.step[2]},
          {a.k.step[0], a.k.step[1], a.k.step[2]},
          {a.v.step[0], a.v.step[1], a.v.step[2]},
          a.k.size[0],
          static_cast<int>(p.page_size),
          static_cast<int>(p.heads.q.dim),
          static_cast<int>(p.heads.v.dim)};
}

Status mend(const MendParams& m, DType dtype, int processors, cudaStream_t stream) {
  const Launch how{"cuda/mend_band", dim3(static_cast<unsigned>(processors)), kThreads, 0, stream, true};
  return dtype == DType::bf16 ? launch(how, mend_band<bf16>, m) : launch(how, mend_band<f16>, m);
}

}  // namespace headwise::cuda::hopper
