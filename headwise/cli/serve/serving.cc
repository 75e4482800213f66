#include "headwise/cli/serve/serving.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "headwise/base/error.h"

namespace headwise::cli {
namespace {

using server::HttpService;

std::atomic<HttpService*> running{nullptr};
std::atomic<int> alarm_fd{-1};                                  // rung by SIGHUP, and at the end
static_assert(std::atomic<HttpService*>::is_always_lock_free);  // a handler may touch it

/// The first signal drains; the handlers are gone then, and a second one, the same or not, ends the process.
void on_end(int) {
  ::signal(SIGTERM, SIG_DFL), ::signal(SIGINT, SIG_DFL);
  if (HttpService* service = running.load()) service->drain();
}

void ring() {
  const int saved = errno;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(alarm_fd.load(), &one, sizeof one);
  errno = saved;
}
void on_hangup(int) { ring(); }

}  // namespace

ProgramLog::ProgramLog(server::LogFormat format) : format_(format), writer_(STDERR_FILENO) {}

void ProgramLog::say(std::string_view level, const std::string& message) {
  write(print(format_, {.level = level, .message = message}));
}

Serving::Serving(HttpService& service, std::function<void()> reload) : reload_(std::move(reload)) {
  alarm_fd = ::eventfd(0, EFD_CLOEXEC);
  require(alarm_fd >= 0, ErrorKind::device, "serve",
          "the system gives no more file descriptors; raise its limit, ulimit -n");
  running = &service;
  thread_ = std::thread([this] { wait_for_reloads(); });
  struct sigaction end {
  }, hangup{};
  end.sa_handler = on_end, hangup.sa_handler = on_hangup;
  hangup.sa_flags = SA_RESTART;
  ::sigaddset(&end.sa_mask, SIGTERM), ::sigaddset(&end.sa_mask, SIGINT);  // one at a time
  ::sigaction(SIGTERM, &end, nullptr);
  ::sigaction(SIGINT, &end, nullptr);
  ::sigaction(SIGHUP, &hangup, nullptr);
  ::signal(SIGPIPE, SIG_IGN);  // whoever read our log may go
}

Serving::~Serving() {
  ::signal(SIGHUP, SIG_IGN);
  running = nullptr;
  ring();
  thread_.join();
  ::close(alarm_fd.exchange(-1));
}

void Serving::wait_for_reloads() {
  for (std::uint64_t count = 0;;) {
    const ssize_t n = ::read(alarm_fd.load(), &count, sizeof count);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 || running.load() == nullptr) return;
    reload_();  // several signals at once are one
  }
}

}  // namespace headwise::cli
