#include "headwise/server/http/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
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

[[noreturn]] void failed(const std::string& address, int port, int code) {
  const char* way_out = code == EADDRINUSE ? "; choose another --port (0 takes a free one)"
                        : code == EACCES   ? "; ports below 1024 need rights: choose another --port"
                                           : "; choose another --listen";
  throw Error(ErrorKind::device, text("serve: cannot listen on ", address, " port ", port, ": ",
                                      std::generic_category().message(code), way_out));
}

}  // namespace

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
  loopback_ = is_loopback(*found->ai_addr);
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
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Listener::listen() {
  // Two sockets may bind one port with SO_REUSEADDR while neither listens: the second finds out here.
  if (::listen(fd_, 1024) != 0) failed("the address", port_, errno);
}

int Listener::accept() {
  const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
  }
  if (errno == EMFILE || errno == ENFILE) {
    if (spare_ >= 0) ::close(spare_);
    const int refused = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (refused >= 0) ::close(refused);
    spare_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  return -1;
}

}  // namespace headwise::server
