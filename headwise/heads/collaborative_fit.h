// fit_collaborative: turns the queries and keys of a trained MHA layer into a shared space of fewer columns.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/buffer.h"
#include "headwise/heads/collaborative.h"

#pragma GCC visibility push(default)
namespace headwise {

/// A trained layer's weights, any float dtype: w_q, w_k [heads*dim model_dim], b_q [heads*dim] or empty. A
/// bias of the keys is not asked for: it adds one number to all scores of a row, which softmax drops.
struct TrainedScores {
  AnyView w_q = {}, w_k = {}, b_q = {};
  Index heads = 0;
};

struct FitOptions {
  Index shared = 0;         // columns of the shared space; 0: heads*dim, which is exact
  int steps = 200;          // at most
  double tolerance = 1e-6;  // stops where a step lowers the relative error by less
};

/// What the collaborative head reads, in f64, and how far its scores are from the trained ones.
struct CollaborativeFit {
  Collaborative::Config config;  // scale: the trained layer's own 1 / sqrt(dim), whatever `shared` is
  Tensor w_q, w_k;               // [shared model_dim]
  Tensor mixing, content;        // [heads shared]; [heads model_dim], of b_q
  double error = 0;              // |T - fit| / |T| of all heads' W_Q,h^T W_K,h, in the Frobenius norm
  int steps = 0;                 // made
};

/// With shared = heads*dim a copy with blocks of ones. Below, the rank-`shared` decomposition of the tensor T
/// [model_dim heads model_dim] by alternating least squares; T itself is never formed: every step works on
/// the two factors of each head. Starts at the strongest terms, so the same weights give the same fit.
CollaborativeFit fit_collaborative(const TrainedScores& trained, const FitOptions& options = {});

}  // namespace headwise
#pragma GCC visibility pop
