// Serving: a running service: signals end it or bring the next model; its log never waits.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "headwise/server/http_service.h"

namespace headwise::cli {

/// The log of the program: stderr, as text or JSON.
class ProgramLog {
 public:
  explicit ProgramLog(server::LogFormat format);
  void say(std::string_view level, const std::string& message);
  void write(const std::string& line) { writer_.write(line); }
  Index lost() const { return writer_.lost(); }
  server::LogFormat format() const { return format_; }

 private:
  server::LogFormat format_;
  server::LogWriter writer_;
};

/// While it lives, SIGTERM and SIGINT drain the service, a second one ends the process, and SIGHUP calls
/// `reload` on a thread of its own: requests are answered meanwhile. One at a time in a process.
class Serving {
 public:
  Serving(server::HttpService& service, std::function<void()> reload);
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  ~Serving();

 private:
  void wait_for_reloads();
  std::function<void()> reload_;
  std::thread thread_;
};

}  // namespace headwise::cli
