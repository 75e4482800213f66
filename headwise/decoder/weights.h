// DecoderWeights: a decoder's weights in memory, packed once for its products.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/decoder/source.h"
#include "headwise/ops/projection/projection.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Weight and bias of a norm; RMS norms have no bias.
struct NormWeights {
  Tensor weight, bias;
};
/// A packed matrix and its bias, where it has one.
struct ProductWeights {
  PackedMatrix matrix;
  Tensor bias;
};

struct DecoderLayer {
  NormWeights norm_1, norm_2, behind_1, behind_2;
  Tensor q_norm, k_norm;
  ProductWeights qkv, out, gate, up, down;  // qkv: the rows of q, then k, then v
};

struct DecoderWeights {
  /// Everything is checked against the file before anything is allocated. dtype: f32, bf16 or f16; norms,
  /// biases and the embedding stay f32.
  DecoderWeights(DecoderSource& source, DType dtype, Context& ctx);
  std::vector<DecoderLayer> layers;
  Tensor embed, positions;  // [vocabulary model_dim], [positions model_dim]
  NormWeights norm;
  ProductWeights head;
  /// Of all of it.
  Index bytes = 0;
};

}  // namespace headwise
#pragma GCC visibility pop
