// A service over a model of the test's own, in a thread, and clients that write and read bytes as they like.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "headwise/base/error.h"
#include "headwise/server/service.h"

namespace headwise::server {

using namespace std::chrono_literals;

/// How long a test waits for what has to come: a machine that is busy may stall for seconds.
inline constexpr std::chrono::milliseconds kPatience = 60s;

/// What a test sees of its model, and how long a call takes.
struct ModelFacts {
  std::atomic<int> calls{0}, texts{0}, largest{0};
  std::atomic<int> explaining{0};  // now
  std::atomic<bool> held{false};   // a call does not end while it is
  std::atomic<int> delay_ms{0};
  std::atomic<int> delay_us_a_text{0};
};

/// An answer that depends on its text alone.
inline std::string answer_to(const std::string& s) {
  return "{\"label\": " + json_string("l" + std::to_string(std::hash<std::string>{}(s) % 1000)) + "}";
}

inline Served model_of(ModelFacts& facts) {
  Served m;
  m.name = "test \"model\"";
  m.tokens = [](std::string_view s) { return static_cast<Index>(s.size() / 4 + 2); };
  m.intents = [&facts](std::span<const std::string> texts) {
    const int n = static_cast<int>(texts.size());
    ++facts.calls, facts.texts += n;
    if (n > facts.largest) facts.largest = n;
    std::this_thread::sleep_for(std::chrono::milliseconds(facts.delay_ms) +
                                std::chrono::microseconds(facts.delay_us_a_text * n));
    while (facts.held) std::this_thread::sleep_for(1ms);
    std::vector<std::string> answers;
    for (const std::string& s : texts) {
      require(s != "poison", ErrorKind::bad_argument, "model", "this text it cannot read");
      answers.push_back(answer_to(s));
    }
    return answers;
  };
  m.about = "\"labels\": [\"l1\", \"l2\"]";
  m.explain = [&facts](const std::string& s, const std::atomic<bool>& stop) {
    for (++facts.explaining; facts.held && !stop;) std::this_thread::sleep_for(1ms);
    --facts.explaining;
    require(!stop, ErrorKind::bad_argument, "model", "stopped");
    return "{\"why\": " + std::to_string(s.size()) + "}";
  };
  return m;
}

inline constexpr const char* kToken = "correct-horse-battery-staple";

inline ServiceOptions with_token() {
  ::setenv("HEADWISE_TEST_TOKEN", kToken, 1);
  ServiceOptions o;
  o.door.tokens = {Token::from_environment("HEADWISE_TEST_TOKEN")};
  // A machine that stalls loses nobody's patience; a test that is about one kind of it sets that alone.
  o.loop.patience = {.head = 1h, .body = 1h, .idle = 1h, .grace = 1h, .spare = 1h};
  o.deadline = 1h, o.loop.drain = 5min;
  return o;
}

class Running {
 public:
  explicit Running(ServiceOptions options = with_token()) : Running(options, nullptr) {}
  Running(const ServiceOptions& options, std::function<void(Served&)> change)
      : listener_("127.0.0.1", 0),
        service_(changed(change), listener_, "127.0.0.1", options),
        thread_([this] {
          cut = service_.run();
          ended = true;
        }) {}
  ~Running() { stop(); }
  void stop() {
    service_.drain();
    if (thread_.joinable()) thread_.join();
  }
  Service& service() { return service_; }
  int port() const { return listener_.port(); }

  ModelFacts facts;
  std::atomic<Index> cut{-1};
  std::atomic<bool> ended{false};

 private:
  Served changed(const std::function<void(Served&)>& change) {
    Served m = model_of(facts);
    if (change) change(m);
    return m;
  }
  Listener listener_;
  Service service_;
  std::thread thread_;
};

struct Reply {
  int status = 0;  // 0: none came
  std::map<std::string, std::string> headers;
  std::string body;
};

/// A socket; what goes wrong with it is a status of 0 or a false.
class Client {
 public:
  /// From another address of this machine where `from` names one.
  explicit Client(int port, const char* from = nullptr)
      : port_(port), fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in a{};
    if (from != nullptr) {
      a.sin_family = AF_INET, a.sin_addr.s_addr = ::inet_addr(from);
      ::bind(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a);
      a = {};
    }
    a.sin_family = AF_INET, a.sin_port = htons(static_cast<std::uint16_t>(port));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected = ::connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0;
  }
  /// At a socket in the file system.
  explicit Client(const std::string& path) : port_(0), fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    path.copy(a.sun_path, sizeof a.sun_path - 1);
    connected = ::connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0;
  }
  Client(Client&& o) noexcept
      : connected(o.connected), port_(o.port_), fd_(std::exchange(o.fd_, -1)), in_(std::move(o.in_)) {}
  ~Client() { close(); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  /// The next packet says that nobody is there any more.
  void reset() {
    const linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }
  void half_close() const { ::shutdown(fd_, SHUT_WR); }
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  /// More bytes within `patience`; false at the end, on a reset or when none came.
  bool more(std::chrono::milliseconds patience) {
    pollfd p{fd_, POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>(patience.count())) <= 0) return false;
    char bytes[4096];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n > 0) in_.append(bytes, static_cast<std::size_t>(n));
    ended = n == 0, broken = n < 0;
    return n > 0;
  }
  /// One response. `head` alone for a HEAD.
  Reply reply(std::chrono::milliseconds patience = kPatience, bool head = false) {
    Reply r;
    const auto deadline = Clock::now() + patience;
    const auto left = [&] {
      return std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    };
    std::size_t end = 0;
    while ((end = in_.find("\r\n\r\n")) == std::string::npos)
      if (left() <= 0ms || !more(left())) return r;
    std::size_t at = in_.find("\r\n") + 2;
    const int status = std::stoi(in_.substr(9, 3));
    while (at < end + 2) {
      const std::size_t colon = in_.find(": ", at), stop = in_.find("\r\n", at);
      r.headers[in_.substr(at, colon - at)] = in_.substr(colon + 2, stop - colon - 2);
      at = stop + 2;
    }
    const std::size_t length = head || status == 100 ? 0 : std::stoul(r.headers["Content-Length"]);
    while (in_.size() < end + 4 + length)
      if (left() <= 0ms || !more(left())) return r;
    r.body = in_.substr(end + 4, length), in_.erase(0, end + 4 + length), r.status = status;
    return r;
  }
  /// True when the server closes within `patience`.
  bool hears_end(std::chrono::milliseconds patience = kPatience) {
    const auto deadline = Clock::now() + patience;
    while (Clock::now() < deadline && !ended && !broken) more(20ms);
    return ended || broken;
  }
  std::string host() const { return "127.0.0.1:" + std::to_string(port_); }

  bool connected = false, ended = false, broken = false;

 private:
  int port_, fd_;
  std::string in_;
};

/// Every part can be another one, or be left out.
struct Ask {
  std::string method = "POST", path = "/v1/intents", body = "{\"text\": \"hello\"}";
  std::string host, authorization = std::string("Bearer ") + kToken, type = "application/json", more;
  bool host_left_out = false;

  std::string bytes(const std::string& own_host) const {
    std::string out = method + " " + path + " HTTP/1.1\r\n";
    if (!host_left_out) out += "Host: " + (host.empty() ? own_host : host) + "\r\n";
    if (!authorization.empty()) out += "Authorization: " + authorization + "\r\n";
    if (method == "POST") {
      if (!type.empty()) out += "Content-Type: " + type + "\r\n";
      out += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    }
    return out + more + "\r\n" + (method == "POST" ? body : "");
  }
};

inline Reply ask(int port, const Ask& a, std::chrono::milliseconds patience = kPatience) {
  Client c(port);
  c.send(a.bytes(c.host()));
  return c.reply(patience, a.method == "HEAD");
}
inline Reply ask_text(int port, const std::string& s) {
  Ask a;
  a.body = "{\"text\": " + json_string(s) + "}";
  return ask(port, a);
}

inline std::string metrics_of(int port) {
  Ask a;
  a.method = "GET", a.path = "/metrics";
  return ask(port, a).body;
}
/// Until `so`, for as long as patience lasts.
inline bool becomes(const std::function<bool()>& so) {
  for (const auto end = Clock::now() + kPatience; Clock::now() < end; std::this_thread::sleep_for(5ms))
    if (so()) return true;
  return false;
}
inline bool metrics_say(int port, const std::string& line) {
  return becomes([&] { return metrics_of(port).find(line + "\n") != std::string::npos; });
}

}  // namespace headwise::server
