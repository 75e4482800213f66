// What tests of recognisers share: a folder that goes away, and the sentence of a refusal.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "headwise/base/error.h"

namespace headwise::test {

class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() / text("headwise_intent_", ::getpid(), '_', count_++)) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string at(const std::string& name) const { return (path_ / name).string(); }

 private:
  static inline int count_ = 0;
  std::filesystem::path path_;
};

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
