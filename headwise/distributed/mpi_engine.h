// take_mpi: ranks over a communicator of Open MPI that the program has already, such as mpi4py's.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

#include "headwise/distributed/engine.h"

namespace headwise {

/// `communicator`: an MPI_Comm of libmpi.so.40. It is copied (MPI_Comm_dup, so all its ranks call this); MPI
/// is ended by the program that started it.
std::unique_ptr<Engine> take_mpi(void* communicator);

}  // namespace headwise
