// The engine `nccl`: bytes go over GPUs. Its library and the driver's are found at run time.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>

#include "headwise/distributed/engine.h"

namespace headwise {

/// Why it cannot be used here, "" where it can.
std::string missing_nccl();
/// A GPU a rank. Under mpirun the ranks are those of MPI, which brings them together; else there is one.
std::unique_ptr<Engine> start_nccl();

}  // namespace headwise
