// Room: while it lives, the double of a device holds at most so many buffers.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdlib>
#include <string>

namespace headwise::fake {

/// All that are held count, those from before too.
class Room {
 public:
  explicit Room(int buffers) { setenv("HEADWISE_FAKE_BUFFERS", std::to_string(buffers).c_str(), 1); }
  ~Room() { unsetenv("HEADWISE_FAKE_BUFFERS"); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
};

}  // namespace headwise::fake
