// The kernels behind headwise.jax: attention and its gradients as handlers of XLA's foreign function
// interface.
#include <nanobind/nanobind.h>

#include <cmath>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "headwise/masks/mask.h"
#include "headwise/ops/attention/attention.h"
#include "headwise/ops/attention/backward.h"
#include "python/arrays/bind.h"
#include "python/arrays/contexts.h"
#include "xla/ffi/api/ffi.h"

namespace headwise::python {
namespace nb = nanobind;
/// What a compiled program says of a call beside its arrays.
struct JaxWords {
  std::string_view mask;  // as text; empty: none
  double scale;           // NaN: 1 / sqrt(head_dim)
  double softcap;         // 0: off
  std::int64_t q_start;   // kStartEnd: bottom-right
  std::int32_t threads;
};

}  // namespace headwise::python

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(headwise::python::JaxWords,
                                      xla::ffi::StructMember<std::string_view>("mask"),
                                      xla::ffi::StructMember<double>("scale"),
                                      xla::ffi::StructMember<double>("softcap"),
                                      xla::ffi::StructMember<std::int64_t>("q_start"),
                                      xla::ffi::StructMember<std::int32_t>("threads"));

namespace headwise::python {
namespace {

namespace ffi = xla::ffi;

DType dtype_of(ffi::DataType t) {
  switch (t) {
    case ffi::DataType::F32: return DType::f32;
    case ffi::DataType::BF16: return DType::bf16;
    case ffi::DataType::F16: return DType::f16;
    case ffi::DataType::F64: return DType::f64;
    default: break;
  }
  throw Error(ErrorKind::bad_dtype,
              "attention: an array is neither f32, bf16, f16 nor f64; convert it first");
}

/// The last `rank` - 1 axes as they are, everything before them as one batch: vmap adds axes in front.
AnyView view_of(ffi::AnyBuffer buffer, std::size_t rank) {
  const auto sizes = buffer.dimensions();
  if (sizes.size() < rank)
    throw Error(ErrorKind::bad_shape,
                text("attention: an array has ", sizes.size(), " axes, ", rank, " are needed"));
  const auto behind = sizes.end() - static_cast<std::ptrdiff_t>(rank - 1);
  const Index batch = std::accumulate(sizes.begin(), behind, Index{1}, std::multiplies<>());
  if (rank == 4)
    return AnyView::packed(buffer.untyped_data(), dtype_of(buffer.element_type()),
                           {batch, behind[0], behind[1], behind[2]});
  return AnyView::packed(buffer.untyped_data(), dtype_of(buffer.element_type()),
                         {batch, behind[0], behind[1]});
}

AnyView argument(const ffi::RemainingArgs& in, std::size_t n, std::size_t rank) {
  return view_of(in.get<ffi::AnyBuffer>(n).value(), rank);
}
AnyView result(const ffi::RemainingRets& out, std::size_t n, std::size_t rank) {
  return view_of(*out.get<ffi::AnyBuffer>(n).value(), rank);
}

/// One context for all of XLA's threads; calls take turns, and each has all its threads.
template <class F>
ffi::Error in_turn(const JaxWords& words, F&& run) {
  static std::mutex turn;
  static auto* context = new CallContext(ContextOptions{});
  try {
    const std::lock_guard hold(turn);
    context->set_threads(words.threads);
    run(context->engine().context);
  } catch (const std::exception& e) {
    return {ffi::ErrorCode::kInvalidArgument, e.what()};
  }
  return ffi::Error::Success();
}

/// The forward with its words, which live as long as this.
struct Call {
  Mask mask;
  double scale;
  Index q_start;
  AttentionArgs args;

  Call(const JaxWords& w, const ffi::RemainingArgs& in)
      : mask(w.mask.empty() ? Mask::all() : parse_mask(w.mask)), scale(w.scale), q_start(w.q_start) {
    args.q = argument(in, 0, 4), args.k = argument(in, 1, 4), args.v = argument(in, 2, 4);
    if (!w.mask.empty()) args.mask = mask.set();
    if (!std::isnan(scale)) args.inputs.scale = AnyView::packed(&scale, DType::f64, {1});
    args.inputs.softcap = w.softcap;
    if (q_start != 0) args.q_start = AnyView::packed(&q_start, DType::i64, {1});
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

/// q, k and v give out and lse.
ffi::Error forward(ffi::RemainingArgs in, ffi::RemainingRets out, JaxWords words) {
  return in_turn(words, [&](Context& ctx) {
    Call call(words, in);
    call.args.out = result(out, 0, 4), call.args.lse = result(out, 1, 3);
    attention(call.args, ctx);
  });
}

/// q, k, v, out, lse and dout give dq, dk and dv.
ffi::Error backward(ffi::RemainingArgs in, ffi::RemainingRets out, JaxWords words) {
  return in_turn(words, [&](Context& ctx) {
    Call call(words, in);
    call.args.out = argument(in, 3, 4), call.args.lse = argument(in, 4, 3);
    BackwardArgs args;
    args.forward = call.args, args.dout = argument(in, 5, 4);
    args.dq = result(out, 0, 4), args.dk = result(out, 1, 4), args.dv = result(out, 2, 4);
    attention_backward(args, ctx);
  });
}

XLA_FFI_DEFINE_HANDLER(kForward, forward, ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs<JaxWords>());
XLA_FFI_DEFINE_HANDLER(kBackward, backward,
                       ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs<JaxWords>());

}  // namespace

void bind_jax(nb::module_& m) {
  m.def("_jax_targets", [] {
    nb::dict found;
    found["headwise_attention"] = nb::capsule(reinterpret_cast<void*>(kForward));
    found["headwise_attention_backward"] = nb::capsule(reinterpret_cast<void*>(kBackward));
    return found;
  });
}

}  // namespace headwise::python
