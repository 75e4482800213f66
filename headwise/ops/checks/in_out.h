// Checks of ops that read one tensor and write another of the same form, or the same one in place.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "headwise/base/view.h"

namespace headwise {

/// Sizes and steps from 0 up, a reach that fits, memory behind it; `op` is what the user called, `name` the
/// argument.
void check_memory(std::string_view op, std::string_view name, const AnyView& v);

/// x holds floats, out has its dtype and sizes, one place per element, and is either x itself or apart from
/// it.
void check_in_out(std::string_view op, const AnyView& x, const AnyView& out, std::string_view x_name = "x",
                  std::string_view out_name = "out");

/// Throws when out may share memory with `v`, an input that is read while out is written.
void check_apart(std::string_view op, const AnyView& out, std::string_view name, const AnyView& v,
                 std::string_view out_name = "out");

}  // namespace headwise
