#include "headwise/server/completions/decoder_worker.h"

#include <algorithm>

#include "headwise/base/error.h"

namespace headwise::server {
namespace {

HttpResponse refusal_of(const CompletionFault& fault) {
  HttpResponse r;
  r.status = fault.status;
  r.body = error_json(fault) + "\n";
  return r;
}

}  // namespace

DecoderWorker::DecoderWorker(std::unique_ptr<DecoderHost> host, std::string name, int threads,
                             const DecoderWorkerOptions& options)
    : host_(std::move(host)),
      chat_(ChatTemplate::find(host_->chat_template())),
      ctx_({.threads = threads}),
      options_(options) {
  context_.model = std::move(name);
  context_.tokenizer = host_->tokenizer();
  context_.chat = chat_ ? &*chat_ : nullptr;
  context_.positions = host_->model().config().positions;
  context_.vocabulary = host_->model().config().vocabulary;
  context_.limits = options.limits;
  counts_.cache = host_->cache().stats();
  thread_ = std::thread([this] { run(); });
}

DecoderWorker::~DecoderWorker() {
  {
    const std::lock_guard hold(lock_);
    closing_ = true;
  }
  arrived_.notify_all();
  thread_.join();
}

bool DecoderWorker::submit(DecoderJob& job) {
  {
    const std::lock_guard hold(lock_);
    if (closing_ || counts_.requests >= options_.queue_requests) return false;
    ++counts_.requests;
    queue_.push_back(std::move(job));
  }
  arrived_.notify_one();
  return true;
}

void DecoderWorker::cancel(std::uint64_t id) {
  {
    const std::lock_guard hold(lock_);
    gone_.push_back(id);
  }
  arrived_.notify_one();
}

DecoderCounts DecoderWorker::counts() const {
  const std::lock_guard hold(lock_);
  return counts_;
}

/// What came since; waits while nothing runs. False: the end.
bool DecoderWorker::collect(std::vector<DecoderJob>& jobs, std::vector<std::uint64_t>& gone) {
  std::unique_lock hold(lock_);
  counts_.requests = static_cast<Index>(running_.size() + queue_.size());
  counts_.generator = host_->generator().stats();
  counts_.cache = host_->cache().stats();
  if (running_.empty()) arrived_.wait(hold, [&] { return closing_ || !queue_.empty() || !gone_.empty(); });
  jobs.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(queue_.end()));
  queue_.clear();
  gone.swap(gone_);
  return !closing_;
}

void DecoderWorker::run() {
  std::vector<DecoderJob> jobs;
  std::vector<std::uint64_t> gone;
  while (gone.clear(), collect(jobs, gone)) {
    for (DecoderJob& job : jobs)
      if (std::find(gone.begin(), gone.end(), job.id) == gone.end()) begin(std::move(job));
    for (const std::uint64_t id : gone)
      if (const auto at = running_.find(id); at != running_.end()) finish(at);
    look_at_clocks();
    step();
  }
}

void DecoderWorker::begin(DecoderJob job) {
  CompletionFault fault;
  std::vector<RequestId> ids;
  try {
    if (job.kind == CompletionKind::heads) host_->require_alone();
    CompletionRequest request = read_completion(job.body, job.kind, context_);
    job.body = {};
    for (const GenerateRequest& r : request.requests) ids.push_back(host_->add(r));
    const std::uint64_t id = job.id;
    CompletionWriter writer(request, context_.tokenizer, context_.model, id);
    Answering& a =
        running_
            .emplace(id,
                     Answering{
                         std::move(job), std::move(request), std::move(writer), ids, {}, false, Clock::now()})
            .first->second;
    for (std::size_t i = 0; i < ids.size(); ++i) a.choices[ids[i]] = i, jobs_[ids[i]] = id;
    return;
  } catch (const CompletionFault& f) {
    fault = f;
  } catch (const Error& e) {
    fault = {400, "bad_request", e.what(), ""};
  } catch (const std::exception& e) {
    fault = {503, "busy", "there is no memory for this request; come again later", ""};
  }
  host_->drop(ids);
  job.reply(refusal_of(fault), std::nullopt);
}

void DecoderWorker::step() {
  std::vector<RequestId> all;
  for (const auto& [id, a] : running_) all.insert(all.end(), a.ids.begin(), a.ids.end());
  CompletionFault fault{500, "model_failed", "", ""};
  try {
    // With nothing to do, what was cancelled still ends here.
    for (const GenerateEvent& e : host_->next(all, ctx_)) take(e);
    return;
  } catch (const std::exception& e) {
    fault.message = e.what();
  }
  while (!running_.empty()) {
    fail(running_.begin()->second, fault);
    finish(running_.begin());
  }
}

void DecoderWorker::say(Answering& a, std::string bytes, bool last) {
  if (bytes.empty() && !last) return;
  HttpResponse r;
  r.type = "text/event-stream; charset=utf-8";
  r.body = std::move(bytes);
  a.heard = Clock::now();
  if (!a.begun) a.job.reply(r, EventLoop::Part::first);
  if (!std::exchange(a.begun, true)) r.body.clear();
  if (last || !r.body.empty())
    a.job.reply(std::move(r), last ? EventLoop::Part::last : EventLoop::Part::middle);
}

void DecoderWorker::fail(Answering& a, const CompletionFault& fault) {
  if (a.begun)
    say(a, CompletionWriter::error_event(fault), true);
  else
    a.job.reply(refusal_of(fault), std::nullopt);
}

void DecoderWorker::take(const GenerateEvent& e) {
  const auto owner = jobs_.find(e.id);
  if (owner == jobs_.end()) return;
  const auto at = running_.find(owner->second);
  Answering& a = at->second;
  if (e.finish != Finish::none) {
    std::erase(a.ids, e.id);
    jobs_.erase(owner);
  }
  if (e.finish == Finish::error) {
    fail(a, {500, "model_failed", e.error, ""});
    return finish(at);
  }
  const std::string bytes = a.writer.take(a.choices.at(e.id), e);
  if (a.request.stream) say(a, bytes, false);
  if (!a.writer.done()) return;
  if (a.request.stream) {
    say(a, a.writer.last_events(), true);
  } else {
    HttpResponse r;
    try {
      r.body = a.request.kind == CompletionKind::heads ? heads_answer(a) : a.writer.whole();
    } catch (const Error& error) {
      r = refusal_of({503, "busy", error.what(), ""});
    }
    a.job.reply(std::move(r), std::nullopt);
  }
  finish(at);
}

/// Whatever of it still runs is ended; nobody is told.
void DecoderWorker::finish(Running::iterator at) {
  host_->drop(at->second.ids);
  for (const RequestId id : at->second.ids) jobs_.erase(id);
  running_.erase(at);
}

void DecoderWorker::look_at_clocks() {
  const auto now = Clock::now();
  for (auto at = running_.begin(); at != running_.end();) {
    const auto here = at++;
    Answering& a = here->second;
    if (now >= a.job.deadline) {
      fail(a, {504, "too_late", "the answer was not ready in time", ""});
      finish(here);
    } else if (a.begun && now - a.heard >= options_.quiet) {
      say(a, ": waiting\n\n", false);
    }
  }
}

/// [layers [heads]] of entropy, top_weight and first_mass: means over the rows [from, to).
std::string DecoderWorker::means(const std::vector<HeadStats>& rows, std::size_t from, std::size_t to) const {
  const auto heads = static_cast<std::size_t>(host_->model().config().heads);
  const auto table = [&](std::vector<float> HeadStats::*part) {
    std::string out;
    const std::size_t all = (rows[0].*part).size();
    for (std::size_t i = 0; i < all; ++i) {
      double sum = 0;
      for (std::size_t r = from; r < to; ++r) sum += static_cast<double>((rows[r].*part)[i]);
      out += (i % heads != 0 ? ", " : i == 0 ? "[" : "], [");
      out += json_number(static_cast<float>(sum / static_cast<double>(to - from)));
    }
    return "[" + out + "]]";
  };
  return text("{\"entropy\": ", table(&HeadStats::entropy),
              ", \"top_weight\": ", table(&HeadStats::top_weight),
              ", \"first_mass\": ", table(&HeadStats::first_mass), "}");
}

std::string DecoderWorker::heads_answer(const Answering& a) {
  std::vector<TokenId> ids = a.request.requests[0].prompt;
  const std::size_t prompt = ids.size();
  ids.insert(ids.end(), a.writer.tokens().begin(), a.writer.tokens().end());
  const DecoderConfig& c = host_->model().config();
  if (static_cast<Index>(ids.size()) > c.positions) ids.pop_back();  // the last was drawn, not read
  const std::vector<HeadStats> rows = host_->rows(ids, {.heads = true}, ctx_).heads;
  std::string tokens, each;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    TextStream stream;
    std::string piece = context_.tokenizer == nullptr
                            ? ""
                            : stream.push(context_.tokenizer->bytes_after(i == 0 ? -1 : ids[i - 1], ids[i]));
    piece += stream.finish();
    tokens += text(i == 0 ? "" : ", ", "{\"id\": ", ids[i], ", \"text\": ", page_string(piece), "}");
    if (a.request.per_token) each += (i == 0 ? "" : ", ") + means(rows, i, i + 1);
  }
  return text("{\"model\": ", page_string(context_.model), ", \"text\": ", page_string(a.writer.text()),
              ", \"finish_reason\": \"", name_of(a.writer.finish()), "\", \"layers\": ", c.layers,
              ", \"heads\": ", c.heads, ", \"prompt_tokens\": ", prompt, ", \"tokens\": [", tokens,
              "], \"prompt\": ", means(rows, 0, prompt),
              ", \"continuation\": ", ids.size() > prompt ? means(rows, prompt, ids.size()) : "null",
              a.request.per_token ? ", \"per_token\": [" + each + "]" : "", "}\n");
}

}  // namespace headwise::server
