// EventLoop: one thread that serves every connection: accepts, reads, asks the handler, writes, loses
// patience, drains.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "headwise/server/http/connection.h"
#include "headwise/server/http/listener.h"

namespace headwise::server {

/// One request that waits for its answer; never given twice.
struct Ticket {
  std::uint64_t connection = 0, number = 0;
};

/// One answer as it goes out.
struct Exchange {
  const HttpRequest& request;
  const std::string& client;
  std::string id;  // as the answer's X-Request-Id has it
  int status = 0;
  Clock::duration took;  // since the whole request was there
};

/// What the loop asks, always on its own thread.
class Handler {
 public:
  virtual ~Handler() = default;
  /// The headers are here, the body is not: a refusal, or nothing to go on. `spare`: it came when all seats
  /// were taken, and only questions about health are answered.
  virtual std::optional<HttpResponse> look(const HttpRequest& request, bool spare) = 0;
  /// The answer; or nothing, and it comes by EventLoop::answer, at the latest at `until`.
  virtual std::optional<HttpResponse> take(const HttpRequest& request, Ticket ticket,
                                           Clock::time_point& until) = 0;
  /// `until` has passed: what the client is told. The ticket is void.
  virtual HttpResponse late(Ticket ticket) = 0;
  /// The client left; the ticket is void.
  virtual void gone(Ticket ticket) = 0;
  /// What a request that cannot be read is answered.
  virtual HttpResponse refuse(const HttpFault& fault) = 0;
  virtual void sent(const Exchange& exchange) = 0;
  /// A silent connection was closed so that another client could sit down.
  virtual void evicted() = 0;
  /// One connection is given up because of what `what` says, most often memory; the others go on.
  virtual void failed(const char* what) noexcept = 0;
};

struct LoopLimits {
  HttpLimits http;
  Patience patience;
  Index connections = 1024;
  bool hangup_is_gone = false;     // a client that closes its side while it waits wants no answer any more
  Index client_connections = 512;  // of one client: see Arrival::group
  int niceness = 10;  // of the loop's thread beside the model's, so that refusals cost no answers
  Index bodies_bytes = Index{64} << 20;  // of all that are being read; at least one whole body
  std::chrono::milliseconds drain{30'000};
  std::chrono::milliseconds drain_grace{100};  // for requests on their way when draining begins
};

class EventLoop {
 public:
  EventLoop(Listener& listener, Handler& handler, const LoopLimits& limits);
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  ~EventLoop();

  /// Until drained. How many requests had to be cut off: 0 when every one was answered.
  Index run();
  /// From any thread or signal handler: no connection more, every request that has come is answered, then the
  /// end.
  void drain() noexcept;
  bool draining() const noexcept { return draining_.load(); }
  /// From any thread. A ticket that is void is ignored.
  void answer(Ticket ticket, HttpResponse response);
  /// From any thread: an answer in parts. The first brings status and headers, the others their bodies alone.
  enum class Part : std::uint8_t { first, middle, last };
  void stream(Ticket ticket, HttpResponse response, Part part);
  Index connections() const noexcept { return open_.load(); }

 private:
  void watch(Connection& c);
  void wake() const noexcept;
  void accept_some(int most);
  void seat(Arrival arrival);
  Index count_of(const std::string& group) const;
  bool make_room(const std::string& group, bool spare);
  template <class F>
  void guarded(Connection& c, F&& work) noexcept;
  void on_event(Connection& c, std::uint32_t events);
  void advance(Connection& c);
  bool head_done(Connection& c);
  void respond(Connection& c, HttpResponse response, bool keep);
  void deliver();
  void lose_patience();
  void begin_drain();
  void release(Connection& c);
  void reap(std::uint64_t id);
  bool room_for_body(Connection& c);

  Listener& listener_;
  Handler& handler_;
  LoopLimits limits_;
  int epoll_ = -1, wake_ = -1;
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::unordered_map<std::string, Index>
      groups_;  // how many of them each client has; those on spare seats not
  Index spares_ = 0;
  std::uint64_t next_id_ = 2;  // 0 and 1 are the listener and the alarm
  std::uint64_t next_number_;  // of a request; begins at random, so that logs of two runs can be told apart
  Index reserved_ = 0;
  std::atomic<Index> open_{0};
  std::atomic<bool> draining_{false};
  bool drain_begun_ = false;
  Clock::time_point drain_since_, now_;
  std::mutex lock_;
  struct Delivery {
    Ticket ticket;
    HttpResponse response;
    std::optional<Part> part;  // none: it is whole
  };
  void deliver_one(Connection& c, Delivery& delivery);
  std::vector<Delivery> answers_;
};

}  // namespace headwise::server
