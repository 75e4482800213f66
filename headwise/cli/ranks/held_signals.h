// HeldSignals: SIGTERM and SIGINT wait while an engine starts.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <csignal>

namespace headwise::cli {

/// While it lives both are kept; at its end the old handlers are back and what came is raised. A rank that
/// ends while MPI starts can leave Open MPI's mpirun standing for minutes, with no rank alive. One at a time.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  struct sigaction old_term_ {
  }, old_int_{};
};

}  // namespace headwise::cli
