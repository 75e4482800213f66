// Cross-head mixing over the pairs of a chunk: parameters and starts of both directions.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/chunk/chunks.h"

namespace headwise::cuda::mixed {

inline constexpr int kMostMixHeads = 32, kMostMixRank = 4;

/// One mix: y_h = sum_m M[m h] x_m.
struct MixStage {
  Mix kind;
  int from, to, row0;  // row0: its first row in mix_q and mix_k
  const float* given;  // [from to], or null
};

/// Everything a pair meets between q.k and the weights of v. Planes have one pitch; [slot heads 64 pitch].
struct MixPairs {
  RunInputs in;
  chunk::ChunkGroup group;
  MixStage before, after;
  int rank, heads;          // heads between the mixes
  const float* of_queries;  // [rows of q, mix_rows, heads], or null
  const float* of_keys;     // [mix_rows, heads, rows of k], or null
  Index q_rows, k_rows;     // of a tensor's batch
  Index key_pitch, mix_rows;
  DType dtype;
  int score_planes;                 // planes of `scores`: the larger of q's heads and those between
  float* scores;                    // scale q.k; forward: becomes the logits
  float* lse;                       // [slot heads 64]
  void* weights;                    // [slot v_heads 64 pitch]: what multiplies v
  bool probabilities_given, gated;  // weights come of `probabilities` instead of the logits; and of the gate
  // backward
  float* probabilities;   // after the normalizer
  float* dweights;        // [slot v_heads ..]: dout . v, then times gate and dropout
  float* dprobabilities;  // gradient of those, then of the logits
  float* delta;           // [slot heads 64]
  float* dsink_rows;      // [slot heads 64], or null
  void* dscores;          // [slot q_heads ..]: gradient of scale q.k, times scale
};

/// Logits of all heads, then lse of each row, then the weights of v.
Status mix_logits(const MixPairs& p, cudaStream_t stream);
Status mix_lse(const MixPairs& p, cudaStream_t stream);
Status mix_weights(const MixPairs& p, cudaStream_t stream);
/// Probabilities and their gradients; delta of each row; the gradient of the scores.
Status mix_probabilities(const MixPairs& p, cudaStream_t stream);
Status mix_delta(const MixPairs& p, cudaStream_t stream);
Status mix_scores_gradient(const MixPairs& p, cudaStream_t stream);

/// Sums over pairs of x_m dy_h: one row's for the query's coefficients, all for the given matrix.
struct MixGradient {
  chunk::ChunkGroup group;
  MixStage stage;
  int rank, heads, mix_rows;
  const float *x, *dy;
  int x_planes, dy_planes;
  double softcap;   // x is capped first; 0: it is not
  double* given;    // [from to], carried from group to group, or null
  float* products;  // [slot 64 from to] of `given`
  const float* of_queries;
  Index q_rows, k_rows, key_pitch;
  const float* of_keys;
  void* dmix_q;
  DType dmix_q_dtype;
  Index dmix_q_step[4];
  float* key_sums;  // [mix_rows heads rows of k], carried from group to group, or null
  int first_sequence, sequences, kv_tokens;
  void* dmix_k;
  DType dmix_k_dtype;
  Index dmix_k_step[4];
};
Status mix_gradient(const MixGradient& p, cudaStream_t stream);

/// Copies of the coefficients in f32, as the kernels above read them.
/// Matrices [a b], those that are given; `sums` of both directions' gradients begin at 0.
Status begin_matrices(const AnyView& before, float* to_before, const AnyView& after, float* to_after,
                      double* sums, Index count, cudaStream_t stream);
Status copy_coefficients(const AnyView& from, float* to, cudaStream_t stream);  // [batch rows mix heads]
Status turn_coefficients(const AnyView& from, float* to, Index pitch, cudaStream_t stream);
Status write_matrices(const double* before, const AnyView& to_before, const double* after,
                      const AnyView& to_after, cudaStream_t stream);

}  // namespace headwise::cuda::mixed
