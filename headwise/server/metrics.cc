#include "headwise/server/metrics.h"

#include <charconv>

#include "headwise/base/error.h"
#include "headwise/base/version.h"
#include "headwise/server/process_metrics.h"

namespace headwise::server {
namespace {

void header(std::string& out, std::string_view name, std::string_view kind, std::string_view help) {
  out += text("# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n");
}

/// A sum of days must still grow by milliseconds: the six digits of a stream do not show them.
std::string digits_of(double x) {
  char out[32];  // the shortest that reads back as x takes 24 at most
  return {out, std::to_chars(out, out + sizeof out, x).ptr};
}

template <class T>
void value(std::string& out, std::string_view name, std::string_view kind, std::string_view help, T number) {
  header(out, name, kind, help);
  out += text(name, " ", number, "\n");
}

}  // namespace

void Histogram::add(double v) {
  for (std::size_t i = 0; i < bounds_.size(); ++i) within_[i] += v <= bounds_[i];
  ++count_, sum_ += v;
}

void Histogram::print(std::string& out, const std::string& name, const std::string& labels) const {
  const std::string comma = labels.empty() ? "" : labels + ",";
  const std::string braces = labels.empty() ? "" : "{" + labels + "}";
  for (std::size_t i = 0; i < bounds_.size(); ++i)
    out += text(name, "_bucket{", comma, "le=\"", bounds_[i], "\"} ", within_[i], "\n");
  out += text(name, "_bucket{", comma, "le=\"+Inf\"} ", count_, "\n", name, "_sum", braces, " ",
              digits_of(sum_), "\n", name, "_count", braces, " ", count_, "\n");
}

void Metrics::answered(const std::string& route, int status, Seconds took) {
  const std::lock_guard hold(lock_);
  ++answers_[{route, status}];
  constexpr std::array<double, 12> kBounds = {.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 10};
  seconds_.try_emplace(route, kBounds).first->second.add(took.count());
}

void Metrics::batch(Index requests, Index texts, Index tokens, Seconds took) {
  const std::lock_guard hold(lock_);
  batches_requests_ += requests, texts_ += texts, tokens_ += tokens;
  batch_tokens_.add(static_cast<double>(tokens));
  batch_seconds_.add(took.count());
}

void Metrics::vanished() {
  const std::lock_guard hold(lock_);
  ++vanished_;
}

void Metrics::evicted() {
  const std::lock_guard hold(lock_);
  ++evicted_;
}

void Metrics::failed() noexcept {
  const std::lock_guard hold(lock_);
  ++failed_;
}

void Metrics::reloaded(bool well) {
  const std::lock_guard hold(lock_);
  ++(well ? reloads_ : failed_reloads_);
}

std::string Metrics::print(const Gauges& g) const {
  std::string out;
  const std::lock_guard hold(lock_);
  const Seconds up = std::chrono::steady_clock::now() - start_;
  header(out, "headwise_build_info", "gauge", "The version that runs.");
  out += text("headwise_build_info{version=\"", kVersion, "\"} 1\n");
  value(out, "headwise_uptime_seconds", "gauge", "Since the start.", digits_of(up.count()));
  value(out, "headwise_ready", "gauge", "1 while requests are taken.", g.ready ? 1 : 0);
  value(out, "headwise_connections", "gauge", "Open now.", g.connections);
  value(out, "headwise_queue_requests", "gauge", "Waiting for the model.", g.queued_requests);
  value(out, "headwise_queue_tokens", "gauge", "Their tokens, estimated from bytes.", g.queued_tokens);
  value(out, "headwise_resident_bytes", "gauge", "Memory of the process.", resident_bytes());
  header(out, "headwise_responses_total", "counter", "By route and status.");
  for (const auto& [key, count] : answers_)
    out +=
        text("headwise_responses_total{route=\"", key.first, "\",status=\"", key.second, "\"} ", count, "\n");
  value(out, "headwise_vanished_total", "counter", "Clients that left before their answer.", vanished_);
  value(out, "headwise_evicted_total", "counter", "Silent connections closed for others.", evicted_);
  value(out, "headwise_failures_total", "counter", "Connections given up, most often for want of memory.",
        failed_);
  value(out, "headwise_log_lines_lost_total", "counter", "Lines nobody read in time.", g.log_lines_lost);
  header(out, "headwise_reloads_total", "counter", "Models loaded by SIGHUP, and those that could not be.");
  out += text("headwise_reloads_total{result=\"loaded\"} ", reloads_,
              "\nheadwise_reloads_total{result=\"failed\"} ", failed_reloads_, "\n");
  value(out, "headwise_joined_requests_total", "counter", "Requests the model has answered.",
        batches_requests_);
  value(out, "headwise_texts_total", "counter", "Texts the model has answered.", texts_);
  value(out, "headwise_tokens_total", "counter", "Tokens the model has read.", tokens_);
  header(out, "headwise_request_seconds", "histogram", "From the last byte of a request to its answer.");
  for (const auto& [route, histogram] : seconds_)
    histogram.print(out, "headwise_request_seconds", "route=\"" + route + "\"");
  header(out, "headwise_batch_tokens", "histogram", "Tokens of one call of the model.");
  batch_tokens_.print(out, "headwise_batch_tokens", "");
  header(out, "headwise_batch_seconds", "histogram", "Time of one call of the model.");
  batch_seconds_.print(out, "headwise_batch_seconds", "");
  print_process_metrics(out);
  return out;
}

}  // namespace headwise::server
