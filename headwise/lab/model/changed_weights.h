// write_changed: a model's weights as they were, but for those that surgery made anew.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>

#include "headwise/base/buffer.h"

namespace headwise {

/// Tensors of `names`, in their order; one that `changed` names comes from there, rounded to the dtype it
/// had. What `changed` has beyond them stands behind, as f32.
void write_changed(const std::string& file, std::span<const std::string> names,
                   const std::map<std::string, const Tensor*>& changed,
                   const std::function<ConstView(const std::string&)>& was);

}  // namespace headwise
