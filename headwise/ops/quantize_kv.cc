#include "headwise/ops/quantize_kv.h"

#include <cmath>
#include <limits>

#include "headwise/ops/in_out_checks.h"
#include "headwise/ops/view_checks.h"

namespace headwise {
namespace {

constexpr const char* kOp = "quantize_kv";
constexpr Index kTaskElements = 1 << 14;

template <class T>
float quantize_row(const T* x, Index x_step, Index dim, std::int8_t* out, Index out_step) {
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
  const float scale = finite ? static_cast<float>(most / 127) : std::numeric_limits<float>::quiet_NaN();
  for (Index i = 0; i < dim; ++i) {
    double n = scale > 0 ? std::nearbyint(value(i) / static_cast<double>(scale)) : 0;
    n = n > 127 ? 127 : n < -127 ? -127 : n;  // scales near the smallest number are coarse
    out[i * out_step] = static_cast<std::int8_t>(n);
  }
  return scale;
}

}  // namespace

void quantize_kv(const AnyView& x, const AnyView& out, const AnyView& scale, Context& ctx) {
  require(x.rank == 4 && is_float(x.dtype), is_float(x.dtype) ? ErrorKind::bad_shape : ErrorKind::bad_dtype,
          kOp, "x is ", x, " but f32, bf16, f16 or f64 [batch tokens kv_heads dim] is needed");
  const bool same = out.rank == 4 && out.dtype == DType::i8 && out.size[0] == x.size[0] &&
                    out.size[1] == x.size[1] && out.size[2] == x.size[2] && out.size[3] == x.size[3];
  require(same, ErrorKind::bad_shape, kOp, "out is ", out, " but i8 of x's sizes is needed, x is ", x);
  const bool fits = scale.rank == 3 && scale.dtype == DType::f32 && scale.size[0] == x.size[0] &&
                    scale.size[1] == x.size[1] && scale.size[2] == x.size[2];
  require(fits, ErrorKind::bad_shape, kOp, "scale is ", scale, " but f32 [", x.size[0], " ", x.size[1], " ",
          x.size[2], "] is needed, [batch tokens kv_heads]");
  check_memory(kOp, "x", x), check_memory(kOp, "out", out), check_memory(kOp, "scale", scale);
  require(each_element_once(out) && each_element_once(scale), ErrorKind::bad_argument, kOp,
          "out or scale has steps that put two elements in one place; give them memory of their own");
  check_apart(kOp, out, "x", x), check_apart(kOp, out, "scale", scale), check_apart(kOp, scale, "x", x);
  if (x.count() == 0) return;
  const Index heads = x.size[2], tokens = x.size[1], rows = x.size[0] * tokens * heads, dim = x.size[3];
  const Index grain = max_of(1, kTaskElements / max_of(1, dim));
  visit_float(x.dtype, [&]<class T>(Type<T>) {
    ctx.pool().parallel_for(ceil_div(rows, grain), [&](Index task, int) noexcept {
      for (Index row = task * grain; row < min_of(rows, (task + 1) * grain); ++row) {
        const Index h = row % heads, t = row / heads % tokens, b = row / heads / tokens;
        const auto place = [&](const AnyView& v) { return b * v.step[0] + t * v.step[1] + h * v.step[2]; };
        static_cast<float*>(scale.data)[place(scale)] =
            quantize_row(static_cast<const T*>(x.data) + place(x), x.step[3], dim,
                         static_cast<std::int8_t*>(out.data) + place(out), out.step[3]);
      }
    });
  });
}

}  // namespace headwise
