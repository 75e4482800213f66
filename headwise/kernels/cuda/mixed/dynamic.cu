// Dynamic mixes: 16 x 32 pairs of all heads in shared memory, mixed in f32 by a warp for each own token. Own
// tokens are queries; for the gradient of the keys' coefficients they are keys and the queries pass by.
#include "headwise/kernels/cuda/mixed/dynamic.cuh"

namespace headwise::cuda {
namespace {

constexpr int kOwn = 16, kOwnSideBytes = kTileHeads * kOwn * 128;
/// f32 pairs of a head; 4 more, so that a lane's heads and eight tokens meet all banks.
constexpr int kHeadWords = kOwn * kTileKeys + 4, kPlaneWords = kTileHeads * kHeadWords;
constexpr int kOthersBytes = kTileKeys * kRecord * static_cast<int>(sizeof(float));

constexpr bool is_backward(TilePass pass) { return pass == TilePass::delta || pass == TilePass::gradients; }
constexpr int shared_of(bool backward) {
  return (backward ? 2 : 1) * (kOwnSideBytes + kPlaneWords * 4) + kOwn * kRecord * 4 + 2 * kOthersBytes;
}

/// Eight other tokens of a row stand together; which eight depends on the row, so that rows meet all banks.
__device__ __forceinline__ int word_at(int row, int eight) {
  return row * kTileKeys + (eight ^ (row & 3)) * 8;
}

template <class T, TilePass Pass, bool OfKeys>
__global__ void __launch_bounds__(kTileThreads, 1) mix_dynamic(const __grid_constant__ DynamicTiles p) {
  constexpr bool kBackward = is_backward(Pass), kGradients = Pass == TilePass::gradients,
                 kWhole = !OfKeys && (Pass == TilePass::weights || kGradients);
  extern __shared__ __align__(128) std::uint8_t raw[];
  const MixRows& m = p.tiles.rows;
  const RunInputs& f = m.in;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            g = lane / 4, t = lane % 4, heads = m.heads, part = OfKeys ? 0 : static_cast<int>(blockIdx.y);
  // Own tokens: `there` from `own_row` on. Others: first .. last of `count` from `other_row` on.
  const Index slot = OfKeys ? 0 : blockIdx.x / 4;
  const ChunkJob job = OfKeys ? ChunkJob{static_cast<int>(blockIdx.y), 0, 0, 0} : m.group.jobs[slot];
  const SequencePlace at = f.places[job.sequence];
  const int row0 = static_cast<int>(OfKeys ? blockIdx.x : blockIdx.x % 4) * kOwn,
            there = (OfKeys ? static_cast<int>(at.kv_tokens) : job.rows) - row0,
            count = OfKeys ? static_cast<int>(at.q_tokens) : job.keys, first = part * kDynamicPart,
            last = OfKeys ? count
                          : min(first + kDynamicPart,
                                kWhole ? (count + kChunkKeys - 1) / kChunkKeys * kChunkKeys : count);
  if (OfKeys ? there <= 0 : first >= last) return;
  const Index own_row = OfKeys ? at.kv_row + row0 : at.q_row + job.row0 + row0,
              other_row = OfKeys ? at.q_row : at.kv_row;
  const float *own_from = OfKeys ? p.key_records + (at.tensor_batch * m.k_rows + own_row) * kRecord
                                 : p.tiles.records + (at.tensor_batch * m.q_rows + own_row) * kRecord,
              *other_from = OfKeys ? p.tiles.records + (at.tensor_batch * m.q_rows + other_row) * kRecord
                                   : p.key_records + (at.tensor_batch * m.k_rows + other_row) * kRecord;
  const HeadsView &left0 = OfKeys ? f.k : f.q, &left1 = OfKeys ? f.v : p.tiles.dout,
                  &right0 = OfKeys ? f.q : f.k, &right1 = OfKeys ? p.tiles.dout : f.v;

  constexpr int kSides = kBackward ? 2 : 1;
  const std::uint32_t side = ptx::shared_address(raw);
  float* scores = reinterpret_cast<float*>(raw + kSides * kOwnSideBytes);
  float* dweights = scores + kPlaneWords;
  float *own_records = scores + kSides * kPlaneWords, *others = own_records + kOwn * kRecord;
  const auto copy_records = [&](float* to, const float* from, int tokens) {
    const std::uint32_t start = ptx::shared_address(to);
    for (int n = static_cast<int>(threadIdx.x); n < tokens * kRecord / 4; n += kTileThreads)
      ptx::copy_16(start + static_cast<std::uint32_t>(16 * n), from + 4 * n, 16);
  };
  const auto copy_others = [&](int token0) {
    copy_records(others + (token0 / kTileKeys & 1) * (kOthersBytes / 4),
                 other_from + static_cast<Index>(token0) * kRecord, kTileKeys);
    ptx::commit_copies();
  };

  const auto first_token = [&](const HeadsView& x) {
    return static_cast<const T*>(x.data) + at.tensor_batch * x.step[0] + (other_row + first + g) * x.step[1] +
           (warp < static_cast<int>(x.layout.heads) ? x.layout.slot(warp) * x.step[2] : 0) + 8 * t;
  };
  const T *from0 = first_token(right0), *from1 = kBackward ? first_token(right1) : nullptr;
  const auto fetch = [&](TileRight& to, const HeadsView& x, const T*& from, int token0) {
    const bool in = warp < static_cast<int>(x.layout.heads);
    to.load(from, x.step[1], in ? count - token0 - g : 0, static_cast<int>(x.layout.dim) - 8 * t);
    from += kTileKeys * x.step[1];
  };
  TileRight right;
  fetch(right, right0, from0, first);
  copy_records(own_records, own_from, max(min(there, kOwn), 0));
  copy_others(first);
  put_side<T, kOwn>(side, left0, at.tensor_batch, own_row, there);
  if constexpr (kBackward) put_side<T, kOwn>(side + kOwnSideBytes, left1, at.tensor_batch, own_row, there);
  const auto scale_of = [&](int h) {
    return h < heads ? static_cast<float>(f.scales[f.scale_count == 1 ? 0 : h]) : 0.f;
  };
  const float own_scale = scale_of(warp);
  const auto head_of = [&](int c) { return 8 * (c >> 1) + 2 * t + (c & 1); };
  __shared__ float scales[kTileHeads];
  if (threadIdx.x < kTileHeads) scales[threadIdx.x] = scale_of(static_cast<int>(threadIdx.x));
  ptx::wait_copies<0>();
  __syncthreads();

  const bool own_there = warp < there;
  const float* own = own_records + warp * kRecord + 4 * t;
  int begin = 0, stop = 0;
  if (!OfKeys && own_there) {
    const int2 run = *reinterpret_cast<const int2*>(own_records + warp * kRecord + kRecordOpen);
    begin = run.x, stop = run.y;
  }
  float top[4], sum[4], dbefore[2][4] = {}, dafter[2][4] = {};
#pragma unroll
  for (int c = 0; c < 4; ++c) top[c] = -INFINITY, sum[c] = 0.f;

  /// Own row `warp` with 32 other tokens from `token0` on.
  const auto mix = [&](int token0) {
    const float* records = others + (token0 / kTileKeys & 1) * (kOthersBytes / 4);
    bool all_open = token0 >= begin && token0 + kTileKeys <= stop;
    if constexpr (OfKeys) {
      const int2 run = *reinterpret_cast<const int2*>(records + lane * kRecord + kRecordOpen);
      const bool open = own_there && token0 + lane < count && row0 + warp >= run.x && row0 + warp < run.y;
      if (!__any_sync(~0u, open)) return;
      all_open = __all_sync(~0u, open);
    }
#pragma unroll(kGradients ? 1 : 2)
    for (int unit = 0; unit < 2; ++unit) {
      const float* record[2] = {records + (16 * unit + g) * kRecord + 4 * t,
                                records + (16 * unit + 8 + g) * kRecord + 4 * t};
      const float* const after[2] = {record[0] + kRecordMix, record[1] + kRecordMix};
      const float* const before[2] = {record[0], record[1]};
      int word[2];
      bool open[2] = {true, true};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        word[n] = 2 * t * kHeadWords + word_at(warp, 2 * unit + n) + g;
        if (all_open) continue;
        const int token = token0 + 16 * unit + 8 * n + g;
        if constexpr (OfKeys) {
          const int2 run = *reinterpret_cast<const int2*>(record[n] - 4 * t + kRecordOpen);
          open[n] = own_there && token < count && row0 + warp >= run.x && row0 + warp < run.y;
        } else {
          open[n] = token >= begin && token < stop;
        }
      }
      const auto read = [&](const float* plane) {
        Pairs x;
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const float y = plane[word[n] + (8 * (c >> 1) + (c & 1)) * kHeadWords];
            x.x[4 * n + c] = open[n] ? y : 0.f;  // closed pairs may hold anything
          }
        return x;
      };
      const auto write = [&](float* plane, const Pairs& x) {
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int c = 0; c < 4; ++c)
            plane[word[n] + (8 * (c >> 1) + (c & 1)) * kHeadWords] =
                __uint_as_float(Number<T>::pack(open[n] ? x.x[4 * n + c] : 0.f, 0.f));
      };
      Pairs y = mixed<false>(read(scores), own, before);
      if constexpr (Pass == TilePass::lse) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          // The reference stays until the maximum grows by more than 8 exponents; no branch around it.
          const float a = open[0] ? y.x[c] * kChunkLog2e : -INFINITY,
                      b = open[1] ? y.x[4 + c] * kChunkLog2e : -INFINITY, most = fmaxf(a, b), old = top[c];
          top[c] = most > old + 8.f ? most : old;
          const float reference = top[c] == -INFINITY ? 0.f : top[c];
          sum[c] =
              fmaf(sum[c], ptx::exp2(old - reference), ptx::exp2(a - reference) + ptx::exp2(b - reference));
        }
      } else {
        float lse[2][4];
        if constexpr (OfKeys) {
          take4(lse[0], record[0] + kRecordLse), take4(lse[1], record[1] + kRecordLse);
        } else {
          take4(lse[0], own + kRecordLse);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const float w = ptx::exp2(fmaf(y.x[4 * n + c], kChunkLog2e, -lse[OfKeys ? n : 0][c]));
            y.x[4 * n + c] = open[n] ? w : 0.f;
          }
        if constexpr (Pass == TilePass::weights) {
          write(scores, mixed<false>(y, own + kRecordMix, after));
        } else {
          forget();
          const Pairs dw = read(dweights);
          Pairs d = mixed<true>(dw, own + kRecordMix, after);
          if constexpr (Pass == TilePass::delta) {
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
              for (int c = 0; c < 4; ++c)
                sum[c] = fmaf(y.x[4 * n + c], open[n] ? d.x[4 * n + c] : 0.f, sum[c]);
          } else {
            float delta[2][4];
            if constexpr (OfKeys) {
              take4(delta[0], record[0] + kRecordDelta), take4(delta[1], record[1] + kRecordDelta);
            } else {
              take4(delta[0], own + kRecordDelta);
            }
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
              for (int c = 0; c < 4; ++c)
                d.x[4 * n + c] = open[n] ? y.x[4 * n + c] * (d.x[4 * n + c] - delta[OfKeys ? n : 0][c]) : 0.f;
            add_products<T>(dafter, y, dw);
            // A word of `dweights` now takes the weight, one of `scores` its own gradient: what has been used
            // is read again rather than kept in registers.
            if constexpr (kWhole) {
              const Pairs w = mixed<false>(y, own + kRecordMix, after);
              write(dweights, w);
              forget();
            }
            Pairs s = read(scores);
            if constexpr (std::is_same_v<T, f16>)
#pragma unroll
              for (int n = 0; n < 8; ++n) s.x[n] = fminf(fmaxf(s.x[n], -65504.f), 65504.f);
            add_products<T>(dbefore, s, d);
            if constexpr (kWhole) {
              forget();
              Pairs ds = mixed<true>(d, own, before);
#pragma unroll
              for (int n = 0; n < 8; ++n) ds.x[n] *= scales[head_of(n % 4)];
              write(scores, ds);
            }
          }
        }
      }
    }
  };

  /// This warp's head of a plane, all in one piece.
  const auto write_plane = [&](const float* plane, void* to, int key0) {
    if (warp >= heads) return;
    auto* at_head = static_cast<T*>(to) + blocked_at(slot, heads, warp, row0, key0, m.group.pitch);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int piece = 32 * n + lane, row = piece / 32 * 8 + piece % 8, eight = piece / 8 % 4;
      const auto* from = reinterpret_cast<const uint4*>(plane + warp * kHeadWords + word_at(row, eight));
      const uint4 a = from[0], b = from[1];
      reinterpret_cast<uint4*>(at_head)[piece] =
          uint4{__byte_perm(a.x, a.y, 0x5410), __byte_perm(a.z, a.w, 0x5410), __byte_perm(b.x, b.y, 0x5410),
                __byte_perm(b.z, b.w, 0x5410)};
    }
  };
  const auto write_planes = [&](int key0) {
    write_plane(kGradients ? dweights : scores, m.weights, key0);
    if constexpr (kGradients) write_plane(scores, m.dscores, key0);
    __syncwarp();
  };
  const auto put = [&](float* plane, const float(&s)[1][4][4], float factor) {
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        *reinterpret_cast<float2*>(plane + warp * kHeadWords + word_at(g + 8 * r, n) + 2 * t) =
            make_float2(s[0][n][2 * r] * factor, s[0][n][2 * r + 1] * factor);
  };

#pragma unroll 1
  for (int token0 = first; token0 < last; token0 += kTileKeys) {
    const std::uint32_t left = side + static_cast<std::uint32_t>(warp * kOwn * 128);
    const bool more = token0 + kTileKeys < last;
    float s[1][4][4];
    multiply<T>(s, left, right);
    if constexpr (kBackward)
      fetch(right, right1, from1, token0);
    else if (more)
      fetch(right, right0, from0, token0 + kTileKeys);
    __syncthreads();  // everyone has mixed the pairs before
    if constexpr (kWhole)
      if (token0 > first) write_planes(token0 - kTileKeys);
    if (more) copy_others(token0 + kTileKeys);
    put(scores, s, own_scale);
    if constexpr (kBackward) {
      multiply<T>(s, left + kOwnSideBytes, right);
      if (more) fetch(right, right0, from0, token0 + kTileKeys);
      put(dweights, s, 1.f);
    }
    if (more)
      ptx::wait_copies<1>();
    else
      ptx::wait_copies<0>();
    __syncthreads();
    mix(token0);
  }
  if constexpr (kWhole) {
    __syncthreads();
    write_planes((last - 1) / kTileKeys * kTileKeys);
  }

  if constexpr (Pass == TilePass::lse || Pass == TilePass::delta) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float reference = top[c], x = sum[c];
#pragma unroll
      for (int n = 4; n <= 16; n *= 2) {
        if constexpr (Pass == TilePass::lse) {
          const float other = __shfl_xor_sync(~0u, reference, n), x2 = __shfl_xor_sync(~0u, x, n),
                      both = fmaxf(reference, other), from = both == -INFINITY ? 0.f : both;
          x = x * ptx::exp2(reference - from) + x2 * ptx::exp2(other - from), reference = both;
        } else {
          x += __shfl_xor_sync(~0u, x, n);
        }
      }
      if (g == 0 && head_of(c) < heads)
        p.tiles.parts[((part * static_cast<Index>(m.group.count) + slot) * heads + head_of(c)) * kChunkRows +
                      row0 + warp] = make_float2(reference, x);
    }
  }
  if constexpr (kGradients) {
    if (!OfKeys && !p.sums) return;
    __syncthreads();
    float* all = scores + warp * 2 * kTileHeads * kTileHeads;  // the two products of this warp's token
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int n = (g + 8 * (e >> 1)) * kTileHeads + 8 * j + 2 * t + (e & 1);
        all[n] = dbefore[j][e], all[kTileHeads * kTileHeads + n] = dafter[j][e];
      }
    __syncwarp();
    if (!own_there) return;
    for (int n = lane; n < kDynamicSums; n += 32) {
      const int stage = n / kRecordMix, r = n % kRecordMix / 16, h = n % 16;
      const float* product = all + stage * kTileHeads * kTileHeads;
      float x = 0.f;
      if (r == 2 * kDynamicRank) {
        x = product[h * kTileHeads + h];
      } else {
        const bool is_first = r < kDynamicRank;
        const float* w = own_records + warp * kRecord + stage * kRecordMix +
                         (is_first ? r + kDynamicRank : r - kDynamicRank) * 16;
        for (int o = 0; o < kTileHeads; ++o)
          x = fmaf(w[record_place(o)], product[is_first ? h * kTileHeads + o : o * kTileHeads + h], x);
      }
      if constexpr (OfKeys)
        put_coefficient(p.dmix_k, m, stage, r, h, at.tensor_batch, own_row + warp, x);
      else
        p.sums[((slot * kChunkRows + row0 + warp) * p.tiles.part_count + part) * kDynamicSums + n] = x;
    }
  }
}

template <class T, TilePass Pass, bool OfKeys = false>
Status start(const DynamicTiles& p, dim3 grid, int device, cudaStream_t stream) {
  static bool allowed[64] = {};
  constexpr const char* kName = "cuda/mix_dynamic";
  constexpr int kShared = shared_of(is_backward(Pass));
  const Status status = allow_shared(kName, mix_dynamic<T, Pass, OfKeys>, kShared, allowed, device);
  return status.ok() ? launch({kName, grid, kTileThreads, kShared, stream}, mix_dynamic<T, Pass, OfKeys>, p)
                     : status;
}
dim3 grid_of(const DynamicTiles& p, int keys) {
  return dim3(static_cast<unsigned>(kChunkRows / kOwn * p.tiles.rows.group.count),
              static_cast<unsigned>(ceil_div(max_of(keys, 1), kDynamicPart)));
}

}  // namespace

template <class T>
Status mixed_dynamic(const DynamicTiles& p, int keys, int device, cudaStream_t stream) {
  Status status = start<T, TilePass::lse>(p, grid_of(p, keys), device, stream);
  if (status.ok()) status = join_lse(p.tiles, stream);
  return status.ok() ? start<T, TilePass::weights>(p, grid_of(p, keys), device, stream) : status;
}
template <class T>
Status mixed_dynamic_backward(const DynamicTiles& p, int keys, int device, cudaStream_t stream) {
  Status status = start<T, TilePass::delta>(p, grid_of(p, keys), device, stream);
  if (status.ok()) status = join_delta(p.tiles, stream);
  if (status.ok()) status = start<T, TilePass::gradients>(p, grid_of(p, keys), device, stream);
  return status.ok() && p.sums ? join_query_sums(p, stream) : status;
}
template <class T>
Status mixed_dynamic_keys(const DynamicTiles& p, Index kv_tokens, Index batch, int device,
                          cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(kv_tokens, kOwn)), static_cast<unsigned>(batch));
  return kv_tokens == 0 ? Status{} : start<T, TilePass::gradients, true>(p, grid, device, stream);
}
template Status mixed_dynamic<bf16>(const DynamicTiles&, int, int, cudaStream_t);
template Status mixed_dynamic<f16>(const DynamicTiles&, int, int, cudaStream_t);
template Status mixed_dynamic_backward<bf16>(const DynamicTiles&, int, int, cudaStream_t);
template Status mixed_dynamic_backward<f16>(const DynamicTiles&, int, int, cudaStream_t);
template Status mixed_dynamic_keys<bf16>(const DynamicTiles&, Index, Index, int, cudaStream_t);
template Status mixed_dynamic_keys<f16>(const DynamicTiles&, Index, Index, int, cudaStream_t);

int mixed_dynamic_shared(bool backward) { return shared_of(backward); }

}  // namespace headwise::cuda
