// The numbers behind option values, for the files that pose a setting.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tests/support/setting/setting.h"

namespace headwise::test {

/// The value of an option whose values are numbers.
Index number_of(const Choice& c, int option);

}  // namespace headwise::test
