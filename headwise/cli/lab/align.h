// headwise align: which word is whose translation.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>

namespace headwise::cli {

void add_align(CLI::App& app, int& exit_code);

}  // namespace headwise::cli
