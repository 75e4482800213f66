// named: devices by the words people give, and which one `auto` takes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

#include "headwise/base/device.h"

#pragma GCC visibility push(default)
namespace headwise {

/// "cpu", "cuda", "cuda:1"; "auto": the first CUDA device, or the CPU where there is none. `why`, where
/// given: what auto took, and why. Throws where the word is another, or the device is not there.
Device read_device(std::string_view op, std::string_view words, std::string* why = nullptr);

/// "cpu", "cuda:1": what read_device takes.
std::string words_of(Device device);

}  // namespace headwise
#pragma GCC visibility pop
