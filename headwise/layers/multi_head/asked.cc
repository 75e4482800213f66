// MultiHead::asked: gates and score biases of a call, as the attention that runs reads them.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/layers/multi_head/multi_head.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "multi_head";

/// Row `block` of a tensor [blocks ...]; one that has no such row is refused.
AnyView block_of(const char* name, const AnyView& v, int rank, Index block) {
  if (!v.given()) return {};
  require(v.rank == rank && block < v.size[0], ErrorKind::bad_shape, kOp, name, " is ", v, " but block ",
          block, " runs; give [blocks ", rank == 3 ? "rows heads]" : "heads]");
  AnyView row = v;
  row.rank = rank - 1;
  row.data = static_cast<std::byte*>(v.data) + block * v.step[0] * size_of(v.dtype);
  for (int axis = 0; axis + 1 < rank; ++axis)
    row.size[axis] = v.size[axis + 1], row.step[axis] = v.step[axis + 1];
  return row;
}

/// A row of gates made for the layer with most heads, as one of `heads` reads it. Other widths stay, and are
/// refused by their reader.
AnyView narrowed(AnyView gates, Index most, Index heads) {
  if (gates.given() && gates.size[gates.rank - 1] == most) gates.size[gates.rank - 1] = min_of(most, heads);
  return gates;
}

}  // namespace

MultiHeadArgs MultiHead::asked(const Call& call) const {
  MultiHeadArgs a{.edit = call.edit_heads};
  if (call.running != call.asked) return a;
  if (call.block == call.bias_block) a.bias = call.score_bias, a.dbias = call.dscore_bias;
  a.gates = narrowed(block_of("head_gates", call.head_gates, 2, call.block), call.gate_heads, head_count());
  a.dgates =
      narrowed(block_of("dhead_gates", call.dhead_gates, 3, call.block), call.gate_heads, head_count());
  return a;
}

}  // namespace headwise
