// refusal_of: what a call is refused with, whatever its kind; EXPECT_SAYS looks for words in it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "headwise/base/error.h"

namespace headwise::test {

/// "" where nothing was thrown.
template <class F>
std::string refusal_of(F&& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace headwise::test

/// The call is refused with a sentence that holds `words`.
#define EXPECT_SAYS(call, words)                                                 \
  do {                                                                           \
    const std::string said = headwise::test::refusal_of([&] { (void)(call); });  \
    EXPECT_NE(said.find(words), std::string::npos) << "said: \"" << said << '"'; \
  } while (false)
