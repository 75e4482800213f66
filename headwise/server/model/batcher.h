// Batcher: joins requests into batches for the model, in order, within a budget of tokens; refuses what would
// wait too long.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "headwise/server/clock.h"
#include "headwise/server/metrics.h"
#include "headwise/server/model/served.h"

namespace headwise::server {

struct BatcherOptions {
  Index batch_tokens = 512;                // of one call of the model; one request alone may have more
  std::chrono::microseconds linger{2000};  // how long the first of a batch waits for others
  Index queue_tokens = 512;                // waiting, estimated from bytes; an empty queue takes any request
  Index request_tokens = 8192;             // of one request, counted by the model
  Index explain_tokens = 512;              // of one to explain: every word of it costs a run of the model
};

/// How a job ended: answers in the order of its texts, or a status with its sentence.
struct Outcome {
  int status = 200;
  std::string code, message;
  std::string detail;  // for the log alone
  std::string model;   // whose answers they are
  std::vector<std::string> answers;
  Index tokens = 0;
};

struct Job {
  std::uint64_t id = 0;
  bool explain = false;
  std::vector<std::string> texts;
  Clock::time_point deadline;
  std::function<void(Outcome)> done;  // called once, on the batcher's thread, unless cancelled or too late
};

class Batcher {
 public:
  Batcher(Served model, const BatcherOptions& options, Metrics& metrics);
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;
  /// Nobody hears the answers any more: what waits is dropped, what runs is stopped where it can be.
  ~Batcher();

  /// False: the queue is full; the job is untouched.
  bool submit(Job& job);
  bool full() const;
  /// A job still waiting is left out; an explanation that runs is stopped, a batch ends unheard.
  void cancel(std::uint64_t id);
  /// From the next batch on. What runs ends with the model it began with.
  void replace(Served model);
  /// Until what waits now is done, by the pace of the last batches.
  std::chrono::milliseconds expected_wait() const;
  Index queued_requests() const;
  Index queued_tokens() const;

 private:
  struct Waiting {
    Job job;
    Index estimate = 0;  // of its tokens
    Clock::time_point since;
    Index tokens = -1;  // counted when it is its turn
    bool cancelled = false;
  };
  /// What goes to the model at once: the texts of all jobs behind each other.
  struct Batch {
    std::vector<Waiting> jobs;
    Index tokens = 0, estimate = 0;
  };
  void run();
  bool collect(Batch& batch);
  void answer(Batch& batch);
  /// One outcome a job is added, in their order.
  void run_model(std::span<Waiting> jobs, std::vector<Outcome>& outcomes);
  bool may_join(const Batch& batch, const Waiting& job) const;

  Served model_;  // the thread's
  BatcherOptions options_;
  Metrics& metrics_;
  mutable std::mutex lock_;  // of all below
  std::condition_variable arrived_;
  std::deque<Waiting> queue_;  // only the thread takes from it
  Index queued_tokens_ = 0;
  double seconds_per_token_ = 0;  // estimated ones; a moving mean
  bool closing_ = false;
  std::optional<Served> next_model_;
  std::uint64_t explaining_ = 0;  // the job that runs alone and can be stopped; 0: none
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace headwise::server
