#include "headwise/server/model/batcher.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "headwise/base/error.h"

namespace headwise::server {
namespace {

/// Before a tokenizer has seen them: a token of Chinese has 3 bytes, one of English rather more.
Index estimated_tokens(const Job& job) {
  Index n = 0;
  for (const std::string& t : job.texts) n += 2 + static_cast<Index>(t.size()) / 3;
  return n;
}

/// 0 where the model cannot count them: it will not answer them either, and then says so.
Index counted(const Served& model, const std::vector<std::string>& texts) {
  Index n = 0;
  try {
    for (const std::string& t : texts) n += model.tokens(t);
  } catch (const std::exception&) {
    return 0;
  }
  return n;
}

Outcome refusal(int status, std::string code, std::string message) {
  Outcome o;
  o.status = status, o.code = std::move(code), o.message = std::move(message);
  return o;
}

}  // namespace

Batcher::Batcher(Served model, const BatcherOptions& options, Metrics& metrics)
    : model_(std::move(model)), options_(options), metrics_(metrics), thread_([this] { run(); }) {}

Batcher::~Batcher() {
  {
    const std::lock_guard hold(lock_);
    closing_ = true, stop_ = true;
  }
  arrived_.notify_all();
  thread_.join();
}

bool Batcher::full() const {
  const std::lock_guard hold(lock_);
  return queued_tokens_ >= options_.queue_tokens;
}

bool Batcher::submit(Job& job) {
  const Index estimate = estimated_tokens(job);
  {
    const std::lock_guard hold(lock_);
    if (closing_ || (queued_tokens_ > 0 && queued_tokens_ + estimate > options_.queue_tokens)) return false;
    queued_tokens_ += estimate;
    queue_.push_back({std::move(job), estimate, Clock::now()});
  }
  arrived_.notify_one();
  return true;
}

void Batcher::replace(Served model) {
  std::optional<Served> unused;  // one that was never taken ends here, not under the lock
  {
    const std::lock_guard hold(lock_);
    unused = std::exchange(next_model_, std::move(model));
  }
  arrived_.notify_one();
}

void Batcher::cancel(std::uint64_t id) {
  const std::lock_guard hold(lock_);
  if (explaining_ == id) stop_ = true;
  for (Waiting& w : queue_)
    if (w.job.id == id && !w.cancelled) {
      w.cancelled = true;
      queued_tokens_ -= std::exchange(w.estimate, 0);
    }
}

std::chrono::milliseconds Batcher::expected_wait() const {
  const std::lock_guard hold(lock_);
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(1e3 * seconds_per_token_ * static_cast<double>(queued_tokens_)));
}

Index Batcher::queued_requests() const {
  const std::lock_guard hold(lock_);
  return static_cast<Index>(queue_.size());
}

Index Batcher::queued_tokens() const {
  const std::lock_guard hold(lock_);
  return queued_tokens_;
}

void Batcher::run() {
  for (bool more = true; more;) {
    Batch batch;
    try {
      more = collect(batch);
      if (!batch.jobs.empty()) answer(batch);
    } catch (const std::exception&) {
      // Out of memory: who waits for these answers is told when the time is up.
    }
  }
}

bool Batcher::may_join(const Batch& batch, const Waiting& w) const {
  if (batch.jobs.empty()) return true;
  const bool alone = w.job.explain || batch.jobs.front().job.explain;
  return !alone && batch.tokens + w.tokens <= options_.batch_tokens;
}

/// False when nothing more comes.
bool Batcher::collect(Batch& batch) {
  std::unique_lock hold(lock_);
  explaining_ = 0;
  arrived_.wait(hold, [&] { return closing_ || !queue_.empty() || next_model_; });
  if (closing_) return false;
  if (next_model_) {
    Served next = std::move(*next_model_);
    next_model_.reset();
    hold.unlock();  // the old one takes its time to go
    model_ = std::move(next);
    return true;
  }
  arrived_.wait_until(hold, queue_.front().since + options_.linger,
                      [&] { return closing_ || queued_tokens_ >= options_.batch_tokens; });
  while (!closing_ && !queue_.empty()) {
    Waiting& first = queue_.front();  // stays where it is: others only push behind it
    if (first.tokens < 0 && !first.cancelled) {
      hold.unlock();  // a long text must not stop the threads that bring others
      first.tokens = counted(model_, first.job.texts);
      hold.lock();
    }
    const bool wanted = !first.cancelled && Clock::now() < first.job.deadline;
    if (wanted && !may_join(batch, first)) break;
    queued_tokens_ -= first.estimate;
    if (wanted) {
      if (first.job.explain) explaining_ = first.job.id, stop_ = false;
      batch.tokens += first.tokens, batch.estimate += first.estimate;
      batch.jobs.push_back(std::move(first));
    }
    queue_.pop_front();
  }
  return true;
}

void Batcher::answer(Batch& batch) {
  const auto most = [&](const Waiting& w) {
    return w.job.explain ? std::min(options_.explain_tokens, options_.request_tokens)
                         : options_.request_tokens;
  };
  const auto too_long = std::stable_partition(batch.jobs.begin(), batch.jobs.end(),
                                              [&](const Waiting& w) { return w.tokens <= most(w); });
  for (auto w = too_long; w != batch.jobs.end(); ++w)
    w->job.done(refusal(413, "too_many_tokens",
                        text("the request has ", w->tokens, " tokens, at most ", most(*w), " are ",
                             w->job.explain ? "explained" : "taken", "; send less text")));
  batch.jobs.erase(too_long, batch.jobs.end());
  if (batch.jobs.empty()) return;
  const auto start = Clock::now();
  std::vector<Outcome> outcomes;
  run_model(batch.jobs, outcomes);
  const Metrics::Seconds took = Clock::now() - start;
  Index texts = 0;
  for (const Waiting& w : batch.jobs) texts += static_cast<Index>(w.job.texts.size());
  // Counted before the answers leave: who has one and then reads the metrics finds himself in them.
  metrics_.batch(static_cast<Index>(batch.jobs.size()), texts, batch.tokens, took);
  for (std::size_t i = 0; i < batch.jobs.size(); ++i) batch.jobs[i].job.done(std::move(outcomes[i]));
  const double pace = took.count() / static_cast<double>(std::max(batch.estimate, Index{1}));
  const std::lock_guard hold(lock_);
  seconds_per_token_ = seconds_per_token_ == 0 ? pace : 0.8 * seconds_per_token_ + 0.2 * pace;
}

void Batcher::run_model(std::span<Waiting> jobs, std::vector<Outcome>& outcomes) {
  std::vector<std::string> answers;
  std::string fault;
  try {
    if (jobs.front().job.explain) {
      for (const std::string& t : jobs.front().job.texts) answers.push_back(model_.explain(t, stop_));
    } else {
      std::vector<std::string> texts;
      for (const Waiting& w : jobs) texts.insert(texts.end(), w.job.texts.begin(), w.job.texts.end());
      answers = model_.intents(texts);
      require(answers.size() == texts.size(), ErrorKind::bad_shape, "serve", "the model gave ",
              answers.size(), " answers to ", texts.size(), " texts");
    }
  } catch (const std::exception& e) {
    fault = e.what();
    if (fault.empty()) fault = "an exception without words";
  }
  if (!fault.empty() && jobs.size() > 1) {  // the one it failed on must not take the others with it
    for (std::size_t i = 0; i < jobs.size(); ++i) run_model(jobs.subspan(i, 1), outcomes);
    return;
  }
  auto next = answers.begin();
  for (Waiting& w : jobs) {
    Outcome o;
    if (fault.empty()) {
      const auto end = next + static_cast<std::ptrdiff_t>(w.job.texts.size());
      o.answers.assign(std::make_move_iterator(next), std::make_move_iterator(end));
      next = end, o.tokens = w.tokens;
    } else {
      o = refusal(500, "model_failed", "the model failed on this request");
      if (!w.job.explain || !stop_) o.detail = fault;
    }
    o.model = model_.name;
    outcomes.push_back(std::move(o));
  }
}

}  // namespace headwise::server
