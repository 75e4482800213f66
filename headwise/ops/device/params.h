// DeviceParams: parameters of a set whose values and gradients lie on a device, and the way back.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "headwise/base/param.h"
#include "headwise/ops/device/memory.h"

#pragma GCC visibility push(default)
namespace headwise {

class DeviceParams {
 public:
  /// Holds nothing; its device is the CPU.
  DeviceParams() = default;
  /// Copies the parameters whose names begin with one of `fronts`, gradients included where they are, and
  /// points the set at the copies. Parameters that lay side by side do so there. The set outlives this. Where
  /// it throws, as when the device is full, the set is as it was.
  DeviceParams(ParamSet& set, std::span<const std::string_view> fronts, Device device, Context& ctx);
  DeviceParams(DeviceParams&&) = default;
  DeviceParams& operator=(DeviceParams&&) = default;

  Device device() const noexcept { return values_.device(); }
  bool holds(const Param& p) const;
  /// Copies the values back into the memory the set had, and leaves the set on the device: what is saved is
  /// read there, by home_value.
  void fetch(Context& ctx);
  /// Where the set had the value of a parameter: what fetch filled, or the value itself.
  ConstView home_value(const Param& p) const;
  /// Zeros in all gradients there.
  void zero_grads(Context& ctx);
  /// Copies everything back and points the set at it; holds nothing then.
  void bring_home(Context& ctx);
  /// Points the set at what it had, as it lies there; holds nothing then.
  void point_home() noexcept;

 private:
  struct Moved {
    Param* param = nullptr;
    AnyView value, grad;  // at home
  };
  DeviceBuffer move(std::span<Param* const> params, Buffer Param::*memory, AnyView Param::*view,
                    Device device, Context& ctx);
  std::vector<Moved> moved_;
  DeviceBuffer values_, grads_;
};

}  // namespace headwise
#pragma GCC visibility pop
