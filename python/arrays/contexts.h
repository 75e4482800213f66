// Contexts of Python callers: one default per thread, made again after fork, joined before exit, each with
// its plans.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "headwise/base/context.h"
#include "python/arrays/plans.h"

namespace headwise::python {

/// What hw.Context holds and what each thread has by default. Callers take turns on it.
class CallContext {
 public:
  explicit CallContext(ContextOptions options);
  ~CallContext();
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  /// What runs: made on first use, again after a fork, without workers once the interpreter closes.
  struct Engine {
    explicit Engine(const ContextOptions& options) : context(options) {}
    Context context;
    PlanCache<AttentionPlan, AttentionProblem> plans;
    PlanCache<BackwardPlan, BackwardProblem> backward_plans;
    std::mutex turn;
  };
  Engine& engine();
  /// Joins the workers; the next use makes them again.
  void stop();
  const ContextOptions& options() const { return options_; }
  void set_threads(int threads);

 private:
  ContextOptions options_;
  std::unique_ptr<Engine> engine_;
  std::uint64_t made_at_ = 0;  // the process and phase the engine belongs to
};

/// The calling thread's own context.
CallContext& default_context();
/// The context of a ctx= argument; None stands for the default one.
CallContext& context_of(const char* op, nanobind::handle ctx);
/// For every thread's default context, from its next call on; 0: as HEADWISE_THREADS or the CPUs say.
void set_default_threads(int threads);

/// Registers the fork handlers; call once. close_contexts joins every worker and is run at interpreter exit.
void watch_forks();
void close_contexts();

/// Runs `f` without the GIL. Calls under way are counted: closing waits for them, because a thread that comes
/// back from here after the interpreter is gone would be ended inside C++ frames.
class Flight {
 public:
  Flight();
  ~Flight();
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

/// Holds a context's turn; waits for it without the GIL.
class Turn {
 public:
  explicit Turn(std::mutex& m) : mutex_(m) {
    if (mutex_.try_lock()) return;
    const Flight waiting;
    mutex_.lock();
  }
  ~Turn() { mutex_.unlock(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::mutex& mutex_;
};

/// f(context) in its turn, without the GIL.
template <class F>
void run_alone(CallContext& context, F&& f) {
  CallContext::Engine& engine = context.engine();
  const Turn turn(engine.turn);
  const Flight without_gil;
  f(engine.context);
}

}  // namespace headwise::python
