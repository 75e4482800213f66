// HttpService: what HTTP services share: routes, limits, health, metrics, log, an end that loses nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headwise/server/door/door.h"
#include "headwise/server/http/event_loop.h"
#include "headwise/server/log.h"
#include "headwise/server/metrics.h"

namespace headwise::server {

struct HttpServiceOptions {
  DoorOptions door;
  LoopLimits loop;
  std::chrono::milliseconds deadline{10'000};  // of one request; a client may ask for a shorter one
  bool log_requests = false;
  LogFormat log_format = LogFormat::text;
  std::function<void(const std::string&)> log;  // one line, from any thread; never a request's words
  std::function<Index()> log_lines_lost;        // none: none are
};

/// One route; paths are compared whole, none is ever looked up on a disk.
struct HttpRoute {
  std::string_view path, method;
  int work = 0;  // a number of the service's own; below 0: of every service
  Door::Lock lock = Door::Lock::bearer;
  bool health = false;  // answered when all seats are taken, too
};

/// A route whose work is one of a service's own list of them.
template <class Work>
constexpr HttpRoute route(std::string_view path, std::string_view method, Work work, Door::Lock lock) {
  return {path, method, static_cast<int>(work), lock};
}

class HttpService : protected Handler {
 public:
  HttpService(const HttpService&) = delete;
  HttpService& operator=(const HttpService&) = delete;
  /// Until drained; how many requests had to be cut off.
  Index run() { return loop_.run(); }
  /// From any thread or signal handler.
  void drain() noexcept { loop_.drain(); }
  /// From any thread: these open the door from now on.
  void change_tokens(std::vector<Token> tokens) { door_.change_tokens(std::move(tokens)); }

 protected:
  /// `address` is that of the listener, as clients name it; "" where that is a file.
  HttpService(std::span<const HttpRoute> routes, Listener& listener, const std::string& address,
              HttpServiceOptions options);
  ~HttpService() override = default;

  /// The routes of every service and those of this one.
  static std::vector<HttpRoute> with_shared(std::span<const HttpRoute> own);
  const HttpRoute* find_route(std::string_view target) const;
  /// False: options leave this route out.
  virtual bool offers(const HttpRoute& route) const = 0;
  /// A request to a route of the service's own.
  virtual std::optional<HttpResponse> take_own(const HttpRoute& route, const HttpRequest& request,
                                               Ticket ticket, Clock::time_point& until) = 0;
  virtual std::string model_name() const = 0;  // JSON
  virtual HttpResponse all_numbers() const = 0;
  virtual std::string openapi() const = 0;

  std::optional<HttpResponse> take(const HttpRequest& request, Ticket ticket, Clock::time_point& until) final;
  std::optional<HttpResponse> look(const HttpRequest& request, bool spare) override;
  HttpResponse refuse(const HttpFault& fault) override;
  void sent(const Exchange& exchange) override;
  void evicted() override { metrics_.evicted(); }
  void failed(const char* what) noexcept override;

  HttpResponse numbers(Index queued_requests, Index queued_tokens) const;
  /// 429, to come again after `wait`.
  static HttpResponse busy(std::chrono::milliseconds wait);
  /// The service's own deadline or a shorter one of the client's; none: `refusal` says what is wrong with it.
  std::optional<std::chrono::milliseconds> patience(const HttpRequest& request, HttpResponse& refusal) const;
  void say(const LogLine& line) const;
  bool asks_for_token() const { return !http_.door.tokens.empty(); }

  std::vector<HttpRoute> routes_;
  HttpServiceOptions http_;
  Metrics metrics_;
  Door door_;
  EventLoop loop_;
};

/// The name stands in every answer, and JSON is UTF-8: refused where it is none.
std::string name_in_answers(std::string_view name);

}  // namespace headwise::server
