// explain_model: bytes, arithmetic and roof of one step of a language model, from its sizes alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/base/dtype.h"

namespace headwise::cli {

struct ModelStep {
  std::string model, dtype = "stored", kv_dtype = "f32";
  Index context = 1024, batch = 1;
  double read_gbytes = 0, peak_gflops = 0;  // of the machine; 0: measured
  int threads = 0;
  bool json = false;
};

int explain_model(const ModelStep& step);

}  // namespace headwise::cli
