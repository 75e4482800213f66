// Metrics: counts and times of the service as Prometheus text; names of routes and numbers, never a request's
// words.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "headwise/base/index.h"

namespace headwise::server {

/// Counts of values up to each bound, as Prometheus has them.
class Histogram {
 public:
  explicit Histogram(std::array<double, 12> bounds) : bounds_(bounds) {}
  void add(double value);
  void print(std::string& out, const std::string& name, const std::string& labels) const;

 private:
  std::array<double, 12> bounds_;
  std::array<Index, 12> within_{};
  Index count_ = 0;
  double sum_ = 0;
};

/// Of the moment; the service knows them.
struct Gauges {
  Index connections = 0, queued_requests = 0, queued_tokens = 0, log_lines_lost = 0;
  bool ready = false;
};

/// For several threads at once.
class Metrics {
 public:
  using Seconds = std::chrono::duration<double>;
  /// `route` is one of the service's own names, never a client's.
  void answered(const std::string& route, int status, Seconds took);
  void batch(Index requests, Index texts, Index tokens, Seconds took);
  /// A client that left before its answer was made or read.
  void vanished();
  /// A silent connection that was closed for another.
  void evicted();
  void failed() noexcept;
  void reloaded(bool well);
  std::string print(const Gauges& gauges) const;

 private:
  mutable std::mutex lock_;
  std::map<std::pair<std::string, int>, Index> answers_;
  std::map<std::string, Histogram> seconds_;
  Histogram batch_tokens_{{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096}};
  Histogram batch_seconds_{{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 5}};
  Index batches_requests_ = 0, texts_ = 0, tokens_ = 0, vanished_ = 0, evicted_ = 0, failed_ = 0;
  Index reloads_ = 0, failed_reloads_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace headwise::server
