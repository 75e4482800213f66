// Rotary positions and norms in the C interface, with their gradients.
#include "headwise/c/guard.h"
#include "headwise/c/handles.h"
#include "headwise/ops/norm/norm.h"
#include "headwise/ops/row/rope.h"

namespace {

using namespace headwise;  // the C names live outside of it
using headwise::c::guarded;
using headwise::c::require_given;
using headwise::c::sized_copy;
using headwise::c::view_of;

double or_else(double given, double otherwise) { return given == 0 ? otherwise : given; }

RopeOptions rope_options_from(const hw_rope_options* given, const char* entry) {
  RopeOptions r;
  if (given == nullptr) return r;
  const hw_rope_options o = sized_copy(given, entry, "options");
  require(o.kind == HW_ROPE_HALF || o.kind == HW_ROPE_INTERLEAVED, ErrorKind::bad_argument, entry, "kind is ",
          o.kind, "; give HW_ROPE_HALF or HW_ROPE_INTERLEAVED");
  require(HW_ROPE_SCALING_NONE <= o.scaling && o.scaling <= HW_ROPE_SCALING_LLAMA3, ErrorKind::bad_argument,
          entry, "scaling is ", o.scaling, "; give one of HW_ROPE_SCALING_*");
  require(o.reserved == 0, ErrorKind::bad_argument, entry, "reserved is ", o.reserved, "; leave it at 0");
  r.kind = o.kind == HW_ROPE_HALF ? RopeKind::half : RopeKind::interleaved;
  r.rotary_dim = o.rotary_dim == 0 ? kWholeHead : o.rotary_dim == HW_NONE ? 0 : o.rotary_dim;
  require(r.rotary_dim >= 0 || o.rotary_dim == 0, ErrorKind::bad_argument, entry, "rotary_dim is ",
          o.rotary_dim, "; give 2 to head_dim, 0 for the whole head, or HW_NONE");
  r.base = or_else(o.base, r.base);
  r.inverse = o.inverse != 0;
  constexpr RopeScalingKind kKinds[] = {RopeScalingKind::none, RopeScalingKind::linear, RopeScalingKind::ntk,
                                        RopeScalingKind::yarn, RopeScalingKind::llama3};
  RopeScaling& s = r.scaling;
  s.kind = kKinds[o.scaling];
  s.factor = or_else(o.factor, s.factor);
  s.original_length = o.original_length;
  s.beta_fast = or_else(o.beta_fast, s.beta_fast), s.beta_slow = or_else(o.beta_slow, s.beta_slow);
  s.truncate = o.keep_fractions == 0;
  s.attention_factor = o.attention_factor;
  s.low_freq_factor = or_else(o.low_freq_factor, s.low_freq_factor);
  s.high_freq_factor = or_else(o.high_freq_factor, s.high_freq_factor);
  return r;
}

RopePositions positions_from(const hw_tensor* positions, int64_t start, const char* entry) {
  if (positions == nullptr) return start;
  require(start == 0, ErrorKind::bad_argument, entry, "positions are given and start is ", start,
          "; give one of them, the other NULL or 0");
  return view_of(positions, entry, "positions");
}

/// eps and the weight's form; `one_plus` belongs to RMS alone.
RmsNormOptions norm_options_from(const hw_norm_options* given, const char* entry, bool rms) {
  RmsNormOptions r;
  if (given == nullptr) return r;
  const hw_norm_options o = sized_copy(given, entry, "options");
  r.eps = o.eps == HW_NONE ? 0 : or_else(o.eps, r.eps);
  require(rms || o.one_plus == 0, ErrorKind::bad_argument, entry, "one_plus is ", o.one_plus,
          ", but an L2 norm has no such form; leave it at 0");
  if (o.one_plus != 0) r.weight_form = WeightForm::one_plus;
  return r;
}

NormBackwardArgs norm_args_from(const hw_norm_backward_args* given, const char* entry) {
  const hw_norm_backward_args a = sized_copy(given, entry, "args");
  require_given(a.x, entry, "args.x");
  require_given(a.dout, entry, "args.dout");
  return {.x = view_of(a.x, entry, "x"),
          .weight = view_of(a.weight, entry, "weight"),
          .dout = view_of(a.dout, entry, "dout"),
          .dx = view_of(a.dx, entry, "dx"),
          .dweight = view_of(a.dweight, entry, "dweight")};
}

}  // namespace

hw_status hw_rope(hw_context* context, const hw_rope_options* options, const hw_tensor* x,
                  const hw_tensor* positions, int64_t start, const hw_tensor* out) {
  const char* entry = "hw_rope";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    require_given(x, entry, "x");
    require_given(out, entry, "out");
    rope(view_of(x, entry, "x"), positions_from(positions, start, entry), view_of(out, entry, "out"),
         rope_options_from(options, entry), *ContextUse(context, entry));
  });
}
hw_status hw_rope_backward(hw_context* context, const hw_rope_options* options, const hw_tensor* dout,
                           const hw_tensor* positions, int64_t start, const hw_tensor* dx) {
  const char* entry = "hw_rope_backward";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    require_given(dout, entry, "dout");
    require_given(dx, entry, "dx");
    rope_backward(view_of(dout, entry, "dout"), positions_from(positions, start, entry),
                  view_of(dx, entry, "dx"), rope_options_from(options, entry), *ContextUse(context, entry));
  });
}

hw_status hw_rms_norm(hw_context* context, const hw_norm_options* options, const hw_tensor* x,
                      const hw_tensor* weight, const hw_tensor* out) {
  const char* entry = "hw_rms_norm";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    require_given(x, entry, "x");
    require_given(out, entry, "out");
    rms_norm(view_of(x, entry, "x"), view_of(weight, entry, "weight"), view_of(out, entry, "out"),
             norm_options_from(options, entry, true), *ContextUse(context, entry));
  });
}
hw_status hw_l2_norm(hw_context* context, const hw_norm_options* options, const hw_tensor* x,
                     const hw_tensor* scale, const hw_tensor* out) {
  const char* entry = "hw_l2_norm";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    require_given(x, entry, "x");
    require_given(out, entry, "out");
    l2_norm(view_of(x, entry, "x"), view_of(scale, entry, "scale"), view_of(out, entry, "out"),
            {.eps = norm_options_from(options, entry, false).eps}, *ContextUse(context, entry));
  });
}
hw_status hw_rms_norm_backward(hw_context* context, const hw_norm_options* options,
                               const hw_norm_backward_args* args) {
  const char* entry = "hw_rms_norm_backward";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    rms_norm_backward(norm_args_from(args, entry), norm_options_from(options, entry, true),
                      *ContextUse(context, entry));
  });
}
hw_status hw_l2_norm_backward(hw_context* context, const hw_norm_options* options,
                              const hw_norm_backward_args* args) {
  const char* entry = "hw_l2_norm_backward";
  return guarded(entry, [&] {
    require_given(context, entry, "context");
    l2_norm_backward(norm_args_from(args, entry), {.eps = norm_options_from(options, entry, false).eps},
                     *ContextUse(context, entry));
  });
}
