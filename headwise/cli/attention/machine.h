// Machine: what the operating system says about this computer: CPU, caches, CPUs this process may use.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

namespace headwise::cli {

struct Cache {
  std::string name;  // "L1 data", "L2 unified"
  long kilobytes = 0;
  int shared_by = 0;  // CPUs; 0: not known
};
struct Machine {
  std::string cpu, architecture, kernel;
  int online = 0, affinity = 0;
  double quota = 0;  // CPUs a cgroup allows; 0: no limit
  std::vector<Cache> caches;
};
Machine this_machine();

}  // namespace headwise::cli
