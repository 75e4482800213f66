// Ranks as Python holds them: communicators, and the teams that layers keep.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

#include "headwise/distributed/communicator.h"

namespace headwise::python {

namespace nb = nanobind;

/// hw.distributed.Communicator. It knows all of its kind, so that the program can end them before it goes.
struct CommunicatorBox {
  explicit CommunicatorBox(Communicator c);
  ~CommunicatorBox();
  CommunicatorBox(const CommunicatorBox&) = delete;
  CommunicatorBox& operator=(const CommunicatorBox&) = delete;
  Communicator team;
};

/// hw.distributed.Teams.
struct TeamsBox {
  Teams teams;
  nb::object tensor, context, data;  // what `teams` points into
};

/// The teams of a layer's teams= argument; None: none.
const Teams* read_teams(const char* op, nb::handle teams);

/// Communicator, Teams, start_ranks, run_ranks, end_ranks.
void bind_ranks(nb::module_& m);

}  // namespace headwise::python
