// The loop alone, with handlers that run out of memory: it costs a connection, never the loop.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/server/http/event_loop.h"

#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <new>

#include "tests/server/harness.h"

namespace headwise::server {
namespace {

class Poor : public Handler {
 public:
  std::optional<HttpResponse> look(const HttpRequest& r, bool) override {
    if (r.target == "/look") throw std::bad_alloc();
    return std::nullopt;
  }
  std::optional<HttpResponse> take(const HttpRequest& r, Ticket, Clock::time_point& until) override {
    if (r.target == "/take") throw std::bad_alloc();
    if (r.target == "/late") return until = Clock::now(), std::nullopt;
    niceness = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)));
    return HttpResponse{};
  }
  HttpResponse late(Ticket) override { throw Error(ErrorKind::out_of_memory, "no memory"); }
  void gone(Ticket) override { ++lost; }
  HttpResponse refuse(const HttpFault& fault) override {
    if (refuses_fail) throw std::bad_alloc();
    return error_response(fault.status, "busy", fault.words);
  }
  void sent(const Exchange&) override {}
  void evicted() override {}
  void failed(const char*) noexcept override { ++failures; }

  std::atomic<int> failures{0}, lost{0}, niceness{0};
  std::atomic<bool> refuses_fail{false};
};

TEST(EventLoop, MemoryThatRunsOutCostsOneConnection) {
  Listener listener("127.0.0.1", 0);
  Poor handler;
  EventLoop loop(listener, handler, {});
  listener.listen();
  std::thread thread([&] { loop.run(); });
  const auto get = [&](const char* path) {
    Ask a;
    a.method = "GET", a.path = path;
    return ask(listener.port(), a);
  };
  EXPECT_EQ(get("/look").status, 503);
  EXPECT_EQ(get("/take").status, 503);
  EXPECT_EQ(get("/late").status, 503);
  EXPECT_EQ(handler.failures, 3);
  EXPECT_EQ(handler.lost, 1) << "whoever waits for the answer is told";
  handler.refuses_fail = true;  // not even a refusal can be made: closed
  EXPECT_EQ(get("/take").status, 0);
  EXPECT_EQ(get("/").status, 200);
  // Refusing must not take the model's time where both share a CPU.
  EXPECT_EQ(handler.niceness, std::min(19, ::getpriority(PRIO_PROCESS, 0) + LoopLimits().niceness));
  loop.drain();
  thread.join();
}

}  // namespace
}  // namespace headwise::server
