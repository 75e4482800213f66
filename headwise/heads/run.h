// HeadRun: prepare, attention and finish of one head between its projections and W_O, and their backward.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/heads/any_head.h"
#include "headwise/ops/attention/plan_shelf.h"

#pragma GCC visibility push(default)
namespace headwise {

/// One forward and its backward; made for each step, as cheap as its views. Order:
///   HeadRun r(head, sizes, keep);           // sizes, dtype, terms the caller brings
///   r.call.x, .x_kv, .q, .k, .v = ...; r.call.run.forward.mask, .q_offsets, .inputs = ...
///   r.book(arena);                          // the same call measures or hands out
///   r.forward(ctx);                         // r.call.y
///   r.call.dy, .dq, .dk, .dv, .dx, .dx_kv = ...;
///   r.book_backward(arena); r.backward(ctx);
/// While an arena measures, tensors may still be missing; before forward and backward they are given.
class HeadRun {
 public:
  /// sizes: dtype, batch, tokens, ragged and totals; heads.terms as the caller's inputs have them. keep: a
  /// backward follows.
  HeadRun(const AnyHead& head, const AttentionProblem& sizes, bool keep);

  HeadCall call;
  /// Memory of the forward; what it takes must live until backward when one follows.
  void book(Arena& arena);
  /// Plans come from the shelf where there is one.
  void forward(Context& ctx, PlanShelf* shelf = nullptr);
  /// Memory of the backward alone. Gradients of parameters are asked where they have them.
  void book_backward(Arena& arena);
  /// Reads dy; writes dq, dk, dv; adds to dx, dx_kv and the gradients of the head's parameters.
  void backward(Context& ctx, PlanShelf* shelf = nullptr);

 private:
  AnyHead head_;
  bool keep_;
  HeadWork work_[AnyHead::kMost];
  /// What each head's finish reads and gives; entry 0 is attention's out.
  AnyView rows_[AnyHead::kMost + 1], d_rows_[AnyHead::kMost + 1];
  bool finishes_[AnyHead::kMost] = {};  // a head whose book took a y
  HeadGrads learned_;
};

}  // namespace headwise
#pragma GCC visibility pop
