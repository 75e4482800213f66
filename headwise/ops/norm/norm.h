// Norms of head vectors along the last axis: RMS and L2, as used on q and k before attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/view.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// What the weight is added to before it multiplies: plain (0), or 1 for weights stored as a difference from
/// one (Gemma).
enum class WeightForm { plain, one_plus };

struct RmsNormOptions {
  double eps = 1e-6;
  WeightForm weight_form = WeightForm::plain;
};
struct L2NormOptions {
  double eps = 1e-6;
};

/// out = x / sqrt(mean(x^2) + eps) * weight, for every vector along the last axis of x (rank 1 to 4, any
/// steps). weight: empty (1), [dim], or [heads dim] where heads is the axis before the last; any float type.
/// out is x itself or apart from it. Sums in double in one order fixed by dim alone; a row's bits depend on
/// nothing but the row and its weight.
void rms_norm(const InputView& x, const InputView& weight, const AnyView& out, const RmsNormOptions& options,
              Context& ctx);

/// out = x / max(|x|, eps) * scale. scale: as weight above, and dim or heads may be 1 to repeat: [1], [heads
/// 1].
void l2_norm(const InputView& x, const InputView& scale, const AnyView& out, const L2NormOptions& options,
             Context& ctx);

/// What the gradient of a norm reads and writes. x, weight: the forward's. dout: like x. dx: like x, dout
/// itself or apart from it. dweight: the sizes of weight, any float type. Empty gradients are not wanted.
/// room: on a CUDA device, which keeps no memory of its own, f32 [rows] to work in.
struct NormBackwardArgs {
  InputView x = {}, weight = {}, dout = {};
  AnyView dx = {}, dweight = {}, room = {};
};

/// With r = sqrt(mean(x^2) + eps) and g = dout * weight: dx = (g - x (g.x) / (dim r^2)) / r, dweight = sum
/// over rows of dout x / r. In double, rounded once. dx's bits depend on nothing but the row and its weight;
/// dweight is summed in steps of 256 tokens counted from token 0, whatever the threads.
void rms_norm_backward(const NormBackwardArgs& args, const RmsNormOptions& options, Context& ctx);

/// With n = max(|x|, eps) and g = dout * scale: dx = (g - x (g.x) / n^2) / n, and g / n where eps is the
/// larger of the two. dweight, the gradient of scale, is the sum over rows of dout x / n.
void l2_norm_backward(const NormBackwardArgs& args, const L2NormOptions& options, Context& ctx);

}  // namespace headwise
#pragma GCC visibility pop
