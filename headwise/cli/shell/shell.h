// What a shell and man(1) are told of the program, made from the commands and options themselves.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace headwise::cli {

/// The page headwise(1), in man's own language.
std::string manual_page(const CLI::App& app);
/// A script that completes commands, options and file names; shell: bash, zsh or fish.
std::string completion_script(const CLI::App& app, const std::string& shell);

/// `headwise manual` and `headwise completion SHELL`.
void add_shell(CLI::App& app, int& exit_code);

}  // namespace headwise::cli
