#include "headwise/base/context.h"

#include <cstdlib>
#include <utility>

namespace headwise {
namespace {

int thread_count(int asked) {
  if (asked == 0) {
    if (const char* set = std::getenv("HEADWISE_THREADS"); set && *set) {
      char* end = nullptr;
      const long n = std::strtol(set, &end, 10);
      require(*end == '\0' && n >= 1 && n <= 1024, ErrorKind::bad_argument, "context",
              "HEADWISE_THREADS is \"", set, "\"; give a number from 1 to 1024 or unset it");
      return static_cast<int>(n);
    }
    return ThreadPool::available();
  }
  require(asked >= 1 && asked <= 1024, ErrorKind::bad_argument, "context", "threads is ", asked,
          "; give a number from 1 to 1024, or 0 for all CPUs this process may use");
  return asked;
}

std::string kernel_list(std::string asked) {
  if (!asked.empty()) return asked;
  const char* set = std::getenv("HEADWISE_KERNELS");
  return set ? set : "";
}

std::optional<Device> checked(std::optional<Device> device) {
  require(!device || (device->index >= 0 && device->index <= Device::kMostIndex), ErrorKind::bad_argument,
          "context", "the device's number is ", device ? device->index : 0, "; it runs from 0 to ",
          Device::kMostIndex);
  return device;
}

}  // namespace

Context::Context(ContextOptions options)
    : pool_(thread_count(options.threads)),
      kernels_(kernel_list(std::move(options.kernels))),
      device_(checked(options.device)),
      stream_(options.stream) {}

std::span<std::byte> Context::workspace(std::size_t bytes) {
  if (workspace_.size() < bytes) {
    workspace_ = Buffer();  // free first: the peak is the larger of the two, not their sum
    workspace_ = Buffer(bytes);
  }
  return workspace_.span();
}

}  // namespace headwise
