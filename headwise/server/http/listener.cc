#include "headwise/server/http/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "headwise/base/error.h"

namespace headwise::server {
namespace {

bool is_loopback(const sockaddr& a) {
  if (a.sa_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr) != 0;
}

/// Who a client is: its address, and the group it is counted in. A host of IPv6 has a /64 to itself.
void name_client(const sockaddr_storage& from, Arrival& a) {
  std::array<char, INET6_ADDRSTRLEN> words{};
  if (from.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(from).sin_addr, words.data(), words.size());
    a.client = a.group = words.data();
  } else if (from.ss_family == AF_INET6) {
    in6_addr address = reinterpret_cast<const sockaddr_in6&>(from).sin6_addr;
    ::inet_ntop(AF_INET6, &address, words.data(), words.size());
    a.client = words.data();
    if (IN6_IS_ADDR_V4MAPPED(&address) == 0) std::memset(address.s6_addr + 8, 0, 8);
    ::inet_ntop(AF_INET6, &address, words.data(), words.size());
    a.group = words.data();
  } else {
    a.client = a.group = "unix";
  }
}

/// A socket nobody listens at: its service was killed.
bool is_left(const sockaddr_un& a, const std::string& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0 || !S_ISSOCK(facts.st_mode)) return false;
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool refused =
      ::connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a) != 0 && errno == ECONNREFUSED;
  ::close(fd);
  return refused;
}

[[noreturn]] void failed(const std::string& address, int port, int code) {
  const char* way_out = code == EADDRINUSE ? "; choose another --port (0 takes a free one)"
                        : code == EACCES   ? "; ports below 1024 need rights: choose another --port"
                                           : "; choose another --listen";
  throw Error(ErrorKind::device, text("serve: cannot listen on ", address, " port ", port, ": ",
                                      std::generic_category().message(code), way_out));
}

}  // namespace

Arrival::~Arrival() {
  if (fd >= 0) ::close(fd);
}

Listener::Listener(const std::string& path) : local_(true), path_(path) {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  require(!path.empty() && path.size() < sizeof a.sun_path && path.find('\0') == std::string::npos,
          ErrorKind::bad_argument, "serve", "--unix \"", path, "\" has ", path.size(),
          " bytes; the name of a socket has 1 to ", sizeof a.sun_path - 1);
  std::memcpy(a.sun_path, path.data(), path.size());
  if (is_left(a, path)) ::unlink(path.c_str());
  fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int fault = fd_ < 0 ? errno : 0;
  const mode_t before = ::umask(0117);  // others may not connect; the mode is there from the first moment
  if (fault == 0 && ::bind(fd_, reinterpret_cast<const sockaddr*>(&a), sizeof a) != 0) fault = errno;
  ::umask(before);
  if (fault != 0) {
    if (fd_ >= 0) ::close(fd_);
    throw Error(
        ErrorKind::device,
        text("serve: cannot listen on ", path, ": ", std::generic_category().message(fault),
             fault == EADDRINUSE ? "; another service has it, or it is no socket: choose another --unix"
                                 : "; choose another --unix"));
  }
  spare_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

Listener::Listener(const std::string& address, int port) {
  require(port >= 0 && port <= 65535, ErrorKind::bad_argument, "serve", "--port is ", port,
          "; ports go from 1 to 65535, 0 takes a free one");
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE | AI_NUMERICSERV, hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  require(code == 0, ErrorKind::bad_argument, "serve", "--listen \"", address,
          "\" is no address; give a numeric one such as 127.0.0.1 or ::1");
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  local_ = is_loopback(*found->ai_addr);
  fd_ = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) failed(address, port, errno);
  const int on = 1;
  ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // a restart must not wait for old clients
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::bind(fd_, found->ai_addr, found->ai_addrlen) != 0 ||
      ::getsockname(fd_, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    const int fault = errno;
    ::close(fd_);
    failed(address, port, fault);
  }
  port_ = ntohs(bound.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(bound).sin_port
                                           : reinterpret_cast<sockaddr_in6&>(bound).sin6_port);
  spare_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

Listener::~Listener() {
  close();
  if (spare_ >= 0) ::close(spare_);
}

void Listener::close() {
  if (fd_ >= 0 && !path_.empty()) ::unlink(path_.c_str());
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Listener::listen() {
  // Two sockets may bind one port with SO_REUSEADDR while neither listens: the second finds out here.
  if (::listen(fd_, 1024) != 0) failed("the address", port_, errno);
}

Arrival Listener::accept() {
  Arrival a;
  sockaddr_storage from{};
  socklen_t size = sizeof from;
  a.fd = ::accept4(fd_, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (a.fd >= 0) {
    const int on = 1;
    if (path_.empty()) ::setsockopt(a.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    name_client(from, a);
  } else if (errno == EMFILE || errno == ENFILE) {
    if (spare_ >= 0) ::close(spare_);
    const int refused = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (refused >= 0) ::close(refused);
    spare_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  return a;
}

}  // namespace headwise::server
