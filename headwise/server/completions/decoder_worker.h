// DecoderWorker: one thread that reads requests, steps the generator for all texts and answers.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "headwise/base/context.h"
#include "headwise/decoder/decoder_host.h"
#include "headwise/server/clock.h"
#include "headwise/server/completions/completion_writer.h"
#include "headwise/server/http/event_loop.h"

namespace headwise::server {

struct DecoderWorkerOptions {
  CompletionLimits limits;
  Index queue_requests = 64;                // that wait or run; above it 429
  std::chrono::milliseconds quiet{15'000};  // a stream that has nothing to say says so this often
};

/// A request, and where its answer goes: whole, or in parts.
struct DecoderJob {
  std::uint64_t id = 0;
  CompletionKind kind = CompletionKind::text;
  std::string body;
  Clock::time_point deadline;
  std::function<void(HttpResponse, std::optional<EventLoop::Part>)> reply;  // on the worker's thread
};

/// Counts of the moment, and since the start.
struct DecoderCounts {
  Index requests = 0;  // that wait or run
  GeneratorStats generator;
  KvStats cache;
};

class DecoderWorker {
 public:
  DecoderWorker(std::unique_ptr<DecoderHost> host, std::string name, int threads,
                const DecoderWorkerOptions& options);
  DecoderWorker(const DecoderWorker&) = delete;
  DecoderWorker& operator=(const DecoderWorker&) = delete;
  /// Nobody hears the answers any more.
  ~DecoderWorker();

  /// False: too many wait; the job is untouched.
  bool submit(DecoderJob& job);
  /// Its pages are free after the next step. A job that ended is none.
  void cancel(std::uint64_t id);
  DecoderCounts counts() const;
  /// What bodies are read against: the same from beginning to end.
  const CompletionContext& context() const { return context_; }

 private:
  struct Answering {
    DecoderJob job;
    CompletionRequest request;
    CompletionWriter writer;
    std::vector<RequestId> ids;  // that still run
    std::map<RequestId, std::size_t> choices;
    bool begun = false;  // its stream
    Clock::time_point heard;
  };
  using Running = std::map<std::uint64_t, Answering>;
  void run();
  bool collect(std::vector<DecoderJob>& jobs, std::vector<std::uint64_t>& gone);
  void begin(DecoderJob job);
  void step();
  void take(const GenerateEvent& event);
  void say(Answering& a, std::string bytes, bool last);
  void fail(Answering& a, const CompletionFault& fault);
  void finish(Running::iterator at);
  void look_at_clocks();
  std::string heads_answer(const Answering& a);
  std::string means(const std::vector<HeadStats>& rows, std::size_t from, std::size_t to) const;

  std::unique_ptr<DecoderHost> host_;
  std::optional<ChatTemplate> chat_;
  CompletionContext context_;
  Context ctx_;
  DecoderWorkerOptions options_;
  Running running_;
  std::map<RequestId, std::uint64_t> jobs_;  // of requests
  mutable std::mutex lock_;                  // of all below
  std::condition_variable arrived_;
  std::deque<DecoderJob> queue_;
  std::vector<std::uint64_t> gone_;
  DecoderCounts counts_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace headwise::server
