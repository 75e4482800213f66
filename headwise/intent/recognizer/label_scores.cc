#include "headwise/intent/recognizer/label_scores.h"

#include <cmath>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/row/row.h"

namespace headwise {
LabelScores::LabelScores(ParamSet& params, std::string_view name, Evidence evidence, Index labels,
                         Index vectors, Index dim)
    : evidence_(evidence), labels_(labels), dim_(dim) {
  require(labels > 0 && dim > 0 && vectors > 0 && (evidence == Evidence::shared || vectors == labels),
          ErrorKind::bad_shape, "label scores", "got ", vectors, " vectors of ", dim, " columns for ", labels,
          " labels; one or more of each are needed, and own evidence is one vector a label");
  const auto scope = params.scope(name);
  const Index in = evidence == Evidence::shared ? vectors * dim : dim;
  weight_ =
      params.add("weight", {labels, in}, Init::uniform(std::sqrt(6 / static_cast<double>(in + labels))));
  bias_ = params.add("bias", {labels});
}

AnyView LabelScores::forward(const AnyView& p, Call& call, Saved* saved) const {
  if (saved) saved->p = p;
  if (evidence_ == Evidence::shared) return project_rows(p, weight_, bias_, call);
  const AnyView y = call.memory.take(p.dtype, {p.size[0], labels_});
  const FloatEnv env;
  visit_float(p.dtype, [&]<class T>(Type<T>) {
    const auto* w = static_cast<const T*>(weight_.value().data);
    const auto* bias = static_cast<const T*>(bias_.value().data);
    call.ctx.pool().parallel_for(p.size[0], [&](Index b, int) noexcept {
      for (Index l = 0; l < labels_; ++l) {
        const T* x = static_cast<const T*>(p.data) + b * p.step[0] + l * dim_;
        double sum = cpu::widen(bias[l]);
        for (Index d = 0; d < dim_; ++d) sum += cpu::widen(x[d]) * cpu::widen(w[l * dim_ + d]);
        static_cast<T*>(y.data)[b * labels_ + l] = cpu::narrow<T>(sum);
      }
    });
  });
  return y;
}

AnyView LabelScores::backward(const AnyView& dy, Call& call, const Saved& saved) const {
  if (evidence_ == Evidence::shared) return project_rows_backward(dy, saved.p, weight_, bias_, call);
  const Index texts = saved.p.size[0];
  const AnyView dp = call.memory.take(dy.dtype, {texts, labels_ * dim_});
  const FloatEnv env;
  visit_float(dy.dtype, [&]<class T>(Type<T>) {
    const auto slope = [&](Index b, Index l) {
      return cpu::widen(static_cast<const T*>(dy.data)[b * dy.step[0] + l * dy.step[1]]);
    };
    // y_l = w_l . p_l + b_l  ->  dp_l = dy_l w_l, dw_l = sum over texts of dy_l p_l, in ascending order
    call.ctx.pool().parallel_for(labels_, [&](Index l, int) noexcept {
      const T* w = static_cast<const T*>(weight_.value().data) + l * dim_;
      for (Index b = 0; b < texts; ++b) {
        T* to = static_cast<T*>(dp.data) + (b * labels_ + l) * dim_;
        for (Index d = 0; d < dim_; ++d) to[d] = cpu::narrow<T>(slope(b, l) * cpu::widen(w[d]));
      }
      if (!weight_.grad().given()) return;
      T* dw = static_cast<T*>(weight_.grad().data) + l * dim_;
      double bias = 0;
      for (Index b = 0; b < texts; ++b) bias += slope(b, l);
      for (Index d = 0; d < dim_; ++d) {
        double sum = 0;
        for (Index b = 0; b < texts; ++b)
          sum += slope(b, l) *
                 cpu::widen(static_cast<const T*>(saved.p.data)[b * saved.p.step[0] + l * dim_ + d]);
        dw[d] = cpu::narrow<T>(cpu::widen(dw[d]) + sum);
      }
      T& db = static_cast<T*>(bias_.grad().data)[l];
      db = cpu::narrow<T>(cpu::widen(db) + bias);
    });
  });
  return dp;
}

}  // namespace headwise
