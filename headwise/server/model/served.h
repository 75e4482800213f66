// Served: what the service asks of a model; a few functions, so that any model, or a test's, can stand behind
// it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

namespace headwise::server {

/// Called by one thread, one call at a time. A text's answer must not depend on the texts beside it.
struct Served {
  std::string name;
  /// How many tokens the model makes of a text: what batches and limits are counted in.
  std::function<Index(std::string_view text)> tokens;
  /// One JSON object for each text.
  std::function<std::vector<std::string>(std::span<const std::string> texts)> intents;
  /// One JSON object that says why; empty where the model cannot.
  std::function<std::string(const std::string& text)> explain;
};

}  // namespace headwise::server
