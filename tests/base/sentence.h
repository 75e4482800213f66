// sentence_of: the literal sentence of the Error a call throws, after checking its kind.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "headwise/base/error.h"

namespace headwise {

template <class F>
std::string sentence_of(ErrorKind kind, F&& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << e.what();
    return e.what();
  }
  return "(nothing was thrown)";
}

}  // namespace headwise
