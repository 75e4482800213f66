// Clients that are slow, silent, gone, too many or liars: none of them costs another one its answer.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <optional>

#include "tests/server/harness.h"

namespace headwise::server {
namespace {

ServiceOptions at_once() {
  ServiceOptions o = with_token();
  o.batcher.linger = 0ms;
  return o;
}

/// Patience of one kind in milliseconds, so that losing it takes a test no longer; a busy machine, which
/// keeps clients waiting too, loses none of the others.
ServiceOptions hasty(std::chrono::milliseconds Patience::*kind, std::chrono::milliseconds most) {
  ServiceOptions o = at_once();
  o.loop.patience.*kind = most;
  return o;
}

std::string head_with_length(int port, std::size_t length) {
  return "POST /v1/intents HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) +
         "\r\nAuthorization: Bearer " + kToken +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(length) + "\r\n\r\n";
}

bool serves(int port) { return ask_text(port, "still there").status == 200; }

TEST(Clients, SlowHeadersEndInTime) {
  Running service(hasty(&Patience::head, 150ms));
  Client c(service.port());
  const std::string bytes = Ask().bytes(c.host());
  c.send(bytes.substr(0, bytes.find("\r\n") + 2) + "X: ");
  while (!c.ended && c.send("x") && !c.more(5ms)) continue;  // always something, never its end
  EXPECT_EQ(c.reply().status, 408);
  EXPECT_TRUE(c.hears_end());
  EXPECT_TRUE(serves(service.port()));
}

TEST(Clients, SilentOnesAreClosedWithoutAWord) {
  Running service(hasty(&Patience::idle, 200ms));
  Client c(service.port());
  EXPECT_EQ(c.reply().status, 0);
  EXPECT_TRUE(c.ended);
  std::optional<Client> idle;  // one whose question was in time
  EXPECT_TRUE(becomes([&] {
    idle.emplace(service.port());
    idle->send(Ask().bytes(idle->host()));
    return idle->reply().status == 200;
  }));
  EXPECT_TRUE(idle->hears_end());
}

TEST(Clients, SlowBodiesEndInTime) {
  ServiceOptions o = hasty(&Patience::grace, 100ms);
  o.loop.patience.least_rate = 1000;
  Running service(o);
  Client slow(service.port());  // at most 100 bytes a second where 1000 are asked
  slow.send(head_with_length(service.port(), 1000));
  while (slow.send("x") && !slow.more(10ms)) continue;
  EXPECT_EQ(slow.reply().status, 408);
  EXPECT_TRUE(serves(service.port()));
}

TEST(Clients, LongBodiesEndInTime) {
  Running service(hasty(&Patience::body, 400ms));  // quick enough at every moment, and without an end
  Client c(service.port());
  c.send(head_with_length(service.port(), 1 << 20));
  while (c.send(std::string(100, 'x')) && !c.more(10ms)) continue;
  EXPECT_EQ(c.reply().status, 408);
}

TEST(Clients, SlowReadersAreLeft) {
  ServiceOptions o = hasty(&Patience::grace, 100ms);
  o.report = std::make_shared<const std::string>(std::size_t{32} << 20, 'x');  // more than sockets hold
  o.loop.patience.least_rate = Index{1} << 30;
  Running service(o);
  Client c(service.port());
  Ask a;
  a.method = "GET", a.path = "/report";
  c.send(a.bytes(c.host()));
  std::this_thread::sleep_for(300ms);
  EXPECT_TRUE(serves(service.port()));
  EXPECT_TRUE(c.hears_end());
}

TEST(Clients, ALongPageArrivesWhole) {
  ServiceOptions o = with_token();
  std::string page;
  while (page.size() < std::size_t{8} << 20) page += std::to_string(page.size()) + " ";
  o.report = std::make_shared<const std::string>(page);
  Running service(o);
  Ask a;
  a.method = "GET", a.path = "/report";
  EXPECT_TRUE(ask(service.port(), a).body == page);
}

TEST(Clients, VanishAtEveryByte) {
  Running service(at_once());
  const std::string bytes = Ask().bytes("127.0.0.1:" + std::to_string(service.port()));
  for (std::size_t i = 0; i <= bytes.size(); ++i) {
    Client c(service.port());
    c.send(std::string_view(bytes).substr(0, i));
    i % 2 == 0 ? c.reset() : c.close();
  }
  EXPECT_TRUE(serves(service.port()));
}

TEST(Clients, AJobWhoseClientVanishedIsNotRun) {
  Running service(at_once());
  service.facts.held = true;
  Client first(service.port());
  first.send(Ask().bytes(first.host()));
  ASSERT_TRUE(becomes([&] { return service.facts.calls == 1; }));
  std::vector<Client> others;
  for (int i = 0; i < 5; ++i) {
    others.emplace_back(service.port());
    others.back().send(Ask().bytes(others.back().host()));
  }
  ASSERT_TRUE(metrics_say(service.port(), "headwise_queue_requests 5"));
  for (Client& c : others) c.reset();
  EXPECT_TRUE(metrics_say(service.port(), "headwise_vanished_total 5"));
  service.facts.held = false;
  EXPECT_EQ(first.reply().status, 200);
  EXPECT_TRUE(serves(service.port()));
  EXPECT_EQ(service.facts.texts, 2) << "the five were asked of the model";
}

TEST(Clients, ABodyThatLiesAboutItsLength) {
  Running service(hasty(&Patience::body, 2s));
  Client less(service.port());  // says more than it sends, and closes its side
  less.send(head_with_length(service.port(), 100) + "{\"text\": \"a\"}");
  less.half_close();
  EXPECT_EQ(less.reply().status, 400);
  Client waits(service.port());  // the same, and waits
  waits.send(head_with_length(service.port(), 100) + "{\"text\": \"a\"}");
  EXPECT_EQ(waits.reply().status, 408);
  Client more(service.port());  // says less: the rest is no request
  const std::string body = "{\"text\": \"a\"}";
  more.send(head_with_length(service.port(), body.size()) + body + "GARBAGE\r\n\r\n");
  EXPECT_EQ(more.reply().status, 200);
  EXPECT_EQ(more.reply().status, 400);
  EXPECT_TRUE(more.hears_end());
  EXPECT_EQ(service.facts.calls, 1);
}

TEST(Clients, AClosedSendingSideStillHearsItsAnswer) {
  Running service(at_once());
  service.facts.delay_ms = 50;
  Client c(service.port());
  c.send(Ask().bytes(c.host()));
  c.half_close();
  EXPECT_EQ(c.reply().status, 200);
}

TEST(Clients, MalformedOnesAreToldAndClosed) {
  Running service(at_once());
  const std::string start = "POST /v1/intents HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(service.port()) +
                            "\r\nAuthorization: Bearer " + kToken + "\r\nContent-Type: application/json\r\n";
  std::string many = start;
  for (int i = 0; i < 100; ++i) many += "X-" + std::to_string(i) + ": x\r\n";
  std::string tiny = start + "Transfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 10'001; ++i) tiny += "1\r\n \r\n";
  const struct {
    std::string bytes;
    int status;
  } cases[] = {
      {start +
           "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
       400},
      {start + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {start + "Transfer-Encoding: chunked\r\n\r\n5;x\r\n", 400},
      {start + "Content-Length: 1073741824\r\n\r\n" + std::string(1 << 20, 'x'), 413},
      {many + "\r\n", 431},
      {start + "X: " + std::string(100'000, 'x'), 431},
      {"GET /" + std::string(100'000, 'x'), 414},
      {tiny, 413},
      {std::string("\x16\x03\x01\x02\x00\x01", 6), 400},
  };
  for (const auto& c : cases) {
    Client client(service.port());
    client.send(c.bytes);
    EXPECT_EQ(client.reply().status, c.status) << c.bytes.substr(0, 300);
    EXPECT_TRUE(client.hears_end());
  }
  EXPECT_EQ(service.facts.calls, 0);
  EXPECT_TRUE(serves(service.port()));
}

Ask live() {
  Ask a;
  a.method = "GET", a.path = "/health/live", a.authorization = "";
  return a;
}

/// Clients whose requests the model holds: they cannot be asked to go.
std::vector<Client> busy_ones(Running& service, int n) {
  service.facts.held = true;
  std::vector<Client> clients;
  for (int i = 0; i < n; ++i) {
    clients.emplace_back(service.port());
    clients.back().send(Ask().bytes(clients.back().host()));
  }
  EXPECT_TRUE(becomes([&] { return service.facts.calls == 1; }));
  return clients;
}

TEST(Clients, SilentOnesGiveUpTheirSeats) {
  ServiceOptions o = with_token();
  o.loop.connections = 8;
  Running service(o);
  std::vector<Client> silent;
  for (int i = 0; i < 7; ++i) silent.emplace_back(service.port());
  Client half(service.port());
  half.send("GET /health");
  std::this_thread::sleep_for(30ms);
  std::vector<Client> kept;
  for (int i = 0; i < 8; ++i) {
    kept.emplace_back(service.port());
    kept.back().send(Ask().bytes(kept.back().host()));
    EXPECT_EQ(kept.back().reply().status, 200) << i << ": its seat waited for patience to end";
  }
  for (Client& c : silent) EXPECT_TRUE(c.hears_end());
  EXPECT_TRUE(half.hears_end());
}

TEST(Clients, TooManyAreTurnedAwayButHealthIsAnswered) {
  ServiceOptions o = with_token();
  o.loop.connections = 8, o.batcher.linger = 0ms;
  Running service(o);
  std::vector<Client> clients = busy_ones(service, 8);
  Client ninth(service.port());
  ninth.send(Ask().bytes(ninth.host()));
  const Reply r = ninth.reply();
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.headers.at("Retry-After"), "1");
  EXPECT_TRUE(ninth.hears_end());
  std::vector<Client> crowd;  // on the spare seats, and silent
  for (int i = 0; i < 100; ++i) crowd.emplace_back(service.port());
  EXPECT_TRUE(
      becomes([&] { return ask(service.port(), live()).status == 200; }));  // on the seat of a silent one
  service.facts.held = false;
  for (Client& c : clients) EXPECT_EQ(c.reply().status, 200) << "one that was in before";
  EXPECT_TRUE(becomes([&] { return serves(service.port()); }));
}

/// A machine that stalls finds all of them at once: whose question lies in the socket was not silent.
TEST(Clients, WhoHasAskedKeepsItsSeatBeforeItIsRead) {
  ServiceOptions o = with_token();
  o.loop.connections = 8, o.batcher.linger = 0ms;
  ModelFacts facts;
  Listener listener("127.0.0.1", 0);
  Service service(model_of(facts), listener, "127.0.0.1", o);
  std::vector<Client> clients;
  for (int i = 0; i < 9; ++i) {
    clients.emplace_back(listener.port());
    clients.back().send(Ask().bytes(clients.back().host()));
  }
  std::thread loop([&] { service.run(); });
  for (int i = 0; i < 8; ++i) EXPECT_EQ(clients[static_cast<std::size_t>(i)].reply().status, 200) << i;
  EXPECT_EQ(clients.back().reply().status, 503);
  service.drain();
  loop.join();
}

TEST(Clients, OneAddressHasALimit) {
  ServiceOptions o = with_token();
  o.loop.client_connections = 4, o.batcher.linger = 0ms;
  Running service(o);
  std::vector<Client> clients = busy_ones(service, 4);
  EXPECT_EQ(ask_text(service.port(), "a fifth").status, 503);
  Client other(service.port(), "127.0.0.9");
  other.send(Ask().bytes(other.host()));
  service.facts.held = false;
  EXPECT_EQ(other.reply().status, 200) << "another client pays for it";
  for (Client& c : clients) EXPECT_EQ(c.reply().status, 200);
}

/// Seats are taken from whom has most of them.
TEST(Clients, ACrowdMakesRoomBeforeAnother) {
  ServiceOptions o = with_token();
  o.loop.connections = 8;
  Running service(o);
  Client quiet(service.port(), "127.0.0.9");
  quiet.send(Ask().bytes(quiet.host()));
  EXPECT_EQ(quiet.reply().status, 200);
  std::vector<Client> crowd;
  for (int i = 0; i < 40; ++i) crowd.emplace_back(service.port());
  EXPECT_TRUE(metrics_say(service.port(), "headwise_connections 8"));
  quiet.send(Ask().bytes(quiet.host()));
  EXPECT_EQ(quiet.reply().status, 200) << "the oldest was closed, not one of the crowd";
}

TEST(Clients, BodiesHaveOneMemoryForAll) {
  ServiceOptions o = with_token();
  o.loop.bodies_bytes = o.loop.http.body_bytes = 1000;
  Running service(o);
  Client first(service.port()), second(service.port());
  first.send(head_with_length(service.port(), 600));
  std::this_thread::sleep_for(30ms);
  second.send(head_with_length(service.port(), 600));
  EXPECT_EQ(second.reply().status, 503);
  first.close();
  Ask a;
  a.body = "{\"text\": \"" + std::string(580, 'a') + "\"}";
  EXPECT_TRUE(becomes([&] { return ask(service.port(), a).status == 200; }));
}

TEST(Clients, DescriptorsRunOutAndComeBack) {
  Running service;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 64;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> hoard;
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) hoard.push_back(fd);
  ::close(hoard.back());  // one is left, and the client takes it
  hoard.pop_back();
  Client turned_away(service.port());
  ASSERT_TRUE(turned_away.connected);
  EXPECT_TRUE(turned_away.hears_end()) << "left hanging";
  for (const int fd : hoard) ::close(fd);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(serves(service.port()));
}

}  // namespace
}  // namespace headwise::server
