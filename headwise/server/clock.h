// Clock: what the service measures time with; a wall clock that jumps ends nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>

namespace headwise::server {

using Clock = std::chrono::steady_clock;

}  // namespace headwise::server
