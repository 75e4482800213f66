// Log: lines for people or for programs, and a writer that waits for nobody who reads them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

namespace headwise::server {

enum class LogFormat { text, json };

struct LogValue {
  std::string_view name;
  std::string value;
  bool number = false;
};

/// A message, and values that stand behind it in the text and by their names in JSON.
struct LogLine {
  std::string_view level = "info";  // info, warning or error
  std::string message;
  std::vector<LogValue> values = {};
};

/// Without its line end: `2026-01-31T12:00:00Z message`, or `{"time": ..., "level": ..., "message": ...,
/// ...}`.
std::string print(LogFormat format, const LogLine& line);

/// Writes lines to a descriptor from any thread. A reader that stops, a full pipe, costs lines and no time:
/// the next line that fits says how many were lost.
class LogWriter {
 public:
  explicit LogWriter(int fd) : fd_(fd) {}
  void write(std::string_view line) noexcept;
  Index lost() const;

 private:
  bool try_write(std::string_view bytes) const noexcept;
  const int fd_;
  mutable std::mutex lock_;
  Index lost_ = 0, told_ = 0;
};

}  // namespace headwise::server
