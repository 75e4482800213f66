// DeviceStatus: what starting a run on a device with streams reports; floor 3 turns anything but ok() into an
// Error.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headwise {

struct DeviceStatus {
  const char* launch = nullptr;  // the step that failed
  int code = 0;
  const char* words = nullptr;
  bool ok() const { return launch == nullptr; }
};

}  // namespace headwise
