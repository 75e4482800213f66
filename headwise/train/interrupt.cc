#include "headwise/train/interrupt.h"

#include <atomic>
#include <csignal>

namespace headwise {
namespace {

std::atomic<int> watching{0};
std::atomic<bool> stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // a handler may touch it
struct sigaction old_int {
}, old_term{};

void on_signal(int signal) {
  if (stop.exchange(true)) {
    ::sigaction(signal, signal == SIGINT ? &old_int : &old_term, nullptr);
    ::raise(signal);
  }
}

}  // namespace

Interrupt::Interrupt() : ours_(watching.fetch_add(1) == 0) {
  if (!ours_) return;
  stop = false;
  struct sigaction ours {};
  ours.sa_handler = on_signal;
  ::sigaction(SIGINT, &ours, &old_int);
  ::sigaction(SIGTERM, &ours, &old_term);
}
Interrupt::~Interrupt() {
  if (ours_) {
    ::sigaction(SIGINT, &old_int, nullptr);
    ::sigaction(SIGTERM, &old_term, nullptr);
  }
  watching.fetch_sub(1);
}
bool Interrupt::wished() noexcept { return stop.load(); }

}  // namespace headwise
