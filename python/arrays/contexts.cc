#include "python/arrays/contexts.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "python/arrays/values.h"

namespace headwise::python {
namespace {

namespace nb = nanobind;

/// Never destroyed: threads may end after static objects are gone.
struct Registry {
  std::mutex mutex;
  std::vector<CallContext*> contexts;
  std::atomic<std::uint64_t> era{
      1};  // + 1 per fork, + 1 when the interpreter closes: engines of another era are not used
  std::atomic<bool> closing{false};
  std::atomic<int> flights{0};
  std::atomic<int> default_threads{0};
  std::atomic<std::uint64_t> forks{0};
};
Registry& registry() {
  static auto* r = new Registry;
  return *r;
}

}  // namespace

CallContext::CallContext(ContextOptions options) : options_(std::move(options)) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.contexts.push_back(this);
}

CallContext::~CallContext() {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  std::erase(r.contexts, this);
  stop();
}

void CallContext::stop() {
  // Workers of the parent process do not exist here: to join them would wait forever, so their memory is left
  // behind.
  if (made_at_ != 0 && made_at_ <= registry().forks.load()) (void)engine_.release();
  engine_.reset();
}

CallContext::Engine& CallContext::engine() {
  Registry& r = registry();
  const std::uint64_t era = r.era.load(std::memory_order_relaxed);
  if (made_at_ == era && engine_) [[likely]]
    return *engine_;
  stop();
  ContextOptions options = options_;
  if (r.closing.load()) options.threads = 1;
  engine_ = std::make_unique<Engine>(options);
  made_at_ = era;
  return *engine_;
}

void CallContext::set_threads(int threads) {
  if (options_.threads == threads) return;
  stop();
  options_.threads = threads;
}

CallContext& default_context() {
  thread_local CallContext context{
      ContextOptions{.threads = registry().default_threads.load(), .kernels = {}}};
  context.set_threads(registry().default_threads.load(std::memory_order_relaxed));
  return context;
}

CallContext& context_of(const char* op, nb::handle ctx) {
  if (ctx.is_none()) return default_context();
  if (!nb::isinstance<CallContext>(ctx)) refuse_type({op, "ctx"}, ctx, "a headwise.Context");
  return *nb::inst_ptr<CallContext>(ctx);
}

void set_default_threads(int threads) { registry().default_threads.store(threads); }

void watch_forks() {
  // A fork while another thread holds the registry would leave it locked in the child forever.
  pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                 [] {
                   Registry& r = registry();
                   r.forks.store(r.era.fetch_add(1));
                   r.flights.store(0);
                   r.mutex.unlock();
                 });
}

void close_contexts() {
  Registry& r = registry();
  r.closing.store(true);
  PyThreadState* state = PyEval_SaveThread();
  while (r.flights.load() != 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  PyEval_RestoreThread(state);
  const std::lock_guard lock(r.mutex);
  for (CallContext* context : r.contexts) context->stop();
  r.era.fetch_add(1);
}

Flight::Flight() {
  Registry& r = registry();
  r.flights.fetch_add(1);
  if (r.closing.load()) {
    r.flights.fetch_sub(1);
    return;  // keep the GIL
  }
  state_ = PyEval_SaveThread();
}

Flight::~Flight() {
  if (!state_) return;
  PyEval_RestoreThread(state_);
  registry().flights.fetch_sub(1);
}

}  // namespace headwise::python
