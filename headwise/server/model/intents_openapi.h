// What openapi.json says of a recogniser's own routes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/server/model/texts_request.h"
#include "headwise/server/openapi.h"

namespace headwise::server {

/// What a service may be without: their routes are then not there.
struct Offered {
  bool report = true, explain = true;
};
OpenapiFacts intents_openapi(const TextLimits& limits, bool token, Offered offered = {});

}  // namespace headwise::server
