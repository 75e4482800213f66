#include "headwise/server/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "headwise/base/error.h"

namespace headwise::server {
namespace {

void add(std::string& out, std::string_view name, std::string_view kind, std::string_view help,
         const std::string& value) {
  out += text("# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n", name, " ", value, "\n");
}

std::string fixed(double x) {
  std::array<char, 64> digits{};
  std::snprintf(digits.data(), digits.size(), "%.2f", x);
  return digits.data();
}

std::string content(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The number in field `wanted`, counted from 1 as proc(5) does; -1 when it is not there. The second field is
/// a name in brackets and may hold anything.
long long field_of(const std::string& stat, int wanted) {
  std::size_t at = stat.rfind(')');
  if (at == std::string::npos) return -1;
  for (int field = 2; field < wanted; ++field) {
    at = stat.find(' ', at + 1);
    if (at == std::string::npos) return -1;
  }
  return std::strtoll(stat.c_str() + at, nullptr, 10);
}

/// Seconds since 1970 at which this process began; 0: unknown.
double start_time(const std::string& stat) {
  const std::string all = content("/proc/stat");
  const std::size_t boot = all.find("btime ");
  const long long ticks = field_of(stat, 22);
  if (boot == std::string::npos || ticks < 0) return 0;
  return static_cast<double>(std::strtoll(all.c_str() + boot + 6, nullptr, 10)) +
         static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

long long resident_bytes() {
  const long long pages = field_of(content("/proc/self/stat"), 24);
  return pages > 0 ? pages * ::sysconf(_SC_PAGESIZE) : 0;
}

void print_process_metrics(std::string& out) {
  rusage used{};
  if (::getrusage(RUSAGE_SELF, &used) == 0) {
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
    };
    add(out, "process_cpu_seconds_total", "counter", "User and system time.",
        fixed(seconds(used.ru_utime) + seconds(used.ru_stime)));
  }
  const std::string stat = content("/proc/self/stat");
  if (stat.empty()) return;
  add(out, "process_resident_memory_bytes", "gauge", "Resident memory.", text(resident_bytes()));
  add(out, "process_virtual_memory_bytes", "gauge", "Virtual memory.", text(field_of(stat, 23)));
  add(out, "process_threads", "gauge", "Threads.", text(field_of(stat, 20)));
  if (const double start = start_time(stat); start > 0)
    add(out, "process_start_time_seconds", "gauge", "When it began, since 1970.", fixed(start));
  std::error_code failed;
  const auto open = std::distance(std::filesystem::directory_iterator("/proc/self/fd", failed), {});
  if (!failed) add(out, "process_open_fds", "gauge", "Open descriptors.", text(open - 1));
  rlimit most{};
  if (::getrlimit(RLIMIT_NOFILE, &most) == 0)
    add(out, "process_max_fds", "gauge", "Most descriptors.",
        text(static_cast<unsigned long long>(most.rlim_cur)));
}

}  // namespace headwise::server
