#include "headwise/layers/multi_head/head_gates.h"

#include "headwise/heads/sums.h"
#include "headwise/ops/checks/view.h"

namespace headwise {

void scale_heads(const AnyView& y, const AnyView& gates, const AnyView& out, Context& ctx) {
  require_here("head gates", "y", y);
  const Index heads = gates.size[0], dim = y.size[1] / heads;
  visit_float(y.dtype, [&]<class T>(Type<T>) {
    using C = Computed<T>;
    each_token(y.size[0], ctx, [&](Index t) {
      const T* from = static_cast<const T*>(y.data) + t * y.size[1];
      T* to = static_cast<T*>(out.data) + t * y.size[1];
      for (Index h = 0; h < heads; ++h) {
        const C gate = static_cast<C>(load_double(gates.data, gates.dtype, h * gates.step[0]));
        for (Index i = h * dim; i < (h + 1) * dim; ++i)
          to[i] = static_cast<T>(gate * static_cast<C>(from[i]));
      }
    });
  });
}

void gate_gradient(const AnyView& y, const AnyView& dout, const AnyView& dgates, Context& ctx) {
  require_here("head gates", "y", y);
  const Index heads = dgates.size[1], dim = y.size[1] / heads;
  each_token(y.size[0], ctx, [&](Index t) {
    for (Index h = 0; h < heads; ++h) {
      double sum = 0;
      for (Index i = t * y.size[1] + h * dim; i < t * y.size[1] + (h + 1) * dim; ++i)
        sum += load_double(y.data, y.dtype, i) * load_double(dout.data, dout.dtype, i);
      store_double(dgates.data, dgates.dtype, t * dgates.step[0] + h * dgates.step[1], sum);
    }
  });
}

}  // namespace headwise
