// What openapi.json says of a recogniser's own routes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/server/model/texts_request.h"
#include "headwise/server/openapi.h"

namespace headwise::server {

OpenapiFacts intents_openapi(const TextLimits& limits, bool token);

}  // namespace headwise::server
