// Optimizers: AdamW and SGD over a ParamSet, clipping by the global norm, f32 masters of a bf16 set.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "headwise/base/param.h"
#include "headwise/distributed/communicator.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// Which parameters shrink by weight_decay: all, or only those with two sizes and more (no bias, no norm).
enum class Decay : std::uint8_t { all, matrices };

/// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; x -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) +
/// lr decay x.
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  Decay decay = Decay::all;
  /// A running mean of the weights beside them: a = d a + (1 - d) x, d = min(average, (t + 1) / (t + 10)); 0:
  /// none.
  double average = 0;
};

/// g += decay x; b = momentum b + (1 - dampening) g (the first time b = g); x -= lr b, or lr (g + momentum
/// b).
struct SgdOptions {
  double momentum = 0, dampening = 0, weight_decay = 0;
  enum class Look : std::uint8_t { here, ahead } look = Look::here;  // ahead: Nesterov
  Decay decay = Decay::all;
};

class DeviceSteps;
class Shards;

/// State lies beside the parameters, in their dtype (f32 or f64); element by element, so the same bits for
/// any thread count.
class Optimizer {
 public:
  Optimizer(ParamSet& params, const AdamWOptions& options);
  Optimizer(ParamSet& params, const SgdOptions& options);
  /// One of the same settings over another set, at its beginning.
  Optimizer like(ParamSet& params) const {
    return kind_ == Kind::adamw ? Optimizer(params, adamw_) : Optimizer(params, sgd_);
  }

  /// From here on a rank of the team keeps the state of its blocks of 4,096 numbers alone, steps these, and
  /// gathers the weights; so does swap_averages. Bits are those of one rank. The team outlives it.
  void share(const Communicator& team);
  /// null: the state is whole here.
  Shards* shards() const noexcept { return shards_.get(); }
  /// One with the state of all ranks, on every rank; every rank asks for it. And this rank's part of one.
  Optimizer whole() const;
  void take(const Optimizer& whole);
  /// Bytes of the state that lie here.
  Index state_bytes() const;

  /// Parameters, gradients and state move to a CUDA device, where steps happen from now on; the CPU takes
  /// them back. For f32 and AdamW. `image`: a 16-bit set of the same parameters that computes there, whose
  /// gradients are these, in f32, and whose values every step rounds. All outlive the stay.
  void to(Device device, Context& ctx, ParamSet* image = nullptr);
  /// null: they lie on the CPU.
  DeviceSteps* there() const noexcept { return there_.get(); }
  /// What lies on a device is copied to the CPU's memory beside it, which moments() and home_value() name;
  /// put copies it back. Nothing on the CPU.
  void fetch() const;
  void put();
  AnyView home_value(const Param& p) const;

  /// Reads gradients, changes values; gradients stay as they are, on a device they are zero afterwards. There
  /// `most` clips them first, 0: not at all.
  void step(double learning_rate, Context& ctx, double most = 0);
  Index steps() const noexcept { return steps_; }
  /// Weights and their running means change places, as often as wanted: to judge or keep the means.
  void swap_averages();
  void set_steps(Index steps);
  /// "adamw beta1=0.9 ...": what a checkpoint compares.
  std::string describe() const;
  ParamSet& params() noexcept { return *params_; }
  const ParamSet& params() const noexcept { return *params_; }

  /// What a checkpoint keeps: moments by the name "adamw.m.NAME", "adamw.v.NAME", "adamw.a.NAME" or
  /// "sgd.b.NAME".
  struct Moment {
    std::string name;
    AnyView value;
  };
  std::vector<Moment> moments() const;

 private:
  void make_moments(std::initializer_list<std::string_view> words);
  /// Numbers of a parameter whose state lies here.
  Slice own_of(std::size_t param) const;
  bool decays(const AnyView& v) const;
  std::vector<bool> all_decays() const;
  /// Of running means in the step that was counted last.
  double keep() const;
  void step_there(double learning_rate, double most);
  std::string rates() const;

  ParamSet* params_;
  enum class Kind : std::uint8_t { adamw, sgd } kind_;
  AdamWOptions adamw_;
  SgdOptions sgd_;
  Index steps_ = 0;
  std::vector<std::string> words_;
  std::vector<Buffer> moments_;  // parameter by parameter, word by word; of the numbers own_of alone
  std::shared_ptr<Shards> shards_;
  std::shared_ptr<DeviceSteps> there_;
};

/// sqrt of the sum of squares of all gradients, in double: blocks of 4,096 in ascending order, then their
/// sums in ascending order, whatever the threads.
double grad_norm(const ParamSet& params, Context& ctx);
/// Multiplies all gradients by most / (norm + 1e-6) where that is below 1; returns the norm before.
double clip_grads(ParamSet& params, double most, Context& ctx);
void scale_grads(ParamSet& params, double factor, Context& ctx);
/// The first parameter, in the order of declaration, whose value or gradient holds a NaN or an infinity, as
/// "layer.0.w (gradient)"; "" when there is none.
std::string first_not_finite(const ParamSet& params);

/// A bf16 or f16 set computes; its f32 masters learn.
class MasterWeights {
 public:
  /// The masters start as the image's numbers; both get gradients.
  explicit MasterWeights(ParamSet& image);
  ParamSet& params() noexcept { return masters_; }
  const ParamSet& image() const noexcept { return *image_; }
  /// Adds the image's gradients to the masters' and zeroes the image's: after each micro-batch.
  void take_grads(Context& ctx);
  /// Of both.
  void zero_grads();
  /// Rounds the masters into the image: after each step.
  void publish(Context& ctx);

 private:
  ParamSet* image_;
  ParamSet masters_;
};

}  // namespace headwise
#pragma GCC visibility pop
