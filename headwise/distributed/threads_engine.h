// run_ranks: ranks that are threads of this process. For tests and trials; it is no product.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>

#include "headwise/distributed/communicator.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Runs `work` once on each of `ranks` threads, each with a communicator of its own. When one throws, those
/// that wait for it are told; the error of the lowest rank that failed by itself is thrown here.
void run_ranks(int ranks, const std::function<void(Communicator&)>& work, const EngineOptions& options = {});

}  // namespace headwise
#pragma GCC visibility pop
