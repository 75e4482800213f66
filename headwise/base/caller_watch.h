// CallerWatch: a question that long runs ask between tasks: is their result still wanted?
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headwise {

/// While one lives, pools ask on this thread, at most every 50 ms. After a "no" they begin no further task of
/// this thread's calls, and what those calls wrote means nothing.
class CallerWatch {
 public:
  /// true: the result is not wanted any more.
  using Ask = bool (*)() noexcept;
  explicit CallerWatch(Ask ask) noexcept;
  ~CallerWatch();
  CallerWatch(const CallerWatch&) = delete;
  CallerWatch& operator=(const CallerWatch&) = delete;
  bool happened() const noexcept;

 private:
  Ask before_;
  bool gone_before_;
};

/// Inside a task: whether anybody still waits for the call it belongs to. A long task asks between its
/// pieces; after a "no" it ends, and what it wrote means nothing.
bool still_wanted() noexcept;

}  // namespace headwise
