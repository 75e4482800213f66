// A recogniser behind the service: its predictions and explanations as JSON, with the bits of predict.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>

#include "headwise/intent/recognizer/recognizer.h"
#include "headwise/server/model/served.h"

namespace headwise::server {

struct IntentModelOptions {
  std::string name;  // as answers give it
  int threads = 0;   // as in ContextOptions
  Index top = 5;     // labels of an answer with their probabilities, best first
};

/// The recogniser is in memory: a folder that changes or goes away afterwards changes no answer.
Served serve_recognizer(std::shared_ptr<const Recognizer> recognizer, const IntentModelOptions& options);

}  // namespace headwise::server
