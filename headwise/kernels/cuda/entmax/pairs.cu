// Entmax over the rows of a chunk: a block a row, its threshold by Newton's steps from below.
#include "headwise/kernels/cuda/entmax/pairs.h"

#include "headwise/kernels/cuda/chunk/pairs.cuh"
#include "headwise/kernels/cuda/device/number.cuh"

namespace headwise::cuda::entmax {

using chunk::capped;
using chunk::kChunkKeys;
using chunk::kChunkLn2;
using chunk::kChunkRows;
using chunk::warp_sum_of;
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
/// Keys of a row in shared memory, twice; longer rows stay where they lie.
constexpr int kKeptKeys = 24576;

/// Up to three sums of a block, the same for every thread.
struct BlockSums {
  float (&parts)[2][3][kWarps];
  int turn = 0;
  __device__ __forceinline__ float3 sum(float a, float b, float c) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    a = warp_sum_of(a), b = warp_sum_of(b), c = warp_sum_of(c);
    turn ^= 1;  // two rooms: a fast warp may not write over what a slow one
                // still reads
    if (threadIdx.x % 32 == 0) parts[turn][0][warp] = a, parts[turn][1][warp] = b, parts[turn][2][warp] = c;
    __syncthreads();
    float3 all = make_float3(0.f, 0.f, 0.f);
#pragma unroll
    for (int n = 0; n < kWarps; ++n)
      all.x += parts[turn][0][n], all.y += parts[turn][1][n], all.z += parts[turn][2][n];
    return all;
  }
  __device__ __forceinline__ float most(float a) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    a = chunk::warp_most_of(a);
    turn ^= 1;
    if (threadIdx.x % 32 == 0) parts[turn][0][warp] = a;
    __syncthreads();
    float all = parts[turn][0][0];
#pragma unroll
    for (int n = 1; n < kWarps; ++n) {
      const float b = parts[turn][0][n];
      all = all != all || b != b ? NAN : fmaxf(all, b);
    }
    return all;
  }
};

/// w = d^power with d = max(0, less (s - top) - tau), and d^(power - 1); less = alpha - 1, power = 1 / less.
struct Rule {
  float less, power;
  bool softmax;
  __device__ __forceinline__ explicit Rule(float alpha)
      : less(alpha - 1.f), power(1.f / (alpha - 1.f)), softmax(alpha == 1.f) {}
  __device__ __forceinline__ void weigh(float s, float top, float tau, float& w, float& u) const {
    if (softmax) {
      w = u = exp2f((s - top) * chunk::kChunkLog2e);
      return;
    }
    const float d = fmaf(less, s - top, -tau);
    w = u = 0.f;
    if (!(d > 0.f)) return;
    if (power == 2.f) {
      w = d * d, u = d;
    } else if (power == 1.f) {
      w = d, u = 1.f;
    } else {
      w = exp2f(power * log2f(d)), u = w / d;
    }
  }
};

/// Numbers of a row: thread t has those at 2 (t + 128 n) and the next one.
template <class Body>
__device__ __forceinline__ void each_pair(int end, Body&& body) {
  for (int j = 2 * static_cast<int>(threadIdx.x); j < end; j += 2 * kThreads) body(j);
}
/// The same with what lies there, read four at a time: a read of its own each would wait for the one before.
template <class Body>
__device__ __forceinline__ void each_loaded(const float* from, int end, Body&& body) {
  for (int j = 2 * static_cast<int>(threadIdx.x); j < end; j += 8 * kThreads) {
    float2 x[4];
#pragma unroll
    for (int n = 0; n < 4; ++n)
      x[n] = *reinterpret_cast<const float2*>(from + min(j + 2 * n * kThreads, end - 2));
#pragma unroll
    for (int n = 0; n < 4; ++n)
      if (j + 2 * n * kThreads < end) body(j + 2 * n * kThreads, x[n]);
  }
}
/// A thread's own numbers that may weigh something, 128 apart.
struct OwnList {
  const float* at;
  int count;
  template <class Body>
  __device__ __forceinline__ void each(Body&& body) const {
    for (int n = 0; n < count; ++n) body(at[n * kThreads]);
  }
};

/// tau of a row with maximum `top`: Newton's steps on the norm (sum w)^(1 / power), which is convex in tau
/// and meets 1 from above, so that no step passes it.
__device__ float threshold_of(const Rule& rule, const OwnList& row, float top, float sink, BlockSums& sums) {
  float tau = -1.f;
  for (int step = 0; step < 64; ++step) {
    float all = 0.f, slope = 0.f, w, u;
    row.each([&](float s) {
      rule.weigh(s, top, tau, w, u);
      all += w, slope += u;
    });
    const float3 both = sums.sum(all, slope, 0.f);
    rule.weigh(sink, top, tau, w, u);
    all = both.x + w, slope = both.y + u;
    const float root = rule.power == 1.f   ? 1.f
                       : rule.power == 2.f ? sqrtf(all)
                                           : exp2f(log2f(all) * (1.f - rule.less));
    const float next = tau + (all - root) / slope;
    if (!(next > tau)) break;
    tau = next;
  }
  return tau;
}

/// The highest logit of a row, its sink's, and the one at and below which keys weigh nothing.
struct RowTop {
  float top, sink, floor;
};

/// What a row's threads know of it.
struct RowState {
  chunk::ChunkJob job;
  SequenceLocation at;
  Index b, h, q, plane, row;  // plane: its first number; row: its place among
                              // rows of [slot heads 64]
  int end;
  __device__ __forceinline__ RowState(const EntmaxPairs& p)
      : job(p.group.jobs[blockIdx.z]), at(p.in.places[job.sequence]), b(job.sequence), h(blockIdx.y) {
    const Index slot = blockIdx.z, i = blockIdx.x;
    q = job.row0 + i;
    plane = chunk::plane_at(slot, p.in.heads, h, i, p.group.pitch),
    row = (slot * p.in.heads + h) * kChunkRows + i;
    end = (job.keys + kChunkKeys - 1) / kChunkKeys * kChunkKeys;
  }
  __device__ __forceinline__ bool there() const { return static_cast<int>(blockIdx.x) < job.rows; }
};
__device__ __forceinline__ void store_pair(void* plane, DType t, Index at, float x, float y) {
  switch (t) {
    case DType::bf16:
      *reinterpret_cast<std::uint32_t*>(static_cast<bf16*>(plane) + at) = Number<bf16>::pack(x, y);
      break;
    case DType::f16:
      *reinterpret_cast<std::uint32_t*>(static_cast<f16*>(plane) + at) = Number<f16>::pack(x, y);
      break;
    default: *reinterpret_cast<float2*>(static_cast<float*>(plane) + at) = make_float2(x, y);
  }
}

/// The same over a row in memory, the keys above `floor`; gives this thread's part of the sum of weights.
__device__ __forceinline__ float weigh_far_row(const Rule& rule, const float* row, int end, const RowTop& top,
                                               BlockSums& sums, float& tau) {
  float all = 0.f, w, u;
  for (int step = 0; step < 64; ++step) {
    float part = 0.f, slope = 0.f;
    if (step == 0) tau = rule.softmax ? 0.f : -1.f;
    each_pair(end, [&](int j) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (row[j + e] > top.floor) {
          rule.weigh(row[j + e], top.top, tau, w, u);
          part += w, slope += u;
        }
    });
    all = part;
    if (rule.softmax) break;
    const float3 both = sums.sum(part, slope, 0.f);
    rule.weigh(top.sink, top.top, tau, w, u);
    const float sum = both.x + w;
    const float root = rule.power == 1.f ? 1.f : exp2f(log2f(sum) * (1.f - rule.less));
    const float next = tau + (sum - root) / (both.y + u);
    if (!(next > tau)) break;
    tau = next;
  }
  return all;
}

__global__ void __launch_bounds__(kThreads) forward_rows(const __grid_constant__ EntmaxPairs p) {
  __shared__ float parts[2][3][kWarps];
  extern __shared__ __align__(16) float room[];
  BlockSums sums{parts};
  const RunInputs& f = p.in;
  const RowState r(p);
  if (!r.there())
    return each_pair(r.end, [&](int j) { store_pair(p.weights, p.dtype, r.plane + j, 0.f, 0.f); });
  const Rule rule(number_of(p.alpha, static_cast<int>(r.h)));
  const chunk::RowOpen open(f, p.group.runs, r.at, r.b, r.h, r.q, r.job.keys);
  const bool near = r.end <= kKeptKeys, capped_scores = f.softcap != 0,
             terms = f.bias || f.slopes.data || f.relative;
  float* scores = p.scores + r.plane;
  float* row = near ? room : scores;  // logits; behind them in the room, each thread's list
  float mine = -INFINITY;
  each_loaded(scores, r.end, [&](int j, float2 two) {
    float s[2] = {two.x, two.y};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (!open(f, r.at, r.b, r.h, r.q, j + e)) {
        s[e] = -INFINITY;
      } else {
        if (capped_scores) s[e] = capped(f, s[e]);
        if (terms) s[e] += chunk::added_terms(f, r.at, r.b, r.h, r.q, j + e);
      }
      mine = mine != mine || s[e] != s[e] ? NAN : fmaxf(mine, s[e]);
    }
    *reinterpret_cast<float2*>(row + j) = make_float2(s[0], s[1]);
  });
  const float keys_top = sums.most(mine),
              sink = f.sinks.data ? number_of(f.sinks, static_cast<int>(r.h)) : -INFINITY;
  const float top = keys_top != keys_top ? keys_top : fmaxf(keys_top, sink);
  const bool finite = top - top == 0.f;
  // Keys at or below top - power weigh nothing whatever tau is.
  OwnList list{room + r.end + threadIdx.x, 0};
  const float floor = rule.softmax ? -INFINITY : top - rule.power * 1.000001f - 1e-6f * fabsf(top);
  if (near) {
    each_pair(r.end, [&](int j) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (row[j + e] > floor) room[r.end + threadIdx.x + kThreads * list.count++] = row[j + e];
    });
  }
  float tau = 0.f, all = 0.f, w, u;
  if (finite && near) {
    if (!rule.softmax) tau = threshold_of(rule, list, top, sink, sums);
    list.each([&](float s) {
      rule.weigh(s, top, tau, w, u);
      all += w;
    });
  } else if (finite) {
    all = weigh_far_row(rule, row, r.end, {top, sink, floor}, sums, tau);
  }
  all = sums.sum(all, 0.f, 0.f).x;
  rule.weigh(sink, top, tau, w, u);
  if (finite && sink != -INFINITY) all += w;
  const float inverse = 1.f / all, other = top == -INFINITY ? 0.f : NAN;
  each_pair(r.end, [&](int j) {
    float x[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      x[e] = 0.f;
      const float s = row[j + e];
      if (!finite) {
        if (j + e < r.job.keys) x[e] = other;
      } else if (s > floor) {
        rule.weigh(s, top, tau, w, u);
        x[e] = w * inverse;
        if (f.dropout != 0) x[e] *= chunk::drawn(f, r.at, r.b, r.h, r.q, j + e);
      }
    }
    store_pair(p.weights, p.dtype, r.plane + j, x[0], x[1]);
  });
  if (threadIdx.x == 0) {
    const float saved = top == -INFINITY ? -INFINITY
                        : !finite        ? NAN
                        : rule.softmax   ? top + logf(all)
                                         : fmaf(rule.less, top, tau);
    p.lse[r.row] = keys_top == -INFINITY ? -INFINITY : saved;  // a row of a sink alone is 0 too
    if (f.lse)
      f.lse[r.at.tensor_batch * f.lse_step[0] + r.h * f.lse_step[1] + (r.at.q_row + r.q) * f.lse_step[2]] =
          saved;
  }
}

/// A row in which no key weighs anything.
__device__ __forceinline__ void leave_row(const EntmaxPairs& p, const RowState& r) {
  each_pair(r.end, [&](int j) {
    store_pair(p.weights, p.dtype, r.plane + j, 0.f, 0.f);
    store_pair(p.ds, p.dtype, r.plane + j, 0.f, 0.f);
  });
  if (threadIdx.x == 0 && p.dalpha_rows) p.dalpha_rows[r.row] = 0.f;
  if (threadIdx.x == 0 && p.dsink_rows) p.dsink_rows[r.row] = 0.f;
}
__device__ __forceinline__ void put_gate(const EntmaxPairs& p, const RowState& r, float x) {
  if (p.dgate && threadIdx.x == 0)
    store_float(
        p.dgate, p.dgate_dtype,
        r.at.tensor_batch * p.dgate_step[0] + (r.at.q_row + r.q) * p.dgate_step[1] + r.h * p.dgate_step[2],
        static_cast<double>(x));
}

/// u = w^(2 - alpha), delta = sum u dw / sum u:  ds = u (dw - delta)
/// dalpha = (sum w dw - delta) / less^2 - (sum w ln w dw - delta sum w ln w) / less
__global__ void __launch_bounds__(kThreads) backward_rows(const __grid_constant__ EntmaxPairs p) {
  __shared__ float parts[2][3][kWarps];
  extern __shared__ __align__(16) float room[];
  BlockSums sums{parts};
  const RunInputs& f = p.in;
  const RowState r(p);
  if (!r.there()) return leave_row(p, r);
  const float tau =
      f.lse[r.at.tensor_batch * f.lse_step[0] + r.h * f.lse_step[1] + (r.at.q_row + r.q) * f.lse_step[2]];
  const Rule rule(number_of(p.alpha, static_cast<int>(r.h)));
  const chunk::RowOpen open(f, p.group.runs, r.at, r.b, r.h, r.q, r.job.keys);
  const float sink = f.sinks.data ? number_of(f.sinks, static_cast<int>(r.h)) : -INFINITY;
  const float gate = chunk::gate_of(f, r.at, r.h, r.q),
              scale = static_cast<float>(f.scales[f.scale_count == 1 ? 0 : r.h]);
  const bool near = r.end <= kKeptKeys, capped_scores = f.softcap != 0,
             terms = f.bias || f.slopes.data || f.relative;
  const float *scores = p.scores + r.plane, *dp = p.dp + r.plane;
  const auto logit = [&](float s, int j) {
    if (!open(f, r.at, r.b, r.h, r.q, j)) return -INFINITY;
    if (capped_scores) s = capped(f, s);
    if (terms) s += chunk::added_terms(f, r.at, r.b, r.h, r.q, j);
    return s;
  };
  const auto weigh = [&](float s, float& w, float& u) {
    if (rule.softmax) {
      w = u = exp2f((s - tau) * chunk::kChunkLog2e);
    } else {
      rule.weigh(s, 0.f, tau, w, u);
    }
  };
  float all = 0.f, us = 0.f, udw = 0.f, wdp = 0.f, logs = 0.f, wlog = 0.f, w, u;
  if (tau != -INFINITY)
    each_loaded(scores, r.end, [&](int j, float2 two) {
      const float s[2] = {logit(two.x, j), logit(two.y, j + 1)};
      if (near) *reinterpret_cast<float2*>(room + j) = make_float2(s[0], s[1]);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        weigh(s[e], w, u);
        if (w == 0.f) continue;
        const float dw = chunk::pair_kept(f, r.at, r.b, r.h, r.q, j + e) * dp[j + e],
                    ln = kChunkLn2 * log2f(w) * w;
        all += w, us += u, udw = fmaf(u, dw, udw), wdp = fmaf(w, dw, wdp), logs = fmaf(ln, dw, logs),
                           wlog += ln;
      }
    });
  const float3 first = sums.sum(all, us, udw), second = sums.sum(wdp, logs, wlog);
  if (first.x == 0.f || tau == -INFINITY) {  // no key weighs anything
    put_gate(p, r, 0.f);
    return leave_row(p, r);
  }
  float sink_w = 0.f, sink_u = 0.f;
  if (sink != -INFINITY) weigh(sink, sink_w, sink_u);
  // Weights are divided by their sum, as in the forward.
  const float norm = 1.f / (first.x + sink_w), log_norm = kChunkLn2 * log2f(norm);
  const float dot = norm * second.x, dot_log = norm * fmaf(log_norm, second.x, second.y);
  float entropy = norm * fmaf(log_norm, first.x, second.z);
  if (sink_w > 0.f) entropy += norm * sink_w * kChunkLn2 * log2f(norm * sink_w);
  const float delta = gate * first.z / (first.y + sink_u);
  each_pair(r.end, [&](int j) {
    float s[2], weight[2], ds[2];
    if (near) {
      s[0] = room[j], s[1] = room[j + 1];
    } else {
      s[0] = logit(scores[j], j), s[1] = logit(scores[j + 1], j + 1);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      weigh(s[e], w, u);
      weight[e] = ds[e] = 0.f;
      if (w == 0.f) continue;
      const float kept = chunk::pair_kept(f, r.at, r.b, r.h, r.q, j + e);
      float slant = 1.f;
      if (capped_scores) capped(f, scores[j + e], &slant);
      weight[e] = w * norm * gate * kept;
      ds[e] = u * (gate * kept * dp[j + e] - delta) * slant * scale;
    }
    store_pair(p.weights, p.dtype, r.plane + j, weight[0], weight[1]);
    store_pair(p.ds, p.dtype, r.plane + j, ds[0], ds[1]);
  });
  put_gate(p, r, dot);
  if (threadIdx.x == 0) {
    if (p.dsink_rows) p.dsink_rows[r.row] = -sink_u * delta;
    if (p.dalpha_rows)
      p.dalpha_rows[r.row] = rule.softmax ? 0.f
                                          : (gate * dot - delta) / (rule.less * rule.less) -
                                                (gate * dot_log - delta * entropy) / rule.less;
  }
}

__global__ void __launch_bounds__(32) add_of_heads(const float* rows, double* sums, int heads, int count) {
  const int head = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
  double all = sums[head];
  for (int n = 0; n < count; ++n) {
    const float* from = rows + (static_cast<Index>(n) * heads + head) * kChunkRows;
    double x = static_cast<double>(from[lane]) + static_cast<double>(from[lane + 32]);
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    all += x;
  }
  if (lane == 0) sums[head] = all;
}
__global__ void write_of_heads(const double* sums, void* to, DType dtype, Index step) {
  store_float(to, dtype, threadIdx.x * step, sums[threadIdx.x]);
}

Status start_rows(const char* name, void (*kernel)(EntmaxPairs), bool (&allowed)[64], bool lists,
                  const EntmaxPairs& p, cudaStream_t stream) {
  int device = 0;
  Status status = status_of(name, cudaGetDevice(&device));
  const auto most = static_cast<std::size_t>(lists ? 2 * kKeptKeys : kKeptKeys) * sizeof(float);
  if (status.ok()) status = allow_shared(name, kernel, most, allowed, device);
  if (!status.ok()) return status;
  // Logits, and behind them lists of two numbers for each 256 keys a thread.
  const Index keys = min_of(p.group.pitch, kKeptKeys),
              numbers = keys + (lists ? round_up(keys, 2 * kThreads) : 0);
  const auto bytes = static_cast<std::size_t>(numbers) * sizeof(float);
  const dim3 grid(kChunkRows, static_cast<unsigned>(p.in.heads), static_cast<unsigned>(p.group.count));
  return launch({name, grid, kThreads, bytes, stream}, kernel, p);
}

}  // namespace

Status forward_pairs(const EntmaxPairs& p, cudaStream_t stream) {
  static bool allowed[64] = {};
  return start_rows("cuda/entmax_rows", forward_rows, allowed, true, p, stream);
}
Status backward_pairs(const EntmaxPairs& p, cudaStream_t stream) {
  static bool allowed[64] = {};
  return start_rows("cuda/entmax_backward_rows", backward_rows, allowed, false, p, stream);
}

Status add_rows(const float* rows, double* sums, int heads, int count, cudaStream_t stream) {
  return launch({"cuda/add_rows", dim3(static_cast<unsigned>(heads)), 32, 0, stream}, add_of_heads, rows,
                sums, heads, count);
}
Status write_heads(const double* sums, int heads, const AnyView& to, cudaStream_t stream) {
  return launch({"cuda/write_heads", dim3(1), static_cast<unsigned>(heads), 0, stream}, write_of_heads, sums,
                to.data, to.dtype, to.step[0]);
}

}  // namespace headwise::cuda::entmax
