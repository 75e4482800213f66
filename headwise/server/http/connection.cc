#include "headwise/server/http/connection.h"

#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace headwise::server {
namespace {

constexpr std::size_t kThrownMost = std::size_t{4} << 20;  // bytes read from a client that was told to go
constexpr std::size_t kUnreadMost = std::size_t{1} << 20;  // bytes of a stream that wait for its reader

}  // namespace

Connection::~Connection() { ::close(fd_); }

std::uint32_t Connection::interest() const {
  const std::uint32_t hangup = ends_on_hangup ? std::uint32_t{EPOLLRDHUP} : 0;
  switch (phase) {
    case Phase::reading:
    case Phase::leaving: return EPOLLIN;
    case Phase::writing: return EPOLLOUT;
    case Phase::streaming: return hangup | (sent_ < out_.size() ? std::uint32_t{EPOLLOUT} : 0);
    // Else errors alone: a client may close its sending side and wait for its answer.
    case Phase::waiting: return hangup;
    case Phase::gone: return 0;
  }
  return 0;
}

bool Connection::read() {
  std::array<char, 16384> bytes;
  const ssize_t n = ::recv(fd_, bytes.data(), bytes.size(), 0);
  if (n < 0) {
    if (errno != EAGAIN && errno != EINTR) phase = Phase::gone;
    return true;
  }
  if (phase == Phase::leaving) {
    thrown_ += static_cast<std::size_t>(n);
    if (n == 0 || thrown_ > kThrownMost) phase = Phase::gone;
    return true;
  }
  in.append(bytes.data(), static_cast<std::size_t>(n));
  return n > 0;
}

void Connection::say_continue() {
  constexpr std::string_view kWords = "HTTP/1.1 100 Continue\r\n\r\n";
  // Nothing else is on its way to this client: a socket that cannot take 25 bytes is broken.
  if (::send(fd_, kWords.data(), kWords.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(kWords.size()))
    phase = Phase::gone;
}

void Connection::respond(const HttpResponse& response, bool keep, Clock::time_point now) {
  keep_ = keep && parser.request().keep_alive;
  out_ = print_head(response, keep_);
  page_.reset();
  if (parser.request().method != "HEAD") {
    page_ = response.page;
    if (!page_) out_ += response.body;
  }
  sent_ = 0, since = now, phase = Phase::writing;
  write(now);
}

void Connection::begin_stream(const HttpResponse& response, bool keep, Clock::time_point now) {
  chunked_ = !parser.request().http10;
  keep_ = keep && chunked_ && parser.request().keep_alive;
  out_ = print_head(response, keep_, chunked_);
  page_.reset();
  sent_ = 0, since = now, phase = Phase::streaming, stream_open = true;
  append_part(response.body, false);
  write(now);
}

void Connection::append_part(std::string_view bytes, bool last) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (chunked_ && !bytes.empty()) {
    std::string size;
    for (std::size_t n = bytes.size(); n > 0; n /= 16) size.insert(size.begin(), kDigits[n % 16]);
    out_.append(size).append("\r\n").append(bytes).append("\r\n");
  } else {
    out_ += bytes;
  }
  if (last && chunked_) out_ += "0\r\n\r\n";
}

bool Connection::add_part(std::string_view bytes, bool last, Clock::time_point now) {
  if (out_.size() - sent_ > kUnreadMost) return false;
  out_.erase(0, std::exchange(sent_, 0));
  if (out_.empty()) since = now;
  append_part(bytes, last);
  if (last) stream_open = false, phase = Phase::writing;
  write(now);
  return true;
}

void Connection::write(Clock::time_point now) {
  const std::size_t all = out_.size() + (page_ ? page_->size() : 0);
  while (sent_ < all) {
    const std::string_view rest = sent_ < out_.size() ? std::string_view(out_).substr(sent_)
                                                      : std::string_view(*page_).substr(sent_ - out_.size());
    const ssize_t n = ::send(fd_, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) phase = Phase::gone;
      return;
    }
    sent_ += static_cast<std::size_t>(n);
  }
  out_ = {}, sent_ = 0, page_.reset(), since = now;
  if (phase == Phase::streaming) return;
  if (keep_) {
    phase = Phase::reading;
    parser.next();
    return;
  }
  // Closing at once would send a reset over what the client has not read yet, were bytes of its own still
  // underway.
  ::shutdown(fd_, SHUT_WR);
  phase = Phase::leaving, in = {};
}

bool Connection::unheard() const {
  int waiting = 0;
  return phase == Phase::reading && ::ioctl(fd_, FIONREAD, &waiting) == 0 && waiting > 0;
}

bool Connection::slow(Index bytes, const Patience& patience, Clock::time_point now) const {
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(now - since);
  return took > patience.grace && bytes * 1000 < patience.least_rate * took.count();
}

int Connection::tired(const Patience& patience, Clock::time_point now) {
  const auto took = now - since;
  switch (phase) {
    case Phase::reading:
      if (spare && took > patience.spare) {
        phase = Phase::gone;
        return 0;
      }
      if (!parser.begun()) {
        if (took > patience.idle) phase = Phase::gone;
        return 0;
      }
      if (parser.stage() == HttpParser::Stage::head) return took > patience.head ? 408 : 0;
      return took > patience.body || slow(static_cast<Index>(parser.request().body.size()), patience, now)
                 ? 408
                 : 0;
    case Phase::writing:
      if (slow(static_cast<Index>(sent_), patience, now)) phase = Phase::gone;
      return 0;
    case Phase::streaming:  // what was written last may have waited long; what waits now may not
      if (sent_ < out_.size() && took > patience.body) phase = Phase::gone;
      return 0;
    case Phase::leaving:
      if (took > patience.leaving) phase = Phase::gone;
      return 0;
    case Phase::waiting:
    case Phase::gone: return 0;
  }
  return 0;
}

}  // namespace headwise::server
