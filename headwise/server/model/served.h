// Served: what the service asks of a model; a few functions, so that any model, or a test's, can stand behind
// it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
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
  /// What GET /v1/labels says of it beside the name: members of a JSON object, `"labels": [...]` among them.
  std::string about = "\"labels\": []";
  /// How many tokens the model makes of a text: what batches and limits are counted in.
  std::function<Index(std::string_view text)> tokens;
  /// One JSON object for each text.
  std::function<std::vector<std::string>(std::span<const std::string> texts)> intents;
  /// One JSON object that says why; empty where the model cannot. It throws soon after `stop` is set: nobody
  /// waits for it any more.
  std::function<std::string(const std::string& text, const std::atomic<bool>& stop)> explain;
};

}  // namespace headwise::server
