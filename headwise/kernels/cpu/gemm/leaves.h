// Products whose summed axis is cut into leaves: each leaf one chain, leaves added as a tree, in one pass.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>

#include "headwise/base/threads.h"
#include "headwise/spec/gemm.h"

namespace headwise::cpu::gemm {

/// a [m k] times b [k / repeats n]: so many consecutive leaves of a meet one piece of b.
struct LeafTerm {
  MatrixView a = {}, b = {};
  Index k = 0, repeats = 1;
};

/// out [m n] = node(0, leaves) + bias + residual; node(i, j) = node(i, middle) + node(middle, j). Leaf i is
/// the sum of the terms, one after the other; a term gives a chain over its i-th part of k, from 0. leaves:
/// 1, 2, 4 or 8, which divide every k / repeats.
struct LeafGemm {
  Index m = 0, n = 0, leaves = 1;
  std::span<const LeafTerm> terms;
  MatrixView out = {}, residual = {};
  InputView bias = {};

  /// One leaf of one term, as a problem of its own.
  GemmProblem part(const LeafTerm& term, bool parts) const {
    return {.m = m,
            .n = n,
            .k = term.k / leaves,
            .a = term.a.dtype,
            .b = term.b.dtype,
            .out = out.dtype,
            .parts = parts};
  }
};

/// Would cpu/packed multiply every part by chains of f32? The bits are then those of products by it and sums
/// of theirs.
bool takes_leaves(const LeafGemm& g, bool parts);
std::size_t leaf_workspace_bytes(const LeafGemm& g, int threads);
/// workspace: so many bytes, aligned to Arena::kAlign.
void run_leaves(const LeafGemm& g, std::span<std::byte> workspace, ThreadPool& pool) noexcept;

}  // namespace headwise::cpu::gemm
