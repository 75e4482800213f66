// The kernels of products, and what they hand each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/device/stream_state.h"
#include "headwise/kernels/cuda/gemm/product.h"
#include "headwise/kernels/cuda/gemm/tiles.h"

namespace headwise::cuda::gemm {

/// 16-bit numbers by mma.sync, any steps; everything is checked. The class of `wgmma_product` too.
Status mma_product(const Product& p, int device, cudaStream_t stream);
template <class T>
Status start_mma(const Product& p, int device, cudaStream_t stream);

/// The same by wgmma in tiles of N columns; a and b lie in lines. Turned lines only where has_turned() says
/// so, and never those of a alone.
template <class T, int N>
Status start_width(const Product& p, const Lines& lines, int device, cudaStream_t stream);
/// The same in tiles of 64 x N, one a block; lines of a along k, those of b too unless has_turned_block().
template <class T, int N>
Status start_block(const Product& p, const Lines& lines, int device, cudaStream_t stream);
/// The same for few rows and small products, by tensor maps and mma.sync; lines along k, no accumulation.
template <class T>
Status stream_product(const Product& p, int device, cudaStream_t stream);
template <class T>
Status stream_in_tiles(const Product& p, StreamTile tile, int device, cudaStream_t stream);

/// Which instances there are: what layers ask for, so that the library compiles in minutes.
template <class T>
constexpr bool has_turned(int columns) {
  return columns == 128 || (columns > 128 && dtype_of<T> == DType::bf16);
}

template <class T>
constexpr bool has_turned_block(int columns) {
  return columns == 128 && dtype_of<T> == DType::bf16;
}

/// A box of line_map() on its way to L2.
__device__ __forceinline__ void prefetch_tile(const CUtensorMap& map, int line, int panel, int at) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1,%2,%3,%4,%4}];" ::"l"(&map), "r"(at),
               "r"(line), "r"(panel), "r"(0)
               : "memory");
}
/// A factor or the result as lines [lines length], in boxes of `box` lines x 64, or of so many panels of 64
/// where the length is a multiple of 64: a copy takes some 120 cycles whatever it brings (H200).
template <class T>
MapSpec line_map(const Operand& x, Index lines, Index length, Index step, int box, int panels = 0) {
  return {.data = x.data,
          .type = Number<T>::kMapType,
          .batch = 1,
          .rows = lines,
          .heads = 1,
          .head_dim = length,
          .step = {0, step, 0},
          .box_rows = box,
          .box_panels = panels};
}

}  // namespace headwise::cuda::gemm
