// openapi.json: every route of the service with what it takes and gives, for programs that read such things.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/base/index.h"

namespace headwise::server {

struct OpenapiFacts {
  Index texts = 0, text_bytes = 0;  // of one request; of one text
  bool token = true;                // whether one is asked for
};

/// A document of OpenAPI 3.1.
std::string openapi_text(const OpenapiFacts& facts);

}  // namespace headwise::server
