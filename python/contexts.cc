#include "python/contexts.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "python/values.h"

namespace headwise::python {
namespace {

namespace nb = nanobind;

constexpr std::size_t kMaxPlans = 512;

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

std::size_t mix(std::size_t seed, Index value) {
  return (seed ^ static_cast<std::size_t>(value)) * std::size_t{0x9E3779B97F4A7C15u} + (seed >> 29);
}

std::size_t hash_of(const AttentionProblem& p) {
  std::size_t h = static_cast<std::size_t>(p.dtype) + 1;
  for (Index n :
       {p.batch, p.q_tokens, p.kv_tokens, p.q_total, p.kv_total, p.heads.q.heads, p.heads.q.dim,
        p.heads.k.group, p.heads.v.group, p.heads.v.dim, p.probe.top_k, p.probe.classes, p.probe.picked})
    h = mix(h, n);
  return h;
}

}  // namespace

const AttentionPlan& PlanCache::get(const AttentionProblem& problem, int threads,
                                    const std::string& kernels) {
  const auto same = [&](const Entry& e) { return e.plan.problem() == problem && e.kernels == kernels; };
  if (last_ && same(*last_)) return last_->plan;
  const std::size_t hash = hash_of(problem);
  const auto [begin, end] = entries_.equal_range(hash);
  for (auto it = begin; it != end; ++it)
    if (same(*it->second)) return (last_ = it->second.get())->plan;
  if (entries_.size() >= kMaxPlans) {
    entries_.clear();
    last_ = nullptr;
  }
  auto entry = std::make_unique<Entry>(Entry{kernels, AttentionPlan(problem, threads, kernels)});
  last_ = entry.get();
  entries_.emplace(hash, std::move(entry));
  return last_->plan;
}

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
