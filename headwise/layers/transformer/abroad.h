// abroad: a Transformer on a device, called with a Call of the CPU: inputs are copied there, rows come back.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/layers/transformer/transformer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// As model.forward, which it is where the model lies on the CPU. The rows lie in the call's memory, what is
/// saved in its companion on the device.
AnyView forward_abroad(const Transformer& model, const TransformerInput& input, Call& call,
                       Transformer::Saved* saved);
/// As model.backward: dy and what is returned lie in the call's memory.
AnyView backward_abroad(const Transformer& model, const AnyView& dy, Call& call, Transformer::Saved& saved);

}  // namespace headwise
#pragma GCC visibility pop
