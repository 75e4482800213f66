// Status: how a run on the device ended, and which launch failed; plain, for both sides of the library.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headwise::cuda {

/// What a run reports; floor 3 turns anything but ok() into an Error. `launch` names the step that failed.
struct Status {
  const char* launch = nullptr;
  int code = 0;
  const char* words = nullptr;
  bool ok() const { return launch == nullptr; }
};

}  // namespace headwise::cuda
