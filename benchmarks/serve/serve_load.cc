// headwise_serve_load: requests to a service of this machine, by the clock (open loop) or as answers come
// (closed loop); prints one JSON object. Latencies of the open loop count from the moment a request was due:
// a queue cannot hide. Usage: headwise_serve_load PORT TOKEN open RATE SECONDS | closed CONNECTIONS REQUESTS
// < texts, one a line
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <deque>
#include <iostream>
#include <random>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double ms_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}

/// One connection, kept; one request at a time.
struct Line {
  int fd = -1;
  bool busy = false;
  std::string in;
  Clock::time_point due;
};

struct Figures {
  std::vector<double> accepted, refused;  // latencies, ms
  long sent = 0, other = 0, unanswered = 0;
};

class Load {
 public:
  Load(int port, const std::string& token, std::size_t most)
      : port_(port), lines_(most), epoll_(::epoll_create1(0)) {
    for (std::string text; std::getline(std::cin, text);) {
      std::string body = "{\"text\": \"";
      for (const char c : text) (c == '"' || c == '\\') ? body += '\\', body += c : body += c;
      body += "\"}";
      requests_.push_back("POST /v1/intents HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) +
                          "\r\nAuthorization: Bearer " + token +
                          "\r\nContent-Type: application/json\r\nContent-Length: " +
                          std::to_string(body.size()) + "\r\n\r\n" + body);
    }
  }

  Figures open(double rate, double seconds) {
    std::mt19937_64 random(1);
    std::exponential_distribution<double> gap(rate);  // arrivals of a crowd: some come together
    const auto start = Clock::now();
    double next = gap(random);
    std::deque<Clock::time_point> late;  // due, and every line is busy
    const auto drained = [&] { return late.empty() && busy_ == 0; };
    while (next < seconds || !drained()) {
      const auto now = Clock::now();
      if (ms_between(start, now) > 1e3 * seconds + 15e3) break;
      for (; next < seconds && ms_between(start, now) >= 1e3 * next; next += gap(random))
        late.push_back(start +
                       std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(next)));
      while (!late.empty() && !closed_ && send(late.front())) late.pop_front();
      if (closed_) break;
      listen(next < seconds ? std::clamp(1e3 * next - ms_between(start, Clock::now()), 0.0, 5.0) : 5.0);
    }
    figures_.unanswered += static_cast<long>(late.size()) + busy_;
    return figures_;
  }

  Figures closed(long requests) {
    while (!closed_ && (figures_.sent < requests || busy_ > 0)) {
      while (figures_.sent < requests && send(Clock::now())) continue;
      listen(5);
    }
    figures_.unanswered += busy_;
    return figures_;
  }

 private:
  bool connect(Line& line) {
    line.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in a{};
    a.sin_family = AF_INET, a.sin_port = htons(static_cast<std::uint16_t>(port_));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(line.fd, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0) return drop(line), false;
    const int on = 1;
    ::setsockopt(line.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    epoll_event e{};
    e.events = EPOLLIN, e.data.ptr = &line;
    return ::epoll_ctl(epoll_, EPOLL_CTL_ADD, line.fd, &e) == 0;
  }
  void drop(Line& line) {
    if (line.fd >= 0) ::close(line.fd);
    line.fd = -1, line.in.clear();
  }

  /// False when every line is busy, or nobody listens any more.
  bool send(Clock::time_point due) {
    Line* line = nullptr;
    while (line == nullptr && !free_.empty()) line = free_.back(), free_.pop_back();
    if (line == nullptr && used_ < lines_.size()) line = &lines_[used_++];
    if (line == nullptr) return false;
    if (line->fd < 0 && !connect(*line)) return closed_ = true, false;
    const std::string& bytes = requests_[static_cast<std::size_t>(figures_.sent) % requests_.size()];
    line->due = due;
    if (::send(line->fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) {
      drop(*line), free_.push_back(line);  // closed between two requests: this one was never taken
      return true;
    }
    line->busy = true, ++busy_, ++figures_.sent;
    return true;
  }

  void listen(double ms) {
    epoll_event events[64];
    const int n = ::epoll_wait(epoll_, events, 64, static_cast<int>(std::floor(ms)));
    for (int i = 0; i < n; ++i) read(*static_cast<Line*>(events[i].data.ptr));
  }

  void read(Line& line) {
    char bytes[16384];
    const ssize_t n = ::recv(line.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n <= 0) {
      if (line.busy) line.busy = false, --busy_, ++figures_.unanswered;
      drop(line);
      free_.push_back(&line);
      return;
    }
    line.in.append(bytes, static_cast<std::size_t>(n));
    const std::size_t head = line.in.find("\r\n\r\n");
    const std::size_t field = line.in.find("Content-Length: ");
    if (head == std::string::npos || line.in.size() < head + 4 + std::stoul(line.in.substr(field + 16)))
      return;
    const std::string status = line.in.substr(9, 3);
    const double ms = ms_between(line.due, Clock::now());
    status == "200"   ? figures_.accepted.push_back(ms)
    : status == "429" ? figures_.refused.push_back(ms)
                      : void(++figures_.other);
    const bool ends = line.in.find("Connection: close") < head;
    line.busy = false, --busy_, line.in.clear();
    if (ends) drop(line);
    free_.push_back(&line);
  }

  int port_;
  std::vector<Line> lines_;
  std::vector<Line*> free_;
  std::size_t used_ = 0;
  int epoll_;
  long busy_ = 0;
  bool closed_ = false;
  std::vector<std::string> requests_;
  Figures figures_;
};

void print(const char* name, std::vector<double>& ms) {
  std::sort(ms.begin(), ms.end());
  const auto at = [&](double p) {
    return ms.empty() ? 0.0 : ms[static_cast<std::size_t>(p * static_cast<double>(ms.size() - 1))];
  };
  std::printf(
      "\"%s\": {\"count\": %zu, \"p50_ms\": %.3f, \"p95_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f}, ",
      name, ms.size(), at(.5), at(.95), at(.99), at(1));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs(
        "usage: headwise_serve_load PORT TOKEN open RATE SECONDS | closed CONNECTIONS REQUESTS < texts\n",
        stderr);
    return 2;
  }
  const bool open = std::string(argv[3]) == "open";
  const double first = std::stod(argv[4]), second = std::stod(argv[5]);
  Load load(std::stoi(argv[1]), argv[2], open ? 1000 : static_cast<std::size_t>(first));
  const auto start = Clock::now();
  Figures f = open ? load.open(first, second) : load.closed(static_cast<long>(second));
  const double seconds = ms_between(start, Clock::now()) / 1e3;
  std::printf("{");
  print("accepted", f.accepted);
  print("refused", f.refused);
  std::printf("\"sent\": %ld, \"other\": %ld, \"unanswered\": %ld, \"seconds\": %.3f}\n", f.sent, f.other,
              f.unanswered, seconds);
  return 0;
}
