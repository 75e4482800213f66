// Records of tokens for dynamic mixes: coefficients in the order lanes read them, and the gradient of
// queries'.
#include "headwise/kernels/cuda/mixed/dynamic.cuh"

namespace headwise::cuda::mixed {
namespace {

__device__ __forceinline__ float record_number(const AnyView& from, const MixPairs& m, int word, Index batch,
                                               Index token) {
  const int place = word % 16, h = place / 2 % 2 * 8 + place / 4 * 2 + place % 2,
            row = given_row(m, word / kRecordMix, word % kRecordMix / 16);
  return from.data && row >= 0 && h < m.heads
             ? load_float(from.data, from.dtype, coefficient_at(from, batch, token, row, h))
             : 0.f;
}
/// A block a token, a thread a number.
__global__ void __launch_bounds__(kRecord)
    key_record(const __grid_constant__ DynamicTiles p, const __grid_constant__ AnyView mix_k) {
  const MixPairs& m = p.tiles.rows;
  const Index token = blockIdx.x;
  const int word = static_cast<int>(threadIdx.x);
  if (word < kDynamicSums)
    p.key_records[token * kRecord + word] = record_number(mix_k, m, word, token / m.k_rows, token % m.k_rows);
}
__global__ void __launch_bounds__(kRecord)
    query_record(const __grid_constant__ DynamicTiles p, const __grid_constant__ AnyView mix_q,
                 bool backward) {
  const MixPairs& m = p.tiles.rows;
  const RunInputs& f = m.in;
  const chunk::ChunkJob job = m.group.jobs[blockIdx.y];
  const int i = static_cast<int>(blockIdx.x), word = static_cast<int>(threadIdx.x);
  if (i >= job.rows) return;
  const SequenceLocation at = f.places[job.sequence];
  const Index token = at.q_row + job.row0 + i;
  float* to = p.tiles.records + (at.tensor_batch * m.q_rows + token) * kRecord;
  if (word < kDynamicSums) {
    to[word] = record_number(mix_q, m, word, at.tensor_batch, token);
  } else if (word < kRecordDelta) {
    const int place = word % 16, h = place / 2 % 2 * 8 + place / 4 * 2 + place % 2;
    float lse = -INFINITY;
    if (backward && h < m.heads)
      lse = f.lse[at.tensor_batch * f.lse_step[0] + h * f.lse_step[1] + token * f.lse_step[2]];
    to[word] = lse == -INFINITY ? INFINITY : lse * chunk::kChunkLog2e;
  } else if (word < kRecordOpen) {
    to[word] = 0.f;
  } else if (word == kRecordOpen) {
    const chunk::RowOpen open(f, true, at, job.sequence, 0, job.row0 + i, job.keys);
    *reinterpret_cast<int2*>(to + word) = make_int2(open.begin, open.end);
  }
}
/// dmix_q of each row out of its parts, in order.
__global__ void __launch_bounds__(kDynamicSums) join_sums(const __grid_constant__ DynamicTiles p) {
  const MixPairs& m = p.tiles.rows;
  const Index i = blockIdx.x, slot = blockIdx.y;
  const int n = static_cast<int>(threadIdx.x);
  const chunk::ChunkJob job = m.group.jobs[slot];
  if (i >= job.rows) return;
  const SequenceLocation at = m.in.places[job.sequence];
  float x = 0.f;
  for (int part = 0; part * kDynamicPart < job.keys; ++part)
    x += p.sums[((slot * chunk::kChunkRows + i) * p.tiles.part_count + part) * kDynamicSums + n];
  put_coefficient(p.dmix_q, m,
                  {.stage = n / kRecordMix,
                   .r = n % kRecordMix / 16,
                   .h = n % 16,
                   .batch = at.tensor_batch,
                   .token = at.q_row + job.row0 + i},
                  x);
}

dim3 rows_of(const DynamicTiles& p) {
  return dim3(chunk::kChunkRows, static_cast<unsigned>(p.tiles.rows.group.count));
}

}  // namespace

Status fill_key_records(const DynamicTiles& p, const AnyView& mix_k, cudaStream_t stream) {
  const Index tokens = p.key_tokens;
  return tokens == 0 ? Status{}
                     : launch({"cuda/key_record", dim3(static_cast<unsigned>(tokens)), kRecord, 0, stream},
                              key_record, p, mix_k);
}
Status fill_query_records(const DynamicTiles& p, const AnyView& mix_q, bool backward, cudaStream_t stream) {
  return launch({"cuda/query_record", rows_of(p), kRecord, 0, stream}, query_record, p, mix_q, backward);
}

Status join_query_sums(const DynamicTiles& p, cudaStream_t stream) {
  return launch({"cuda/join_sums", rows_of(p), kDynamicSums, 0, stream}, join_sums, p);
}

}  // namespace headwise::cuda::mixed
