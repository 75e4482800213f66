// Do mma.sync and wgmma give the same bits? Tiles of scores and of outputs by each, and how many sums differ.
// Prints one line a case.
#include <cstdio>
#include <random>
#include <vector>

#include "headwise/kernels/cuda/device/wgmma.inc"
#include "headwise/kernels/cuda/mma/tile.cuh"

namespace headwise::cuda {

constexpr int kTokens = 64, kTiles = 20;  // queries and keys of a tile; tiles of keys that add to one output

/// Four warps: `sums` [2 64 64] of q k^T, then [2 64 Dim] of w v over all tiles, by wgmma and by mma.sync.
template <class T, int Dim>
__global__ void products(const T* q, const T* k, const T* v, float* scores, float* outputs) {
  extern __shared__ std::uint8_t raw[];
  const std::uint32_t base = (ptx::shared_address(raw) + kTileAlign - 1) & ~std::uint32_t{kTileAlign - 1};
  const std::uint32_t tile_bytes = Dim / 64 * panel_bytes(64);
  const std::uint32_t to[3] = {base, base + tile_bytes, base + 2 * tile_bytes};
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const auto row_of = [&](int i) { return 16 * warp + lane / 4 + 8 * ((i >> 1) & 1); };
  const auto column_of = [&](int i) { return 8 * (i / 4) + 2 * (lane % 4) + (i & 1); };
  const auto load = [&](std::uint32_t at, const T* from) {
    for (int i = thread; i < 64 * Dim / 8; i += 128) {
      const int4 x = reinterpret_cast<const int4*>(from)[i];
      ptx::store_shared(at + chunk_offset(64, i / (Dim / 8), i % (Dim / 8)), x.x, x.y, x.z, x.w);
    }
  };
  float o[Dim / 2] = {}, o_warp[Dim / 8][4] = {};
  load(to[0], q);
  for (int tile = 0; tile < kTiles; ++tile) {
    __syncthreads();
    load(to[1], k + tile * 64 * Dim), load(to[2], v + tile * 64 * Dim);
    ptx::fence_shared_for_async();
    __syncthreads();
    float s[32], s_warp[8][4] = {};
    ptx::pin(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < Dim / 16; ++i)
      Wgmma<64, T>::both_shared(s, advanced(rows_descriptor(to[0]), k_step(64, i)),
                                advanced(rows_descriptor(to[1]), k_step(64, i)), i != 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    using Tile = mma::MmaTile<T>;
    Tile::scores(s_warp, Tile(to[0], 64, Dim), Tile(to[1], 64, Dim), 16 * warp, Dim);
    float w[8][4];
    std::uint32_t weights[16];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int row = row_of(i), column = column_of(i);
      const int at = (tile * 64 + row) * 64 + column;
      scores[at] = s[i], scores[kTiles * 64 * 64 + at] = s_warp[i / 4][i % 4];
      w[i / 4][i % 4] = exp2f(s_warp[i / 4][i % 4] * 0.125f);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) weights[i] = Number<T>::pack(w[i / 2][i % 2 * 2], w[i / 2][i % 2 * 2 + 1]);
    ptx::pin(o);
    ptx::pin(weights);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      Wgmma<Dim, T>::left_registers(o, weights + 4 * i,
                                    advanced(columns_descriptor(to[2], 64), kRowStep * i));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    Tile::template values<Dim>(o_warp, w, Tile(to[2], 64, Dim));
  }
#pragma unroll
  for (int i = 0; i < Dim / 2; ++i) {
    const int row = row_of(i), column = column_of(i);
    outputs[row * Dim + column] = o[i], outputs[(64 + row) * Dim + column] = o_warp[i / 4][i % 4];
  }
}

bool differing(const char* what, const char* dtype, int dim, const float* device, int count) {
  std::vector<float> x(static_cast<std::size_t>(2 * count));
  cudaMemcpy(x.data(), device, x.size() * sizeof(float), cudaMemcpyDeviceToHost);
  int differ = 0;
  double most = 0, sum = 0;
  for (int i = 0; i < count; ++i) {
    const double gap = std::fabs(x[static_cast<std::size_t>(i)] - x[static_cast<std::size_t>(count + i)]);
    differ += gap != 0, most = std::fmax(most, gap), sum += std::fabs(x[static_cast<std::size_t>(i)]);
  }
  std::printf("%s %s d%d: %d of %d differ, by %.1e of a mean size of %.1e\n", what, dtype, dim, differ, count,
              most, sum / count);
  return sum > 0;  // tiles of zeros would agree
}

template <class T, int Dim>
bool run(const char* dtype) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  T* x[3];
  for (int n = 0; n < 3; ++n) {
    std::vector<T> host(static_cast<std::size_t>((n ? kTiles : 1) * kTokens * Dim));
    for (T& number : host) number = T(normal(random));
    cudaMalloc(&x[n], host.size() * sizeof(T));
    cudaMemcpy(x[n], host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
  }
  float *scores, *outputs;
  cudaMalloc(&scores, 2 * kTiles * 64 * 64 * sizeof(float));
  cudaMalloc(&outputs, 2 * 64 * Dim * sizeof(float));
  constexpr int kShared = 3 * (Dim / 64) * 64 * kPanelRowBytes + kTileAlign;
  cudaFuncSetAttribute(products<T, Dim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  products<T, Dim><<<1, 128, kShared>>>(x[0], x[1], x[2], scores, outputs);
  const bool ran = cudaDeviceSynchronize() == cudaSuccess;
  return ran && differing("scores", dtype, Dim, scores, kTiles * 64 * 64) &&
         differing("outputs", dtype, Dim, outputs, 64 * Dim);
}

}  // namespace headwise::cuda

int main() {
  using namespace headwise;
  const bool ok = cuda::run<bf16, 64>("bf16") && cuda::run<bf16, 128>("bf16") && cuda::run<f16, 64>("f16") &&
                  cuda::run<f16, 128>("f16");
  return ok ? 0 : 1;
}
