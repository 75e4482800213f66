// DecoderWeights: a decoder's weights in memory, in the formats of their file.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <vector>

#include "headwise/decoder/files/source.h"
#include "headwise/decoder/forward/cut.h"
#include "headwise/ops/projection/stored_matrix.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Weight and bias of a norm; RMS norms have no bias.
struct NormWeights {
  Tensor weight, bias;
};
/// Matrices whose outputs stand side by side, as many as there are formats, and their bias, where there is
/// one.
struct ProductWeights {
  std::vector<StoredMatrix> matrices;
  Tensor bias;
};

struct DecoderLayer {
  NormWeights norm_1, norm_2, behind_1, behind_2;
  Tensor q_norm, k_norm;
  ProductWeights qkv, out, gate, up, down;  // qkv: the rows of q, then k, then v
  NormWeights cross_norm;                   // of cross-attention, where the model has it
  ProductWeights cross_q, cross_kv, cross_out;
  template <class F>
  void each_norm(F f) const {
    for (const NormWeights* n : {&norm_1, &norm_2, &behind_1, &behind_2, &cross_norm}) f(*n);
  }
  template <class F>
  void each_product(F f) const {
    for (const ProductWeights* p : {&qkv, &out, &gate, &up, &down, &cross_q, &cross_kv, &cross_out}) f(*p);
  }
};

struct DecoderWeights {
  /// Everything is checked against the file before anything is allocated. dtype: f32, bf16 or f16, which
  /// matrices are rounded to; none: they stay as the file has them. Norms, biases and learned positions are
  /// f32. Of a cut model a rank reads its rows alone; the embedding and the head are whole.
  DecoderWeights(DecoderSource& source, std::optional<DType> dtype, const DecoderCut& cut = {});
  std::vector<DecoderLayer> layers;
  StoredMatrix embed;  // [vocabulary model_dim]
  Tensor positions;    // [positions model_dim]
  NormWeights norm;
  StoredMatrix head;  // empty: the embedding
  const StoredMatrix& logits() const { return head.out() > 0 ? head : embed; }
  std::uint64_t fingerprint() const;
  /// Whether rows meet some matrix in parts.
  bool in_parts() const;
  /// Of all of it.
  Index bytes = 0;
};

}  // namespace headwise
#pragma GCC visibility pop
