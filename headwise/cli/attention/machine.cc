#include "headwise/cli/attention/machine.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace headwise::cli {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The value of the first "name : value" line of /proc/cpuinfo.
std::string cpu_info(const std::string& name) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind(name, 0) == 0)
      if (const auto colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return "";
}

/// "0-3,8" -> 5.
int count_list(const std::string& list) {
  std::istringstream in(list);
  int count = 0;
  for (std::string range; std::getline(in, range, ',');) {
    const auto dash = range.find('-');
    const int begin = std::atoi(range.c_str());
    count += dash == std::string::npos ? 1 : std::atoi(range.c_str() + dash + 1) - begin + 1;
  }
  return count;
}

std::vector<Cache> caches() {
  std::vector<Cache> all;
  for (int i = 0; i < 8; ++i) {
    const std::string dir = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    const std::string level = first_line(dir + "level");
    if (level.empty()) break;
    std::string type = first_line(dir + "type");
    std::transform(type.begin(), type.end(), type.begin(),
                   [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    all.push_back({"L" + level + " " + type, std::atol(first_line(dir + "size").c_str()),
                   count_list(first_line(dir + "shared_cpu_list"))});
  }
  return all;
}

/// cgroup v2's cpu.max ("200000 100000" or "max 100000") or v1's pair of files, as CPUs.
double quota() {
  std::istringstream both(first_line("/sys/fs/cgroup/cpu.max"));
  std::string most;
  double period = 0;
  if (both >> most >> period && most != "max" && period > 0) return std::atof(most.c_str()) / period;
  const double v1 = std::atof(first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").c_str());
  const double v1_period = std::atof(first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us").c_str());
  return v1 > 0 && v1_period > 0 ? v1 / v1_period : 0;
}

}  // namespace

Machine this_machine() {
  Machine m;
  utsname name{};
  if (uname(&name) == 0) {
    m.architecture = name.machine;
    m.kernel = std::string(name.sysname) + " " + name.release;
  }
  m.cpu = cpu_info("model name");
  if (m.cpu.empty()) {
    const std::string implementer = cpu_info("CPU implementer"), part = cpu_info("CPU part");
    m.cpu = implementer.empty() ? "not named by the system" : "implementer " + implementer + " part " + part;
  }
  m.online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) m.affinity = CPU_COUNT(&set);
  m.quota = quota();
  m.caches = caches();
  return m;
}

}  // namespace headwise::cli
