// serve_view: attention on this machine, at an address with a token of its own, until Ctrl-C.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>

#include "headwise/view/deep/deep_map.h"

namespace headwise::cli {

/// `map` null: the page alone is served, and the token is a browser's password.
int serve_view(std::string page, std::unique_ptr<DeepMap> map, int port);

}  // namespace headwise::cli
