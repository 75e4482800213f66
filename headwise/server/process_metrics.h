// Metrics of the process itself, under the names every Prometheus client has.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace headwise::server {

/// process_cpu_seconds_total, process_open_fds and so on, as Prometheus text; what the system does not say is
/// left out.
void print_process_metrics(std::string& out);
/// Of this process, in bytes; 0 where the system does not say.
long long resident_bytes();

}  // namespace headwise::server
