// Service: a model over HTTP: routes, limits, answers in JSON, health, metrics, and an end that loses
// nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "headwise/server/door/door.h"
#include "headwise/server/http/event_loop.h"
#include "headwise/server/model/batcher.h"
#include "headwise/server/model/texts_request.h"

namespace headwise::server {

struct ServiceOptions {
  DoorOptions door;
  LoopLimits loop;
  TextLimits texts;
  BatcherOptions batcher;
  std::chrono::milliseconds deadline{10'000};  // of one request; a client may ask for a shorter one
  std::shared_ptr<const std::string> report;   // a page; none: no such route
  bool log_requests = false;
  std::function<void(const std::string&)> log;  // one line, from any thread; never a request's words
};

/// `/v1/intents`, `/v1/explain`, `/health/live`, `/health/ready`, `/metrics` and `/report`.
class Service : private Handler {
 public:
  /// `address` is that of the listener, as clients name it. Listens; who comes before run() waits for it.
  Service(Served model, Listener& listener, const std::string& address, ServiceOptions options);

  /// Until drained; how many requests had to be cut off.
  Index run() { return loop_.run(); }
  /// From any thread or signal handler.
  void drain() noexcept { loop_.drain(); }

 private:
  std::optional<HttpResponse> look(const HttpRequest& request) override;
  std::optional<HttpResponse> take(const HttpRequest& request, Ticket ticket,
                                   Clock::time_point& until) override;
  HttpResponse late(Ticket ticket) override;
  void gone(Ticket ticket) override;
  HttpResponse refuse(const HttpFault& fault) override;
  void sent(const HttpRequest& request, std::uint64_t number, int status, Clock::duration took) override;

  HttpResponse page() const;
  HttpResponse health(bool ready) const;
  std::optional<HttpResponse> ask(const HttpRequest& request, bool explain, Ticket ticket,
                                  Clock::time_point& until);
  HttpResponse answer_of(const Outcome& outcome) const;
  HttpResponse busy() const;

  std::string name_;  // of the model, as JSON
  bool explains_;
  ServiceOptions options_;
  Metrics metrics_;
  Door door_;
  EventLoop loop_;
  Batcher batcher_;  // ends before the loop it answers through
};

}  // namespace headwise::server
