#include "headwise/base/threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "headwise/base/caller_watch.h"
#include "headwise/base/error.h"
#include "headwise/base/float_env.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headwise {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
thread_local bool inside_body = false;

/// What the CallerWatch of this thread keeps.
struct Wanted {
  CallerWatch::Ask ask = nullptr;
  bool gone = false;
  std::chrono::steady_clock::time_point next;
};
thread_local Wanted wanted_here;
thread_local std::atomic<bool>* called_off_here = nullptr;  // of the call whose tasks this thread runs

/// Whether the calls of this thread are to go on.
bool goes_on() noexcept {
  constexpr auto kPause = std::chrono::milliseconds(50);
  Wanted& w = wanted_here;
  if (w.ask == nullptr) return true;
  if (w.gone) return false;
  const auto now = std::chrono::steady_clock::now();
  if (now < w.next) return true;
  w.next = now + kPause;
  w.gone = w.ask();
  return !w.gone;
}

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Spins until `ready()` or kSpin has passed; true when ready.
template <class Ready>
bool spin_until(Ready ready) {
  const auto stop = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < stop);
  return ready();
}

constexpr int kNoLimit = std::numeric_limits<int>::max();

int cpus_of(long quota, long period) {
  return quota > 0 && period > 0 ? static_cast<int>(std::min<long>((quota + period - 1) / period, kNoLimit))
                                 : kNoLimit;
}

/// The tightest CPU quota above this process. cgroup v2 says "max 100000" or "150000 100000" in each folder
/// from the process's own up to the root; v1 keeps quota and period in two files.
int quota_cpus() {
  std::string path, first;
  if (std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
      v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
      v1_quota && v1_period) {
    long quota = -1, period = 0;
    v1_quota >> quota;
    v1_period >> period;
    return cpus_of(quota, period);
  }
  std::ifstream self("/proc/self/cgroup");
  while (std::getline(self, path) && !path.starts_with("0::")) {
  }
  path = path.starts_with("0::/") ? path.substr(3) : "/";
  int cpus = kNoLimit;
  for (;;) {
    long period = 0;
    if (std::ifstream limit("/sys/fs/cgroup" + path + "/cpu.max"); limit >> first >> period && first != "max")
      cpus = std::min(cpus, cpus_of(std::strtol(first.c_str(), nullptr, 10), period));
    if (path.empty() || path == "/") return cpus;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

CallerWatch::CallerWatch(Ask ask) noexcept : before_(wanted_here.ask), gone_before_(wanted_here.gone) {
  wanted_here = {ask, false, std::chrono::steady_clock::now() + std::chrono::milliseconds(50)};
}
CallerWatch::~CallerWatch() { wanted_here.ask = before_, wanted_here.gone = gone_before_; }
bool CallerWatch::happened() const noexcept { return wanted_here.gone; }

bool still_wanted() noexcept {
  std::atomic<bool>* called_off = called_off_here;
  if (called_off != nullptr && called_off->load(std::memory_order_relaxed)) return false;
  if (goes_on()) return true;
  if (called_off != nullptr) called_off->store(true, std::memory_order_relaxed);
  return false;
}

struct ThreadPool::State {
  enum Phase : int { idle, called, running, stopped };
  struct alignas(128) Worker {
    std::atomic<int> phase{idle};
    std::atomic<bool> parked{false};
    std::mutex mutex;
    std::condition_variable wake;
    std::thread thread;
  };

  explicit State(int threads) : count(threads), workers(new Worker[static_cast<std::size_t>(threads)]) {
    int started = 1;
    try {
      for (; started < count; ++started) at(started).thread = std::thread([this, i = started] { work(i); });
    } catch (const std::system_error&) {
      finish();
      throw Error(ErrorKind::out_of_memory, text("threads: the system started ", started, " of ", count,
                                                 " threads and refused the next; ask for fewer threads"));
    }
  }
  ~State() { finish(); }
  void finish() {
    for (int i = 1; i < count; ++i) {
      const std::lock_guard lock(at(i).mutex);
      at(i).phase.store(stopped);
      at(i).wake.notify_one();
    }
    for (int i = 1; i < count; ++i)
      if (at(i).thread.joinable()) at(i).thread.join();
  }
  Worker& at(int worker) { return workers[static_cast<std::size_t>(worker)]; }

  /// Parked workers are woken as a tree, so that the caller pays for two of them, not for all.
  void wake_children(int worker) {
    for (int child = 2 * worker + 1; child <= 2 * worker + 2 && child < limit; ++child) {
      if (!at(child).parked.load()) continue;
      const std::lock_guard lock(
          at(child).mutex);  // a worker between its last look and its wait holds the mutex
      at(child).wake.notify_one();
    }
  }
  void run_tasks(int worker) {
    const FloatEnv env;
    inside_body = true;
    called_off_here = &called_off;
    for (Index t; (t = next.fetch_add(1, std::memory_order_relaxed)) < tasks && still_wanted();)
      (*body)(t, worker);
    called_off_here = nullptr;
    inside_body = false;
  }
  void work(int worker) {
    Worker& me = at(worker);
    // seq_cst: after `parked` is raised, either this look sees the call or the one who wakes sees `parked`.
    const auto wanted = [&] { return me.phase.load() != idle; };
    for (;;) {
      if (!spin_until(wanted)) {
        std::unique_lock lock(me.mutex);
        me.parked.store(true);
        me.wake.wait(lock, wanted);
        me.parked.store(false, std::memory_order_relaxed);
      }
      int phase = called;
      if (me.phase.compare_exchange_strong(phase, running, std::memory_order_acquire)) {
        wake_children(worker);
        run_tasks(worker);
        me.phase.store(idle, std::memory_order_release);
      } else if (phase == stopped) {
        return;
      }
    }
  }

  const pid_t owner = getpid();
  int count, limit = 0;
  const TaskBody* body = nullptr;
  Index tasks = 0;
  alignas(128) std::atomic<Index> next{0};
  alignas(128) std::atomic<bool> called_off{
      false};                         // only the caller's thread has a CallerWatch, and says so
  std::unique_ptr<Worker[]> workers;  // 1..count-1; 0 is the caller
};

ThreadPool::ThreadPool(int threads) {
  require(threads >= 1, ErrorKind::bad_argument, "threads", "got ", threads,
          "; the caller counts, so give 1 or more");
  state_ = new State(threads);
}
ThreadPool::~ThreadPool() {
  if (state_ && state_->owner == getpid()) delete state_;  // in a forked child there is nobody to join
}
ThreadPool::ThreadPool(ThreadPool&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
ThreadPool& ThreadPool::operator=(ThreadPool&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
int ThreadPool::threads() const noexcept { return state_->count; }

void ThreadPool::parallel_for(Index tasks, TaskBody body, int threads) noexcept {
  State& s = *state_;
  const Index wanted = std::min<Index>(threads > 0 ? threads : s.count, tasks);
  const int limit = static_cast<int>(std::min<Index>(wanted, s.count));
  if (inside_body || limit <= 1) {
    const FloatEnv env;
    const bool outer = std::exchange(inside_body, true);
    for (Index t = 0; t < tasks && still_wanted(); ++t) body(t, 0);
    inside_body = outer;
    return;
  }
  if (!goes_on()) return;  // what earlier calls should have written is not there
  s.body = &body;
  s.tasks = tasks;
  s.limit = limit;
  s.next.store(0, std::memory_order_relaxed);
  s.called_off.store(false, std::memory_order_relaxed);
  for (int i = 1; i < limit; ++i) s.at(i).phase.store(State::called);
  s.wake_children(0);
  s.run_tasks(0);
  for (int i = 1; i < limit; ++i) {
    auto& phase = s.at(i).phase;
    // Who has not begun by now finds no task left: call it off rather than wait for it to wake up.
    int seen = State::called;
    if (phase.compare_exchange_strong(seen, State::idle, std::memory_order_acq_rel)) continue;
    // It finishes within one task of the caller; yield for when there are more threads than CPUs.
    while (!spin_until([&] { return phase.load(std::memory_order_acquire) == State::idle; }))
      std::this_thread::yield();
  }
}

void ThreadPool::after_fork() {
  const int threads = state_->count;
  // The child has no workers; joining or destroying the old state would wait for them forever.
  state_ = new State(threads);
}

int ThreadPool::available() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int allowed = sched_getaffinity(0, sizeof(set), &set) == 0
                          ? CPU_COUNT(&set)
                          : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, std::min(allowed, quota_cpus()));
}

}  // namespace headwise
