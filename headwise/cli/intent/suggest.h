// headwise suggest: what to label next.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>

namespace headwise::cli {

void add_suggest(CLI::App& app, int& exit_code);

}  // namespace headwise::cli
