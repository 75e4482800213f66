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
/// The same for few rows and small products, by tensor maps and mma.sync; lines along k, no accumulation.
template <class T>
Status stream_product(const Product& p, int device, cudaStream_t stream);

/// Which instances there are: what layers ask for, so that the library compiles in minutes.
template <class T>
constexpr bool has_turned(int columns) {
  return columns == 128 || (columns > 128 && dtype_of<T> == DType::bf16);
}

/// A factor or the result as lines [lines length], in boxes of `box` lines x 64.
template <class T>
MapSpec line_map(const Operand& x, Index lines, Index length, Index step, int box) {
  return {.data = x.data,
          .type = Number<T>::kMapType,
          .batch = 1,
          .rows = lines,
          .heads = 1,
          .head_dim = length,
          .step = {0, step, 0},
          .box_rows = box};
}

}  // namespace headwise::cuda::gemm
