#include "headwise/model/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <mutex>

#include "headwise/base/error.h"

namespace headwise {
namespace {

// A fixed table: a signal handler may neither allocate nor lock. A process maps a few files, not thousands.
constexpr int kMaps = 256;
struct Range {
  std::atomic<std::uintptr_t> begin{0}, end{0};
  std::atomic<bool> damaged{false};
};
Range ranges[kMaps];
struct sigaction before {};
std::mutex table;
int live = 0;
std::uintptr_t page_bytes = 4096;

void on_bus(int signal, siginfo_t* info, void* context) {
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (Range& r : ranges) {
    if (at < r.begin.load(std::memory_order_acquire) || at >= r.end.load(std::memory_order_acquire)) continue;
    void* page = reinterpret_cast<void*>(at / page_bytes * page_bytes);
    const int saved = errno;
    const void* got = ::mmap(page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    errno = saved;
    if (got == MAP_FAILED) break;
    r.damaged.store(true, std::memory_order_release);
    return;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    ::sigaction(SIGBUS, &before, nullptr);  // returning repeats the fault, which now ends the process
  }
}

}  // namespace

Mapping::Mapping(const File& file, Index bytes, std::string_view op, std::string_view path)
    : size_(static_cast<std::size_t>(bytes)) {
  if (bytes == 0) return;
  void* got = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (got == MAP_FAILED) file_failed(op, path, "map", errno);
  data_ = static_cast<std::byte*>(got);
  const std::scoped_lock lock(table);
  for (slot_ = 0; slot_ < kMaps && ranges[slot_].end.load() != 0; ++slot_) {
  }
  if (slot_ == kMaps) {
    ::munmap(data_, size_);
    throw Error(ErrorKind::bad_argument,
                text(op, ": ", path, ": ", kMaps,
                     " files are mapped already; close some or read with Reading::copied"));
  }
  if (live++ == 0) {
    page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction ours {};
    ours.sa_sigaction = on_bus;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigaction(SIGBUS, &ours, &before);
  }
  ranges[slot_].damaged = false;
  ranges[slot_].begin = reinterpret_cast<std::uintptr_t>(data_);
  ranges[slot_].end = reinterpret_cast<std::uintptr_t>(data_) + size_;
}

Mapping::~Mapping() {
  if (!data_) return;
  const std::scoped_lock lock(table);
  ranges[slot_].end = 0;
  ranges[slot_].begin = 0;
  ::munmap(data_, size_);
  if (--live == 0) {
    struct sigaction now {};
    ::sigaction(SIGBUS, nullptr, &now);
    // Someone who came later keeps the signal.
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_bus) ::sigaction(SIGBUS, &before, nullptr);
  }
}

bool Mapping::intact() const noexcept {
  return slot_ < 0 || !ranges[slot_].damaged.load(std::memory_order_acquire);
}

void Mapping::release(std::span<const std::byte> bytes) noexcept {
  const auto first = reinterpret_cast<std::uintptr_t>(bytes.data()), last = first + bytes.size();
  for (const Range& r : ranges) {
    if (first < r.begin.load(std::memory_order_acquire) || last > r.end.load(std::memory_order_acquire))
      continue;
    const std::uintptr_t begin = (first + page_bytes - 1) / page_bytes * page_bytes;
    const std::uintptr_t end = last / page_bytes * page_bytes;
    if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    return;
  }
}

}  // namespace headwise
