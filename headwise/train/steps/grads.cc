#include <cmath>
#include <cstring>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/row/row.h"
#include "headwise/ops/device/memory.h"
#include "headwise/train/steps/optimizer.h"
#include "headwise/train/steps/param_blocks.h"

namespace headwise {
namespace {

void check_grads(const char* op, const ParamSet& params) {
  for (const Param& p : params.all())
    require(p.grad.given() || p.rate == 0, ErrorKind::bad_argument, op, "\"", p.name,
            "\" has no gradient; call make_grads() on its set first"),
        require(!p.grad.given() || p.grad.on_cpu(), ErrorKind::unsupported, op, "\"", p.name,
                "\" has its gradient on ", p.grad.where(), ", where Optimizer::step clips it");
}

template <class T>
bool all_finite(const T* x, Index n) {
  bool ok = true;
  for (Index i = 0; i < n; ++i) ok &= std::isfinite(static_cast<double>(x[i]));
  return ok;
}
bool all_finite(const AnyView& given) {
  DeviceTensor home;
  AnyView v = given;
  if (!v.on_cpu()) {
    Context ctx({.threads = 1});
    home = to(given, Device::cpu(), ctx);
    v = home.view();
  }
  return visit_float(v.dtype, [&]<class T>(Type<T>) {
    if constexpr (sizeof(T) == 2) {
      for (Index i = 0; i < v.count(); ++i)
        if (!std::isfinite(static_cast<float>(static_cast<const T*>(v.data)[i]))) return false;
      return true;
    } else {
      return all_finite(static_cast<const T*>(v.data), v.count());
    }
  });
}

Learned add_like(ParamSet& set, const std::string& name, const AnyView& v) {
  const Index* n = v.size;
  switch (v.rank) {
    case 1: return set.add(name, {n[0]});
    case 2: return set.add(name, {n[0], n[1]});
    case 3: return set.add(name, {n[0], n[1], n[2]});
    default: return set.add(name, {n[0], n[1], n[2], n[3]});
  }
}

}  // namespace

double sum_of_squares(DType dtype, const void* numbers, Index count) {
  return visit_float(dtype, [&]<class T>(Type<T>) {
    const T* g = static_cast<const T*>(numbers);
    double sum = 0;
    if constexpr (std::is_same_v<T, float>) {
      sum = cpu::chosen_isa().gemm()->rows.sum_squares(g, count);
    } else {
      for (Index i = 0; i < count; ++i) sum += cpu::widen(g[i]) * cpu::widen(g[i]);
    }
    return sum;
  });
}

double grad_norm(const ParamSet& params, Context& ctx) {
  check_grads("grad_norm", params);
  const FloatEnv env;
  const ParamBlocks blocks(params);
  std::vector<double> sums(static_cast<std::size_t>(blocks.count()));
  const Index width = size_of(params.dtype());
  ctx.pool().parallel_for(blocks.count(), [&](Index task, int) noexcept {
    const ParamBlock b = blocks.at(task);
    sums[static_cast<std::size_t>(task)] = sum_of_squares(
        params.dtype(), static_cast<const std::byte*>(b.of->grad.data) + b.begin * width, b.size);
  });
  double total = 0;
  for (const double s : sums) total += s;
  return std::sqrt(total);
}

void scale_grads(ParamSet& params, double factor, Context& ctx) {
  check_grads("scale_grads", params);
  const FloatEnv env;
  const ParamBlocks blocks(params);
  visit_float(params.dtype(), [&]<class T>(Type<T>) {
    ctx.pool().parallel_for(blocks.count(), [&](Index task, int) noexcept {
      const ParamBlock b = blocks.at(task);
      T* g = static_cast<T*>(b.of->grad.data) + b.begin;
      if constexpr (sizeof(T) == 2) {
        const auto f = static_cast<float>(factor);
        for (Index i = 0; i < b.size; ++i) g[i] = T(static_cast<float>(g[i]) * f);
      } else {
        const T f = static_cast<T>(factor);
        for (Index i = 0; i < b.size; ++i) g[i] *= f;
      }
    });
  });
}

double clip_grads(ParamSet& params, double most, Context& ctx) {
  require(most > 0, ErrorKind::bad_argument, "clip_grads", "the largest norm is ", most,
          "; give one above 0");
  const double norm = grad_norm(params, ctx), factor = most / (norm + 1e-6);
  if (factor < 1) scale_grads(params, factor, ctx);
  return norm;
}

std::string first_not_finite(const ParamSet& params) {
  for (const Param& p : params.all()) {
    if (!all_finite(p.value)) return p.name;
    if (p.grad.given() && !all_finite(p.grad)) return p.name + " (gradient)";
  }
  return "";
}

MasterWeights::MasterWeights(ParamSet& image) : image_(&image), masters_(DType::f32, image.seed()) {
  require(image.dtype() == DType::bf16 || image.dtype() == DType::f16, ErrorKind::bad_dtype, "master weights",
          "the set is ", image.dtype(), "; masters are for bf16 and f16, others learn as they are");
  image.make_grads();
  for (const Param& p : image.all()) {
    const AnyView v = add_like(masters_, p.name, p.value).value();
    for (Index i = 0; i < v.count(); ++i)
      static_cast<float*>(v.data)[i] = static_cast<float>(load_double(p.value.data, p.value.dtype, i));
    masters_.all().back().rate = p.rate;
  }
  masters_.make_grads();
}

void MasterWeights::take_grads(Context& ctx) {
  const FloatEnv env;
  const ParamBlocks blocks(*image_);
  visit_float(image_->dtype(), [&]<class T>(Type<T>) {
    ctx.pool().parallel_for(blocks.count(), [&](Index task, int) noexcept {
      const ParamBlock b = blocks.at(task);
      T* from = static_cast<T*>(b.of->grad.data) + b.begin;
      float* to = static_cast<float*>(masters_.all()[static_cast<std::size_t>(b.param)].grad.data) + b.begin;
      for (Index i = 0; i < b.size; ++i) to[i] += static_cast<float>(from[i]), from[i] = T(0.0f);
    });
  });
}

void MasterWeights::zero_grads() {
  image_->zero_grads();
  masters_.zero_grads();
}

void MasterWeights::publish(Context& ctx) {
  const FloatEnv env;
  const ParamBlocks blocks(*image_);
  visit_float(image_->dtype(), [&]<class T>(Type<T>) {
    ctx.pool().parallel_for(blocks.count(), [&](Index task, int) noexcept {
      const ParamBlock b = blocks.at(task);
      const float* from =
          static_cast<const float*>(masters_.all()[static_cast<std::size_t>(b.param)].value.data) + b.begin;
      T* to = static_cast<T*>(b.of->value.data) + b.begin;
      for (Index i = 0; i < b.size; ++i) to[i] = T(from[i]);
    });
  });
}

}  // namespace headwise
