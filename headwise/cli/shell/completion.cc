#include <fmt/format.h>

#include "headwise/cli/args/args.h"
#include "headwise/cli/shell/shell.h"
#include "headwise/cli/shell/words.h"

namespace headwise::cli {
namespace {

/// One line a command: its name, a colon, its options.
std::string option_words(const CLI::App& command) {
  std::string out;
  for (const ShownOption& o : shown_options(command))
    if (!o.positional)
      for (const std::string& n : o.names) out += (out.empty() ? "" : " ") + n;
  return out;
}

std::string bash(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* c : commands_of(app)) {
    names += (names.empty() ? "" : " ") + c->get_name();
    cases += fmt::format("    {}) words=\"{}\" ;;\n", c->get_name(), option_words(*c));
  }
  return fmt::format(
      "# Completion of headwise for bash: source it, or put it into bash-completion's folder.\n"
      "_headwise() {{\n"
      "  local words=\"\" word=\"${{COMP_WORDS[COMP_CWORD]}}\"\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"{} {}\" -- \"$word\")\n"
      "    return\n"
      "  fi\n"
      "  case \"${{COMP_WORDS[1]}}\" in\n{}  esac\n"
      "  case \"$word\" in\n"
      "    -*) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\") ;;\n"
      "    *) mapfile -t COMPREPLY < <(compgen -f -- \"$word\") ;;\n"
      "  esac\n"
      "}}\n"
      "complete -o filenames -F _headwise headwise\n",
      names, option_words(app), cases);
}

/// A text inside of single quotes.
std::string quoted(const std::string& plain, bool colons) {
  std::string out;
  for (const char c : plain) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (c == '\n') break;
    if (colons && (c == ':' || c == '[' || c == ']')) out += '\\';
    out += c;
  }
  return "'" + out + "'";
}

std::string zsh(const CLI::App& app) {
  std::string names, cases;
  for (const CLI::App* c : commands_of(app)) {
    names += "    " + quoted(c->get_name() + ":" + c->get_description(), false) + "\n";
    cases += fmt::format("    {}) _arguments '*:file:_files'", c->get_name());
    for (const ShownOption& o : shown_options(*c))
      for (const std::string& n : o.names)
        if (!o.positional)
          cases += " \\\n      " + quoted(n, false) + quoted("[", false) + quoted(o.help, true) +
                   quoted(o.takes.empty() ? "]" : "]:value:_files", false);
    cases += " ;;\n";
  }
  return fmt::format(
      "#compdef headwise\n"
      "# Completion of headwise for zsh: a file named _headwise in a folder of $fpath.\n"
      "_headwise() {{\n"
      "  local -a commands=(\n{}  )\n"
      "  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
      "  case $words[2] in\n{}  esac\n"
      "}}\n"
      "_headwise \"$@\"\n",
      names, cases);
}

std::string fish(const CLI::App& app) {
  std::string out =
      "# Completion of headwise for fish: a file headwise.fish in ~/.config/fish/completions.\n";
  for (const CLI::App* c : commands_of(app)) {
    out += fmt::format("complete -c headwise -n __fish_use_subcommand -a {} -d {}\n", c->get_name(),
                       quoted(c->get_description(), false));
    for (const ShownOption& o : shown_options(*c)) {
      if (o.positional) continue;
      out += fmt::format("complete -c headwise -n '__fish_seen_subcommand_from {}'", c->get_name());
      for (const std::string& n : o.names)
        out += n.starts_with("--") ? " -l " + n.substr(2) : " -s " + n.substr(1);
      out += fmt::format("{} -d {}\n", o.takes.empty() ? "" : " -r", quoted(o.help, false));
    }
  }
  return out;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  return shell == "bash" ? bash(app) : shell == "zsh" ? zsh(app) : fish(app);
}

void add_shell(CLI::App& app, int& exit_code) {
  CLI::App* manual = app.add_subcommand("manual", "The manual page, for man -l -");
  manual->callback([&app, &exit_code] {
    fmt::print("{}", manual_page(app));
    exit_code = kDone;
  });
  CLI::App* completion = app.add_subcommand("completion", "A script that completes commands in a shell");
  const auto shell = std::make_shared<std::string>();
  completion->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->callback([&app, &exit_code, shell] {
    fmt::print("{}", completion_script(app, *shell));
    exit_code = kDone;
  });
}

}  // namespace headwise::cli
