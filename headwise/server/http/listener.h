// Listener: the socket new clients come to, of an address or of a file; an address in use is one sentence.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <utility>

namespace headwise::server {

/// A client that came in, with its socket, which never blocks; fd -1: there is none.
struct Arrival {
  Arrival() = default;
  Arrival(Arrival&& o) noexcept
      : fd(std::exchange(o.fd, -1)), client(std::move(o.client)), group(std::move(o.group)) {}
  Arrival& operator=(Arrival&&) = delete;
  ~Arrival();
  /// Whoever takes it closes it.
  int take() { return std::exchange(fd, -1); }

  int fd = -1;
  std::string client;  // its address as the log has it; "unix" behind a file
  std::string group;   // those counted as one: the address, of IPv6 its /64
};

class Listener {
 public:
  /// `address` is a numeric one, of IPv4 or IPv6; port 0 takes a free one. Bound, not yet listening.
  Listener(const std::string& address, int port);
  /// A socket in the file system, which its owner and group may use. What a dead service left there is
  /// replaced; a file of anything else is refused.
  explicit Listener(const std::string& path);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener();

  void listen();
  Arrival accept();
  void close();
  int descriptor() const { return fd_; }
  int port() const { return port_; }
  /// No other machine can reach it.
  bool local() const { return local_; }
  /// Of a file: "" otherwise.
  const std::string& path() const { return path_; }

 private:
  int fd_ = -1, port_ = 0;
  int spare_ =
      -1;  // given up when descriptors run out, so that a client can be turned away and not left hanging
  bool local_ = false;
  std::string path_;
};

}  // namespace headwise::server
