// Interrupt: while it lives, the first Ctrl-C is a wish to stop, the second one stops.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#pragma GCC visibility push(default)
namespace headwise {

/// One at a time in a process; SIGINT and SIGTERM have their old handlers again afterwards.
class Interrupt {
 public:
  Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt();
  static bool wished() noexcept;

 private:
  bool ours_;
};

}  // namespace headwise
#pragma GCC visibility pop
