// The words of a command line as others show them: commands, and options with their names and help.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace headwise::cli {

struct ShownOption {
  std::vector<std::string> names;  // "--out", "-o"; of a positional its word alone
  std::string takes;               // what stands behind it; empty: a flag
  std::string help;
  bool positional = false;
};

inline std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* c) { return !c->get_group().empty(); });
}

inline std::vector<ShownOption> shown_options(const CLI::App& command) {
  std::vector<ShownOption> all;
  for (const CLI::Option* o : command.get_options()) {
    if (o->get_group().empty()) continue;
    ShownOption shown{
        .names = {}, .takes = {}, .help = o->get_description(), .positional = !o->nonpositional()};
    for (const std::string& n : o->get_lnames()) shown.names.push_back("--" + n);
    for (const std::string& n : o->get_snames()) shown.names.push_back("-" + n);
    if (shown.names.empty()) shown.names.push_back(o->get_name(true));
    if (o->get_items_expected_max() > 0 && !shown.positional) shown.takes = o->get_type_name();
    all.push_back(std::move(shown));
  }
  return all;
}

}  // namespace headwise::cli
