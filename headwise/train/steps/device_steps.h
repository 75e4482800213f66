// DeviceSteps: parameters, gradients and AdamW's state on a CUDA device, and steps that happen there. An
// Optimizer makes one (Optimizer::to).
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <span>
#include <vector>

#include "headwise/ops/device/late.h"
#include "headwise/ops/device/params.h"

namespace headwise {

/// What AdamW needs for a step, as the CPU computes it.
struct DeviceStep {
  double rate = 0, beta1 = 0, beta2 = 0, eps = 0, decay = 0, size = 0, root = 0, gain = 0;
};

class DeviceSteps {
 public:
  struct State {
    std::span<Buffer> moments;  // parameter by parameter, word by word: m, v, and a mean where there is one
    std::size_t words = 0;
    std::vector<bool> decays;  // by parameter
  };
  /// Moves what `params` holds; `image`, where given, is a 16-bit set of the same parameters, whose values
  /// the steps round and whose gradients are theirs, in f32. All outlive it. Where it throws, as when the
  /// device is full, the sets are as they were, with gradients of zeros.
  DeviceSteps(ParamSet& params, ParamSet* image, const State& state, Device device, Context& ctx);

  Device device() const { return moved_.device(); }
  /// null: there is none.
  const ParamSet* image() const { return image_set_; }
  /// Where a parameter had its value: what fetch fills.
  AnyView home_value(const Param& p) const;

  /// Gradients of zeros, and steps touch what they step again after a norm that was not finite.
  void clear();
  /// A step begins: sums of losses for so many micro-batches, zero.
  void begin(Index micro_batches);
  AnyView losses(Index number) const;
  /// Norm, clipping (most 0: none) and AdamW; gradients are zero afterwards. A norm that is not finite keeps
  /// this step and all behind it from touching anything.
  void step(const DeviceStep& s, double most);
  /// Of the step that was begun: its figures come home. read() waits for them; two steps may be under way.
  struct Figures {
    double norm = 0;
    std::span<const double> losses;
  };
  Index send();
  Figures read(Index ticket) const;
  /// How often: the next ticket.
  Index sent() const { return sent_; }

  /// Weights and state to the memory they had, and back, which clears.
  void fetch();
  void put();
  void swap_averages();
  /// Points the sets at what they had, gradients of zeros included; nothing happens there any more.
  void leave();

 private:
  struct Piece {
    Param* param = nullptr;
    Param* image = nullptr;
    AnyView value;                     // at home
    std::vector<AnyView> home, there;  // moments
  };
  struct Flight {
    LateBytes bytes;
    std::size_t count = 0;
  };
  void lay_params(Device device);
  void lay_moments(const State& state);
  void make_table(const State& state);
  /// Points the sets at what they had, as it lies there, with gradients of zeros.
  void point_home();
  void round_image();
  /// Of the step that is under way.
  double* figures() const;

  ParamSet *params_, *image_set_;
  Context& ctx_;
  DeviceParams moved_, image_;
  std::vector<Piece> pieces_;
  DeviceBuffer grads_, moments_, table_, squares_, words_, figures_, spare_;
  std::array<Flight, 2> flights_;
  Index blocks_ = 0, sent_ = 0, micro_batches_ = 0;
  int rows_ = 0;
};

}  // namespace headwise
