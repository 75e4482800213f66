// TransformerMirror: a Transformer on a device beside its parameters on the CPU, which stay the ones that are
// saved and that an optimizer changes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <utility>
#include <vector>

#include "headwise/layers/transformer/transformer.h"
#include "headwise/ops/device/params.h"

#pragma GCC visibility push(default)
namespace headwise {

class TransformerMirror {
 public:
  /// home: the set that holds the parameters of a Transformer of this config; it outlives the mirror. dtype:
  /// what is computed in there; one that learns has that of home.
  TransformerMirror(const TransformerConfig& config, ParamSet& home, Device device, DType dtype,
                    Context& ctx);

  /// As Transformer::forward for a call of the CPU, with rows of the dtype of home. saved: the model learns;
  /// from then on its values are copied from home before every forward.
  AnyView forward(const TransformerInput& input, Call& call, Transformer::Saved* saved);
  /// As Transformer::backward; gradients are added to those at home.
  AnyView backward(const AnyView& dy, Call& call, Transformer::Saved& saved);

  Device device() const { return moved_.device(); }

 private:
  void copy_values(Context& ctx);
  void move(Device device, Context& ctx);
  ParamSet params_;
  Transformer model_;
  DeviceParams moved_;
  std::vector<std::pair<Param*, Param*>> pairs_;  // at home, there
  bool learns_ = false;
};

}  // namespace headwise
#pragma GCC visibility pop
