// What openapi.json says of a language model's own routes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/server/completions/completion_request.h"
#include "headwise/server/openapi.h"

namespace headwise::server {

OpenapiFacts completions_openapi(const CompletionContext& context, bool token);

}  // namespace headwise::server
