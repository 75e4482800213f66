// Ids a request carries through several services: its own, the caller's, and that of a trace.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "headwise/server/http/http_parser.h"

namespace headwise::server {

/// The caller's X-Request-Id where it is 1 to 128 of A-Z a-z 0-9 - _ . : else our number.
std::string request_id(const HttpRequest& request, std::uint64_t number);
/// The trace of a traceparent as W3C has it, 32 hexadecimal digits; "": there is none, or none that is right.
std::string trace_id(const HttpRequest& request);

}  // namespace headwise::server
