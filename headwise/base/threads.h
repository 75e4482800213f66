// ThreadPool: parallel_for over numbered tasks. Which worker runs a task never changes its result.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// A borrowed callable (task, worker): no allocation, must outlive the call.
class TaskBody {
 public:
  template <class F>
  TaskBody(const F& f)  // NOLINT: a callable is a body
      : object_(&f), call_([](const void* o, Index task, int worker) noexcept {
          (*static_cast<const F*>(o))(task, worker);
        }) {}
  void operator()(Index task, int worker) const noexcept { call_(object_, task, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, Index, int) noexcept;
};

class ThreadPool {
 public:
  /// threads >= 1, the caller included: threads - 1 workers are started.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(ThreadPool&&) noexcept;
  ThreadPool& operator=(ThreadPool&&) noexcept;

  int threads() const noexcept;
  /// Runs tasks 0..tasks-1, in ascending order of start, on at most `threads` threads (0: all); returns when
  /// all are done. Every thread runs with round-to-nearest and denormals kept; the caller's floating
  /// environment is restored. A call from inside a body runs inline, as worker 0 of its own.
  void parallel_for(Index tasks, TaskBody body, int threads = 0) noexcept;
  /// After fork() in the child: the workers are gone; forget them (their memory is left) and start new ones.
  void after_fork();

  /// CPUs this process may use: affinity mask and cgroup quota, at least 1.
  static int available();

 private:
  struct State;
  State* state_ = nullptr;
};

}  // namespace headwise
#pragma GCC visibility pop
