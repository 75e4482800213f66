// Listener: the socket new clients come to; an address in use is one sentence.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace headwise::server {

class Listener {
 public:
  /// `address` is a numeric one, of IPv4 or IPv6; port 0 takes a free one. Bound, not yet listening.
  Listener(const std::string& address, int port);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener();

  void listen();
  /// The next client's socket, which never blocks; -1 when there is none.
  int accept();
  void close();
  int descriptor() const { return fd_; }
  int port() const { return port_; }
  bool loopback() const { return loopback_; }

 private:
  int fd_ = -1, port_ = 0;
  int spare_ =
      -1;  // given up when descriptors run out, so that a client can be turned away and not left hanging
  bool loopback_ = false;
};

}  // namespace headwise::server
