// Rows cut over a context team: rows of the others, and gradients over all ranks' rows in one rank's bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/layers/basic/module.h"
#include "headwise/ops/projection/backward.h"

namespace headwise {

/// Rows [begin, begin + size) of a matrix.
inline AnyView part_of_rows(const AnyView& v, const Slice& part) {
  if (!v.given()) return {};
  AnyView r = v;
  r.size[0] = part.size;
  r.data = static_cast<std::byte*>(v.data) + part.begin * v.step[0] * size_of(v.dtype);
  return r;
}

/// The rows of all ranks, in memory of the call, where its rows are cut; else `own`.
AnyView rows_of_team(const AnyView& own, Call& call, std::string_view what);

/// dweight += dy^T x and dbias += the column sums of dy, over the rows of all ranks. A rank makes the rows of
/// dweight that slice_of gives it, and has the others from theirs. dy may be [rows parts columns].
void parameter_gradients(const ProjectionGrads& grads, Call& call);

}  // namespace headwise
