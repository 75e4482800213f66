// What tests of recognisers share: a folder that goes away.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/base/refusal.h"

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

}  // namespace headwise::test
