#include "headwise/ops/keys/quantize_kv.h"

#include <cmath>
#include <limits>

#include "headwise/base/context.h"
#include "headwise/ops/checks/in_out.h"
#include "headwise/ops/checks/view.h"

namespace headwise {
namespace {

constexpr const char* kOp = "quantize_kv";
constexpr Index kTaskElements = 1 << 14;

/// The largest number of each type, and the nearest one to x.
template <class Out>
struct Numbers;
template <>
struct Numbers<std::int8_t> {
  static constexpr double kMost = 127;
  static std::int8_t nearest(double x) {
    const double n = std::nearbyint(x);
    return static_cast<std::int8_t>(n > kMost ? kMost : n < -kMost ? -kMost : n);
  }
};
template <>
struct Numbers<e4m3> {
  static constexpr double kMost = e4m3::kMost;
  static e4m3 nearest(double x) { return e4m3(static_cast<float>(x)); }
};

template <class T, class Out>
float quantize_row(const T* x, Index x_step, Index dim, Out* out, Index out_step) {
  const auto value = [&](Index i) {
    if constexpr (std::is_same_v<T, double>)
      return x[i * x_step];
    else
      return static_cast<double>(static_cast<float>(x[i * x_step]));
  };
  double most = 0;
  bool finite = true;
  for (Index i = 0; i < dim; ++i) {
    const double a = std::fabs(value(i));
    finite = finite && a <= std::numeric_limits<float>::max();
    most = a > most ? a : most;
  }
  const float scale =
      finite ? static_cast<float>(most / Numbers<Out>::kMost) : std::numeric_limits<float>::quiet_NaN();
  // Scales near the smallest number are coarse: the nearest may be the largest.
  for (Index i = 0; i < dim; ++i)
    out[i * out_step] = Numbers<Out>::nearest(scale > 0 ? value(i) / static_cast<double>(scale) : 0);
  return scale;
}

}  // namespace

void quantize_kv(const InputView& x, const AnyView& out, const AnyView& scale, Context& ctx) {
  require(x.rank == 4 && is_float(x.dtype), is_float(x.dtype) ? ErrorKind::bad_shape : ErrorKind::bad_dtype,
          kOp, "x is ", x, " but f32, bf16, f16 or f64 [batch tokens kv_heads dim] is needed");
  const bool same = out.rank == 4 && (out.dtype == DType::i8 || out.dtype == DType::e4m3) &&
                    out.size[0] == x.size[0] && out.size[1] == x.size[1] && out.size[2] == x.size[2] &&
                    out.size[3] == x.size[3];
  require(same, ErrorKind::bad_shape, kOp, "out is ", out, " but i8 or e4m3 of x's sizes is needed, x is ",
          x);
  const bool fits = scale.rank == 3 && scale.dtype == DType::f32 && scale.size[0] == x.size[0] &&
                    scale.size[1] == x.size[1] && scale.size[2] == x.size[2];
  require(fits, ErrorKind::bad_shape, kOp, "scale is ", scale, " but f32 [", x.size[0], " ", x.size[1], " ",
          x.size[2], "] is needed, [batch tokens kv_heads]");
  check_memory(kOp, "x", x), check_memory(kOp, "out", out), check_memory(kOp, "scale", scale);
  require(each_element_once(out) && each_element_once(scale), ErrorKind::bad_argument, kOp,
          "out or scale has steps that put two elements in one place; give them memory of their own");
  check_apart(kOp, out, "x", x), check_apart(kOp, out, "scale", scale), check_apart(kOp, scale, "x", x);
  if (scale.count() == 0) return;
  const Index heads = x.size[2], tokens = x.size[1], rows = x.size[0] * tokens * heads, dim = x.size[3];
  const Index grain = max_of(1, kTaskElements / max_of(1, dim));
  const auto typed = [&]<class T, class Out>(Type<T>, Type<Out>) {
    ctx.pool().parallel_for(ceil_div(rows, grain), [&](Index task, int) noexcept {
      for (Index row = task * grain; row < min_of(rows, (task + 1) * grain); ++row) {
        const Index h = row % heads, t = row / heads % tokens, b = row / heads / tokens;
        const auto place = [&](const AnyView& v) { return b * v.step[0] + t * v.step[1] + h * v.step[2]; };
        float& of_row = static_cast<float*>(scale.data)[place(scale)];
        if (dim == 0) {  // x and out may be null
          of_row = 0;
          continue;
        }
        of_row = quantize_row(static_cast<const T*>(x.data) + place(x), x.step[3], dim,
                              static_cast<Out*>(out.data) + place(out), out.step[3]);
      }
    });
  };
  visit_float(x.dtype, [&]<class T>(Type<T> of_x) {
    return out.dtype == DType::i8 ? typed(of_x, Type<std::int8_t>{}) : typed(of_x, Type<e4m3>{});
  });
}

}  // namespace headwise
