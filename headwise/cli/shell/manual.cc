#include <CLI/CLI.hpp>

#include "headwise/base/version.h"
#include "headwise/cli/shell/shell.h"
#include "headwise/cli/shell/words.h"

namespace headwise::cli {
namespace {

/// Text as man reads it: no line may begin with a dot or a quote, and a minus stays a minus.
std::string roff(const std::string& plain) {
  std::string out;
  for (const char c : plain) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string options_of(const CLI::App& command) {
  std::string out;
  for (const ShownOption& o : shown_options(command)) {
    std::string names;
    for (const std::string& n : o.names) names += (names.empty() ? "" : ", ") + n;
    out +=
        ".TP\n\\fB" + roff(names) + "\\fR" + (o.takes.empty() ? "" : " \\fI" + roff(o.takes) + "\\fR") + "\n";
    out += roff(o.help) + "\n";
  }
  return out;
}

}  // namespace

std::string manual_page(const CLI::App& app) {
  std::string out = std::string(".TH HEADWISE 1 \"\" \"headwise ") + kVersion + "\" \"headwise\"\n";
  out += ".SH NAME\nheadwise \\- multi\\-head attention in which the head is the unit\n";
  out += ".SH SYNOPSIS\n.B headwise\n.I command\n.RI [ option ...]\n";
  out += ".SH DESCRIPTION\n" + roff(app.get_description()) + "\n";
  out += ".SH COMMANDS\n";
  for (const CLI::App* c : commands_of(app))
    out += ".SS headwise " + roff(c->get_name()) + "\n" + roff(c->get_description()) + "\n" + options_of(*c);
  out += ".SH EXIT STATUS\n.TP\n0\ndone\n.TP\n1\nan error; stderr holds one sentence\n.TP\n2\nwrong use\n";
  return out;
}

}  // namespace headwise::cli
