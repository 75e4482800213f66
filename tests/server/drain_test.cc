// How a service ends: drained it loses nothing it has taken, killed it leaves nothing behind.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <optional>

#include "tests/server/harness.h"

namespace headwise::server {
namespace {

TEST(Drain, EverythingTakenIsAnswered) {
  ServiceOptions o = with_token();
  o.loop.drain_grace = 15s;
  Running service(o);
  service.facts.held = true;
  std::vector<Client> waiting;
  for (int i = 0; i < 20; ++i) {
    waiting.emplace_back(service.port());
    waiting.back().send(Ask().bytes(waiting.back().host()));
  }
  Client half(service.port()), idle(service.port()), kept(service.port());
  const std::string bytes = Ask().bytes(half.host());
  half.send(bytes.substr(0, bytes.size() - 5));
  Ask ready;
  ready.method = "GET", ready.path = "/health/ready";
  kept.send(ready.bytes(kept.host()));
  EXPECT_EQ(kept.reply().status, 200);
  ASSERT_TRUE(metrics_say(service.port(), "headwise_texts_total 0"));
  ASSERT_TRUE(becomes([&] { return service.facts.calls == 1; }));

  service.service().drain();
  EXPECT_TRUE(becomes([&] { return !Client(service.port()).connected; })) << "still takes connections";
  kept.send(ready.bytes(kept.host()));
  EXPECT_EQ(kept.reply().status, 503) << "a connection that is open may still ask";
  half.send(bytes.substr(bytes.size() - 5));
  EXPECT_FALSE(service.ended);
  service.facts.held = false;
  for (Client& c : waiting) {
    Reply r = c.reply();
    EXPECT_EQ(r.status, 200);
    EXPECT_EQ(r.headers["Connection"], "close");
    EXPECT_TRUE(c.hears_end());
  }
  EXPECT_EQ(half.reply().status, 200);
  EXPECT_TRUE(idle.hears_end());
  waiting.clear(), half.close();
  EXPECT_TRUE(becomes([&] { return service.ended.load(); }));
  EXPECT_EQ(service.cut, 0);
}

TEST(Drain, HasALimitAndSaysWhatItCut) {
  ServiceOptions o = with_token();
  o.loop.drain = 100ms;
  Running service(o);
  service.facts.held = true;
  Client c(service.port());
  c.send(Ask().bytes(c.host()));
  ASSERT_TRUE(becomes([&] { return service.facts.calls == 1; }));
  service.service().drain();
  EXPECT_TRUE(c.hears_end());
  EXPECT_TRUE(becomes([&] { return service.ended.load(); }));
  EXPECT_EQ(service.cut, 1);
  service.facts.held = false;
}

/// An explanation that would take for ever is stopped where its client is cut off; the end does not wait for
/// it.
TEST(Drain, StopsWhatNobodyHears) {
  ServiceOptions o = with_token();
  o.loop.drain = 100ms;
  std::optional<Running> service(std::in_place, o);
  service->facts.held = true;
  Client c(service->port());
  Ask a;
  a.path = "/v1/explain";
  c.send(a.bytes(c.host()));
  ASSERT_TRUE(becomes([&] { return service->facts.explaining == 1; }));
  const auto start = Clock::now();
  service->stop();
  EXPECT_EQ(service->cut, 1);
  service.reset();
  EXPECT_LT(Clock::now() - start, kPatience);
}

// Answers and the model's count agree: what was computed was heard, what was heard was computed.
TEST(Drain, UnderLoadNothingTakenIsLost) {
  Running service;
  service.facts.delay_ms = 2;
  std::atomic<int> answered{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      for (int n = 0;; ++n) {
        const std::string s = "text " + std::to_string(i) + " " + std::to_string(n);
        const Reply r = ask_text(service.port(), s);
        if (r.status == 0) return;  // the port is closed
        if (r.status == 200 && r.body.find(answer_to(s)) != std::string::npos)
          ++answered;
        else if (r.status != 429)
          ++wrong;
      }
    });
  EXPECT_TRUE(becomes([&] { return answered > 50; }));
  service.stop();
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(answered, service.facts.texts);
  EXPECT_EQ(service.cut, 0);
}

TEST(Listening, APortInUseIsOneSentence) {
  Running service;
  try {
    Listener second("127.0.0.1", service.port());
    FAIL() << "two listen on one port";
  } catch (const Error& e) {
    EXPECT_EQ(e.what(), "serve: cannot listen on 127.0.0.1 port " + std::to_string(service.port()) +
                            ": Address already in use; choose another --port (0 takes a free one)");
  }
  EXPECT_THROW(Listener("localhost", 0), Error);
  EXPECT_THROW(Listener("127.0.0.1", 65536), Error);
  EXPECT_THROW(Listener("127.0.0.1", -1), Error);
  EXPECT_TRUE(Listener("127.0.0.2", 0).local());
  EXPECT_FALSE(Listener("0.0.0.0", 0).local());
}

/// A process of its own, forked while there is one thread; it serves from start() until it is killed.
class Child {
 public:
  Child() {
    if (::pipe(to_) != 0 || ::pipe(from_) != 0 || (pid_ = ::fork()) != 0) return;
    int port = 0;
    if (::read(to_[0], &port, sizeof port) != sizeof port) ::_exit(1);
    ModelFacts facts;
    facts.delay_ms = 1;
    Listener listener("127.0.0.1", port);
    Service service(model_of(facts), listener, "127.0.0.1", with_token());
    port = listener.port();
    if (::write(from_[1], &port, sizeof port) == sizeof port) service.run();
    ::_exit(0);
  }
  ~Child() { kill(); }
  /// The port it serves on; 0 asks for a free one, and is given where it could not start.
  int start(int port) const {
    int own = 0;
    const bool told = ::write(to_[1], &port, sizeof port) == sizeof port;
    return told && ::read(from_[0], &own, sizeof own) == sizeof own ? own : 0;
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
  }

 private:
  pid_t pid_ = -1;
  int to_[2] = {-1, -1}, from_[2] = {-1, -1};
};

TEST(Kill, DuringLoadClientsHearNothingWrongAndTheNextOneServes) {
  Child first, second;
  const int port = first.start(0);
  ASSERT_NE(port, 0);
  std::atomic<int> answered{0}, wrong{0};
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      while (!end) {
        const std::string s = "text " + std::to_string(i);
        const Reply r = ask_text(port, s);
        if (r.status == 200 && r.body.find(answer_to(s)) != std::string::npos)
          ++answered;
        else if (r.status != 0 && r.status != 429)
          ++wrong;  // 0: nothing, or not all of an answer
      }
    });
  EXPECT_TRUE(becomes([&] { return answered > 20; }));
  first.kill();
  const int before = answered;
  EXPECT_EQ(second.start(port), port) << "at once, on the same port";
  EXPECT_TRUE(becomes([&] { return answered > before + 20; }));
  end = true;
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

/// Latencies in milliseconds of `n` requests, one each `gap`, each on a connection of its own.
struct Storm {
  std::vector<double> accepted, refused;
  int other = 0;
};
Storm storm(int port, int n, std::chrono::microseconds gap) {
  Storm s;
  std::mutex lock;
  std::vector<std::thread> threads;
  std::atomic<int> next{0};
  const auto start = Clock::now();
  for (int i = 0; i < 64; ++i)
    threads.emplace_back([&] {
      Client c(port);
      for (int k = next++; k < n; k = next++) {
        std::this_thread::sleep_until(start + k * gap);
        const auto asked = Clock::now();
        c.send(Ask().bytes(c.host()));
        const int status = c.reply().status;
        const double ms = std::chrono::duration<double, std::milli>(Clock::now() - asked).count();
        const std::lock_guard hold(lock);
        status == 200 ? s.accepted.push_back(ms) : status == 429 ? s.refused.push_back(ms) : void(++s.other);
      }
    });
  for (std::thread& t : threads) t.join();
  std::sort(s.accepted.begin(), s.accepted.end());
  std::sort(s.refused.begin(), s.refused.end());
  return s;
}
double part(const std::vector<double>& sorted, double p) {
  return sorted.empty() ? 0 : sorted[static_cast<std::size_t>(p * static_cast<double>(sorted.size() - 1))];
}

// A model of 4 ms a text is saturated by 250 requests a second: at ten times that, who is taken waits no
// longer than twice as long as before, and the others are told at once. Figures of a real model:
// benchmarks/serve/serve_bench.py.
TEST(Overload, TenTimesSaturation) {
  if (std::getenv("HEADWISE_SLOW") == nullptr) GTEST_SKIP() << "times are measured: HEADWISE_SLOW=1";
  ServiceOptions o = with_token();
  o.batcher.queue_tokens = 12;  // four of "hello"
  Running service(o);
  service.facts.delay_us_a_text = 4000;
  const Storm calm = storm(service.port(), 250, 4000us), wild = storm(service.port(), 5000, 400us);
  EXPECT_EQ(wild.other, 0);
  EXPECT_GT(wild.refused.size(), 3000u);
  EXPECT_LT(part(wild.refused, 0.99), 10.0);
  EXPECT_LT(part(wild.accepted, 0.99), 2 * part(calm.accepted, 0.99));
  std::printf("calm p99 %.1f ms; wild: %zu accepted p99 %.1f ms, %zu refused p99 %.2f ms\n",
              part(calm.accepted, 0.99), wild.accepted.size(), part(wild.accepted, 0.99), wild.refused.size(),
              part(wild.refused, 0.99));
}

}  // namespace
}  // namespace headwise::server
