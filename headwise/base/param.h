// ParamSet: learned tensors by name with their gradients. Heads and layers declare them, the set owns them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/buffer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// How a parameter starts. Element i depends on the set's seed, the parameter's full name and i alone: not on
/// what else is declared, nor in which order.
struct Init {
  enum class Kind : std::uint8_t { constant, identity, normal, uniform };
  Kind kind = Kind::constant;
  double size = 0;  // the constant; the standard deviation; the largest magnitude of a uniform draw

  static constexpr Init zeros() { return {}; }
  static constexpr Init constant(double x) { return {Kind::constant, x}; }
  static constexpr Init identity() { return {Kind::identity, 1}; }  // of a square matrix
  static constexpr Init normal(double deviation) { return {Kind::normal, deviation}; }
  static constexpr Init uniform(double range) { return {Kind::uniform, range}; }
};

/// One parameter: row-major, of the set's dtype. grad is empty until the set makes gradients. The memory of
/// parameters joined to one before them is that one's.
struct Param {
  std::string name;
  AnyView value, grad;
  Buffer value_memory, grad_memory;
  double rate = 1;  // of its learning, times a step's; 0: it does not learn and has no gradient

  std::size_t bytes() const { return static_cast<std::size_t>(value.count() * size_of(value.dtype)); }
};

/// A parameter as heads and layers hold it; empty: it has none.
class Learned {
 public:
  Learned() = default;
  explicit Learned(Param& param) : param_(&param) {}
  bool given() const noexcept { return param_ != nullptr; }
  AnyView value() const { return param_ ? param_->value : AnyView{}; }
  /// Backward adds to it; empty when the set makes no gradients.
  AnyView grad() const { return param_ ? param_->grad : AnyView{}; }
  const std::string& name() const { return param_->name; }

 private:
  friend class ParamSet;
  Param* param_ = nullptr;
};

class ParamSet {
 public:
  explicit ParamSet(DType dtype = DType::f32, std::uint64_t seed = 0);
  /// Every parameter starts as zeros: for values that are read from a file, where draws would be thrown away.
  /// `most`: the numbers that file has; a parameter beyond them is refused before memory is taken.
  static ParamSet blank(DType dtype = DType::f32, Index most = std::numeric_limits<Index>::max());
  ParamSet(ParamSet&&) = default;
  ParamSet& operator=(ParamSet&&) = default;

  DType dtype() const noexcept { return dtype_; }
  std::uint64_t seed() const noexcept { return seed_; }

  /// Declares a parameter under the open scopes' names joined by dots; a name is declared once.
  Learned add(std::string_view name, std::initializer_list<Index> sizes, Init init = Init::zeros());
  Learned identity(std::string_view name, Index n) { return add(name, {n, n}, Init::identity()); }
  /// Moves these, declared before, side by side in their order, values and gradients alike: one view can span
  /// them. A parameter is joined once; empty handles are passed over.
  void join(std::initializer_list<Learned> parts);
  /// By full name; throws when there is none.
  Learned find(std::string_view full_name);
  bool has(std::string_view full_name) const;

  /// Parameters whose names begin with `front` learn at `rate` times the rate of a step; at 0 they stay as
  /// they are. Before an optimizer or masters are made of the set. Returns how many there are.
  Index set_rate(std::string_view front, double rate);

  /// In the order of their declaration.
  std::deque<Param>& all() noexcept { return all_; }
  const std::deque<Param>& all() const noexcept { return all_; }
  /// Numbers in all values together.
  Index count() const;

  /// Gives every parameter, now and later, a gradient of zeros.
  void make_grads();
  void zero_grads();

  /// Names what is declared while it lives: { auto in = params.scope("layer.0"); ... }
  class Scope {
   public:
    Scope(ParamSet& set, std::string_view name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ParamSet& set_;
    std::size_t outer_;
  };
  Scope scope(std::string_view name) { return Scope(*this, name); }

 private:
  DType dtype_;
  std::uint64_t seed_;
  Index most_ = std::numeric_limits<Index>::max();
  bool grads_ = false, blank_ = false;
  std::string prefix_;
  std::deque<Param> all_;  // a deque: handles stay valid while it grows
  std::vector<std::vector<Param*>> joined_;
};

}  // namespace headwise
#pragma GCC visibility pop
