// Status: how a run on the device ended, and which launch failed; plain, for both sides of the library.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/device_status.h"

namespace headwise::cuda {

using Status = DeviceStatus;

}  // namespace headwise::cuda
