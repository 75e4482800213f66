#include "headwise/train/steps/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/train/steps/device_steps.h"
#include "headwise/train/steps/param_blocks.h"
#include "headwise/train/steps/shards.h"

namespace headwise {
namespace {

constexpr const char* kOp = "optimizer";

void check_range(const char* name, double x, double low, double high) {
  require(x >= low && x <= high, ErrorKind::bad_argument, kOp, name, " is ", x, "; give a number from ", low,
          " to ", high);
}

void check_params(ParamSet& params) {
  require(params.dtype() == DType::f32 || params.dtype() == DType::f64, ErrorKind::bad_dtype, kOp,
          "the parameters are ", params.dtype(), "; steps are taken in f32 or f64: see MasterWeights");
  params.make_grads();
}

struct AdamWStep {
  double beta1, beta2, eps, shrink, step_size, root;  // shrink: 1 - lr decay; root: sqrt(1 - b2^t)
};

/// The order of operations is torch's, so that results agree to the last bits.
void adamw_block(double* x, const double* g, double* m, double* v, Index n, const AdamWStep& s) {
  for (Index i = 0; i < n; ++i) {
    const double mi = m[i] + (1 - s.beta1) * (g[i] - m[i]), vi = v[i] * s.beta2 + (1 - s.beta2) * g[i] * g[i];
    m[i] = mi, v[i] = vi;
    x[i] = x[i] * s.shrink - s.step_size * (mi / (std::sqrt(vi) / s.root + s.eps));
  }
}
void adamw_block(float* x, const float* g, float* m, float* v, Index n, const AdamWStep& s) {
  const auto f = [](double y) { return static_cast<float>(y); };
  cpu::chosen_isa().gemm()->rows.adamw({x, g, m, v, n, f(s.shrink), f(s.beta2), f(1 - s.beta1),
                                        f(1 - s.beta2), f(s.eps), f(s.step_size), f(s.root)});
}

template <class T>
void average_block(const T* x, T* a, Index n, double keep) {
  const T gain = static_cast<T>(1 - keep);
  for (Index i = 0; i < n; ++i) a[i] += gain * (x[i] - a[i]);
}

struct SgdStep {
  double rate, momentum, gain, decay;
  bool first, ahead;
};

template <class T>
void sgd_block(T* x, const T* g, T* b, Index n, const SgdStep& s) {
  const T rate = static_cast<T>(s.rate), momentum = static_cast<T>(s.momentum), gain = static_cast<T>(s.gain),
          decay = static_cast<T>(s.decay);
  for (Index i = 0; i < n; ++i) {
    T d = g[i] + decay * x[i];
    if (b) {
      b[i] = s.first ? d : momentum * b[i] + gain * d;
      d = s.ahead ? d + momentum * b[i] : b[i];
    }
    x[i] -= rate * d;
  }
}

}  // namespace

Optimizer::Optimizer(ParamSet& params, const AdamWOptions& options)
    : params_(&params), kind_(Kind::adamw), adamw_(options) {
  check_params(params);
  check_range("beta1", options.beta1, 0, 1);
  check_range("beta2", options.beta2, 0, 1);
  check_range("eps", options.eps, 0, 1);
  check_range("weight_decay", options.weight_decay, 0, 1e6);
  require(options.beta1 < 1 && options.beta2 < 1, ErrorKind::bad_argument, kOp, "beta1 is ", options.beta1,
          " and beta2 ", options.beta2, "; both must be below 1");
  check_range("average", options.average, 0, 1);
  require(options.average < 1, ErrorKind::bad_argument, kOp, "average is ", options.average,
          "; it must be below 1");
  if (options.average > 0)
    make_moments({"adamw.m", "adamw.v", "adamw.a"});
  else
    make_moments({"adamw.m", "adamw.v"});
}

Optimizer::Optimizer(ParamSet& params, const SgdOptions& options)
    : params_(&params), kind_(Kind::sgd), sgd_(options) {
  check_params(params);
  check_range("momentum", options.momentum, 0, 1);
  check_range("dampening", options.dampening, 0, 1);
  check_range("weight_decay", options.weight_decay, 0, 1e6);
  require(options.look == SgdOptions::Look::here || (options.momentum > 0 && options.dampening == 0),
          ErrorKind::bad_argument, kOp, "looking ahead with momentum ", options.momentum, " and dampening ",
          options.dampening, "; it needs a momentum above 0 and no dampening");
  if (options.momentum > 0) make_moments({"sgd.b"});
}

void Optimizer::make_moments(std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) words_.emplace_back(word);
  for (const Param& p : params_->all())
    for (std::size_t word = 0; word < words_.size(); ++word) {
      moments_.emplace_back(p.rate > 0 ? p.bytes() : 0);
      if (moments_.back().size()) std::memset(moments_.back().data(), 0, moments_.back().size());
    }
}

Slice Optimizer::own_of(std::size_t param) const {
  if (shards_) return shards_->own_of(param);
  const Param& p = params_->all()[param];
  return {0, p.rate > 0 ? p.value.count() : 0};
}

void Optimizer::share(const Communicator& team) {
  require(!shards_, ErrorKind::bad_argument, kOp, "its state is spread over ranks already; share it once");
  if (team.ranks() == 1) return;
  const auto shards = std::make_shared<Shards>(*params_, team);
  const Index width = size_of(params_->dtype());
  for (std::size_t i = 0; i < params_->all().size(); ++i) {
    const Slice own = shards->own_of(i);
    for (std::size_t word = 0; word < words_.size(); ++word) {
      Buffer& whole = moments_[i * words_.size() + word];
      Buffer part(static_cast<std::size_t>(own.size * width));
      if (own.size > 0) std::memcpy(part.data(), whole.data() + own.begin * width, part.size());
      whole = std::move(part);
    }
  }
  shards_ = shards;
}

Optimizer Optimizer::whole() const {
  Optimizer all = like(*params_);
  all.steps_ = steps_;
  for (std::size_t word = 0; word < words_.size(); ++word) {
    std::vector<const std::byte*> own;
    std::vector<std::byte*> to;
    for (std::size_t i = 0; i < params_->all().size(); ++i) {
      const std::size_t at = i * words_.size() + word;
      own.push_back(moments_[at].data()), to.push_back(all.moments_[at].data());
      if (!shards_ && moments_[at].size() > 0) std::memcpy(to[i], own[i], moments_[at].size());
    }
    if (shards_) shards_->gather(own, to, words_[word]);
  }
  return all;
}

void Optimizer::take(const Optimizer& whole) {
  const Index width = size_of(params_->dtype());
  for (std::size_t at = 0; at < moments_.size(); ++at)
    if (moments_[at].size() > 0)
      std::memcpy(moments_[at].data(), whole.moments_[at].data() + own_of(at / words_.size()).begin * width,
                  moments_[at].size());
  steps_ = whole.steps_;
}

Index Optimizer::state_bytes() const {
  Index bytes = 0;
  for (const Buffer& b : moments_) bytes += static_cast<Index>(b.size());
  return bytes;
}

std::vector<Optimizer::Moment> Optimizer::moments() const {
  require(!shards_, ErrorKind::bad_argument, kOp, "its state is spread over ranks; ask for whole() first");
  std::vector<Moment> all;
  std::size_t at = 0;
  for (const Param& p : params_->all())
    for (const std::string& word : words_) {
      AnyView v = p.value.on(Device::cpu());
      v.data = moments_[at++].data();
      if (p.rate > 0) all.push_back({text(word, '.', p.name), v});
    }
  return all;
}

void Optimizer::to(Device device, Context& ctx, ParamSet* image) {
  if (there_) {
    there_->fetch();
    there_->leave();
    there_.reset();
  }
  if (device.is_cpu()) return;
  require(kind_ == Kind::adamw && !shards_, ErrorKind::unsupported, kOp,
          shards_ ? "its state is spread over ranks" : "it is SGD", "; on ", device,
          " AdamW of one rank takes steps");
  there_ = std::make_shared<DeviceSteps>(
      *params_, image, DeviceSteps::State{moments_, words_.size(), all_decays()}, device, ctx);
}

void Optimizer::fetch() const {
  if (there_) there_->fetch();
}
void Optimizer::put() {
  if (there_) there_->put();
}
AnyView Optimizer::home_value(const Param& p) const { return there_ ? there_->home_value(p) : p.value; }

void Optimizer::swap_averages() {
  require(kind_ == Kind::adamw && adamw_.average > 0, ErrorKind::bad_argument, kOp,
          "it keeps no running mean of the weights; set AdamWOptions::average");
  if (there_) return there_->swap_averages();
  std::size_t at = 2;
  for (Param& p : params_->all()) {
    auto* value =
        static_cast<std::byte*>(p.value.data) + own_of(at / words_.size()).begin * size_of(p.value.dtype);
    std::swap_ranges(value, value + moments_[at].size(), moments_[at].data());  // none of what stays
    at += words_.size();
  }
  if (shards_) shards_->gather_values(*params_);
}

std::vector<bool> Optimizer::all_decays() const {
  std::vector<bool> all;
  for (const Param& p : params_->all()) all.push_back(decays(p.value));
  return all;
}

bool Optimizer::decays(const AnyView& v) const {
  return (kind_ == Kind::adamw ? adamw_.decay : sgd_.decay) == Decay::all || v.rank >= 2;
}

void Optimizer::set_steps(Index steps) {
  require(steps >= 0, ErrorKind::bad_argument, kOp, "steps is ", steps, "; give a number from 0 up");
  steps_ = steps;
}

/// What differs from a rate of 1, and of how many numbers.
std::string Optimizer::rates() const {
  std::map<double, Index> counts;
  for (const Param& p : params_->all()) counts[p.rate] += p.value.count();
  std::string out;
  for (const auto& [rate, count] : counts)
    if (rate != 1) out += text(" rate=", rate, ':', count);
  return out;
}

std::string Optimizer::describe() const {
  const auto word = [](Decay d) { return d == Decay::all ? "all" : "matrices"; };
  if (kind_ == Kind::adamw)
    return text("adamw beta1=", adamw_.beta1, " beta2=", adamw_.beta2, " eps=", adamw_.eps,
                " weight_decay=", adamw_.weight_decay, " decay=", word(adamw_.decay),
                adamw_.average > 0 ? text(" average=", adamw_.average) : "", rates());
  return text(
      "sgd momentum=", sgd_.momentum, " dampening=", sgd_.dampening, " weight_decay=", sgd_.weight_decay,
      " look=", sgd_.look == SgdOptions::Look::here ? "here" : "ahead", " decay=", word(sgd_.decay), rates());
}

double Optimizer::keep() const {
  const auto t = static_cast<double>(steps_);
  // The first steps leave the mean soon: 0 at t = 1, then (t + 1) / (t + 10).
  return steps_ == 1 ? 0 : std::min(adamw_.average, (t + 1) / (t + 10));
}

void Optimizer::step_there(double learning_rate, double most) {
  const auto t = static_cast<double>(++steps_);
  there_->step({.rate = learning_rate,
                .beta1 = adamw_.beta1,
                .beta2 = adamw_.beta2,
                .eps = adamw_.eps,
                .decay = adamw_.weight_decay,
                .size = learning_rate / (1 - std::pow(adamw_.beta1, t)),
                .root = std::sqrt(1 - std::pow(adamw_.beta2, t)),
                .gain = 1 - keep()},
               most);
}

void Optimizer::step(double learning_rate, Context& ctx, double most) {
  require(std::isfinite(learning_rate) && learning_rate >= 0, ErrorKind::bad_argument, kOp,
          "the learning rate is ", learning_rate, "; give a finite number from 0 up");
  require(moments_.size() == params_->all().size() * words_.size(), ErrorKind::bad_argument, kOp,
          "parameters were declared after it was made (", params_->all().size(),
          " now); make the optimizer last");
  if (there_) return step_there(learning_rate, most);
  params_->make_grads();
  const FloatEnv env;
  const double t = static_cast<double>(++steps_);
  const double keep = this->keep();
  const ParamBlocks blocks(*params_);
  const Slice mine = shards_ ? shards_->blocks() : Slice{0, blocks.count()};
  const auto run = [&]<class T>(Type<T>) {
    const auto moment = [&](const ParamBlock& b, std::size_t word) {
      const auto param = static_cast<std::size_t>(b.param);
      return reinterpret_cast<T*>(moments_[param * words_.size() + word].data()) +
             (b.begin - own_of(param).begin);
    };
    ctx.pool().parallel_for(mine.size, [&](Index task, int) noexcept {
      const ParamBlock b = blocks.at(mine.begin + task);
      const Param& p = *b.of;
      const double own_rate = learning_rate * p.rate;
      T* x = static_cast<T*>(p.value.data) + b.begin;
      const T* g = static_cast<const T*>(p.grad.data) + b.begin;
      if (kind_ == Kind::adamw) {
        const AdamWStep s{adamw_.beta1,
                          adamw_.beta2,
                          adamw_.eps,
                          decays(p.value) ? 1 - own_rate * adamw_.weight_decay : 1.0,
                          own_rate / (1 - std::pow(adamw_.beta1, t)),
                          std::sqrt(1 - std::pow(adamw_.beta2, t))};
        adamw_block(x, g, moment(b, 0), moment(b, 1), b.size, s);
        if (adamw_.average > 0) average_block(x, moment(b, 2), b.size, keep);
      } else {
        T* momentum = words_.empty() ? nullptr : moment(b, 0);
        sgd_block(x, g, momentum, b.size,
                  {own_rate, sgd_.momentum, 1 - sgd_.dampening, decays(p.value) ? sgd_.weight_decay : 0.0,
                   steps_ == 1, sgd_.look == SgdOptions::Look::ahead});
      }
    });
  };
  if (params_->dtype() == DType::f32)
    run(Type<float>{});
  else
    run(Type<double>{});
  if (shards_) shards_->gather_values(*params_);
}

}  // namespace headwise
