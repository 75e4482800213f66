// headwise checkpoint: what ranks wrote in slices, as one file.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>

namespace headwise::cli {

void add_checkpoint(CLI::App& app, int& exit_code);

}  // namespace headwise::cli
