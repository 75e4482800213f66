// Scales: heads of a text dealt over windows, `32,256,all`, as settings of reach over them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace headwise {

/// `mha:heads=6` under `32,256,all` is `mha:heads=6+reach:near=32,near_heads=2,middle=256,middle_heads=2`:
/// the heads of each part of `heads` (one text, or one a layer joined by `;`) in equal shares, the rest to
/// the last. Scales ascend, at most two windows and `all`.
std::string with_scales(std::string_view heads, std::string_view scales);

}  // namespace headwise
#pragma GCC visibility pop
