#include "headwise/server/log.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

#include "headwise/base/error.h"
#include "headwise/server/http/http_response.h"

namespace headwise::server {
namespace {

std::string time_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm t{};
  ::gmtime_r(&now.tv_sec, &t);
  char seconds[32], all[48];
  std::strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &t);
  std::snprintf(all, sizeof all, "%s.%03ldZ", seconds, now.tv_nsec / 1'000'000);
  return all;
}

}  // namespace

std::string print(LogFormat format, const LogLine& line) {
  const bool json = format == LogFormat::json;
  std::string out =
      json ? text("{\"time\": \"", time_now(), "\", \"level\": \"", line.level,
                  "\", \"message\": ", page_string(line.message))
           : text(time_now(), line.level == "info" ? " " : text(' ', line.level, ": "), line.message);
  for (const LogValue& v : line.values)
    out += json ? text(", \"", v.name, "\": ", v.number ? v.value : page_string(v.value))
                : text(' ', v.name, '=', v.value);
  return json ? out + "}" : out;
}

/// True: written, or nobody will ever read it. False: it would have to wait.
bool LogWriter::try_write(std::string_view bytes) const noexcept {
  const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0 || errno != ENOTSOCK) return sent >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  // A pipe that says it has room takes PIPE_BUF bytes at once.
  pollfd ready{fd_, POLLOUT, 0};
  if (::poll(&ready, 1, 0) <= 0) return false;
  if ((ready.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) return true;
  if ((ready.revents & POLLOUT) == 0) return false;
  [[maybe_unused]] const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
  return true;
}

void LogWriter::write(std::string_view line) noexcept {
  const std::lock_guard hold(lock_);
  try {
    std::string bytes(line.substr(0, PIPE_BUF - 80));
    bytes += '\n';
    if (lost_ > told_) {
      if (!try_write(text("(", lost_ - told_, " lines of the log were lost: its reader was too slow)\n"))) {
        ++lost_;
        return;
      }
      told_ = lost_;
    }
    if (!try_write(bytes)) ++lost_;
  } catch (const std::exception&) {
    ++lost_;
  }
}

Index LogWriter::lost() const {
  const std::lock_guard hold(lock_);
  return lost_;
}

}  // namespace headwise::server
