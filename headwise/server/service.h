// Service: a model over HTTP: routes, limits, answers in JSON, health, metrics, another model without a gap,
// and an end that loses nothing. SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "headwise/server/door/door.h"
#include "headwise/server/http/event_loop.h"
#include "headwise/server/log.h"
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
  LogFormat log_format = LogFormat::text;
  std::function<void(const std::string&)> log;  // one line, from any thread; never a request's words
  std::function<Index()> log_lines_lost;        // none: none are
};

/// One route as openapi.json names it too.
struct RouteName {
  std::string_view path, method;
};

/// What is served: see kRoutes in service.cc and openapi.cc.
class Service : private Handler {
 public:
  /// `address` is that of the listener, as clients name it; "" where that is a file. Listens; who comes
  /// before run() waits for it.
  Service(Served model, Listener& listener, const std::string& address, ServiceOptions options);

  /// Every route there is, also those that options leave out.
  static std::vector<RouteName> routes();
  /// Until drained; how many requests had to be cut off.
  Index run() { return loop_.run(); }
  /// From any thread or signal handler.
  void drain() noexcept { loop_.drain(); }
  /// From any thread: the next batch is answered by this model. Requests that wait stay.
  void replace(Served model);
  /// A model that was asked for could not be loaded: counted.
  void replacement_failed() { metrics_.reloaded(false); }
  /// From any thread: these open the door from now on.
  void change_tokens(std::vector<Token> tokens) { door_.change_tokens(std::move(tokens)); }

 private:
  /// What answers say of the model.
  struct Facts {
    std::string name, about;  // JSON
    bool explains = false;
  };
  static Facts facts_of(const Served& model);
  Facts facts() const;

  std::optional<HttpResponse> look(const HttpRequest& request, bool spare) override;
  std::optional<HttpResponse> take(const HttpRequest& request, Ticket ticket,
                                   Clock::time_point& until) override;
  HttpResponse late(Ticket ticket) override;
  void gone(Ticket ticket) override;
  HttpResponse refuse(const HttpFault& fault) override;
  void sent(const Exchange& exchange) override;
  void evicted() override { metrics_.evicted(); }
  void failed(const char* what) noexcept override;

  HttpResponse page() const;
  HttpResponse health(bool ready) const;
  HttpResponse labels() const;
  HttpResponse numbers() const;
  std::optional<HttpResponse> ask(const HttpRequest& request, bool explain, Ticket ticket,
                                  Clock::time_point& until);
  HttpResponse answer_of(const Outcome& outcome) const;
  HttpResponse busy() const;
  void say(const LogLine& line) const;

  mutable std::mutex lock_;  // of the facts
  Facts facts_;
  ServiceOptions options_;
  Metrics metrics_;
  Door door_;
  EventLoop loop_;
  Batcher batcher_;  // ends before the loop it answers through
};

}  // namespace headwise::server
