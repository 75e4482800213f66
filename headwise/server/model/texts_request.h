// TextsRequest: the body of a request, read without trust: one text or many, and nothing it does not know.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

namespace headwise::server {

struct TextLimits {
  Index texts = 64;                    // of one request
  Index text_bytes = Index{64} << 10;  // of one text
};

struct TextsRequest {
  int status = 200;  // else the refusal's, with its code and sentence; the sentence goes to the client alone
  std::string code, message;
  std::vector<std::string> texts;
};

/// {"text": "..."} or {"texts": ["...", ...]}; UTF-8, at least one text.
TextsRequest read_texts(std::string_view body, const TextLimits& limits);

}  // namespace headwise::server
