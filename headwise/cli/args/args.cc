#include "headwise/cli/args/args.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>

namespace headwise::cli {

Paint Paint::for_stdout() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool dumb = term != nullptr && std::string_view(term) == "dumb";
  return Paint(isatty(STDOUT_FILENO) != 0 && !(no_color != nullptr && *no_color != '\0') && !dumb);
}

std::string Paint::wrapped(const char* code, std::string_view s) const {
  return on_ ? text("\033[", code, "m", s, "\033[0m") : std::string(s);
}

std::string Paint::shade(double share, std::string_view s) const {
  if (share >= 0.5) return wrapped("1;30;42", s);
  if (share >= 0.2) return wrapped("32", s);
  if (share <= -0.5) return wrapped("1;37;41", s);
  return share <= -0.2 ? wrapped("31", s) : std::string(s);
}

CLI::Validator size_check(Index least, Index most) {
  return {[least, most](const std::string& given) {
            Index n = -1;
            return CLI::detail::lexical_cast(given, n) && least <= n && n <= most
                       ? std::string()
                       : text('"', given, "\" is no whole number from ", least, " to ", most);
          },
          ""};
}

DType parse_dtype(const std::string& name) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::f64})
    if (name == name_of(t)) return t;
  throw Error(ErrorKind::bad_argument,
              text("--dtype: \"", name, "\" is no float type; use f32, bf16, f16 or f64"));
}

namespace {

constexpr std::string_view kProbes = "rows, top<k>, classes<n>, columns, picked<n> or scores=<stage>";

/// The number behind `word`, or -1 when `item` does not begin with it.
Index number_after(std::string_view item, std::string_view word) {
  if (!item.starts_with(word)) return -1;
  item.remove_prefix(word.size());
  Index n = -1;
  const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), n);
  require(error == std::errc() && end == item.data() + item.size() && n > 0, ErrorKind::bad_argument,
          "--probe", "\"", word, item, "\" needs a number from 1 up, as in ", word, 8);
  return n;
}

ScoreStage stage_of(std::string_view name) {
  if (name == "scaled") return ScoreStage::scaled;
  if (name == "softcapped") return ScoreStage::softcapped;
  if (name == "biased") return ScoreStage::biased;
  if (name == "weights") return ScoreStage::weights;
  throw Error(ErrorKind::bad_argument,
              text("--probe: \"scores=", name, "\" is no stage; use scaled, softcapped, biased or weights"));
}

}  // namespace

ProbeSpec parse_probe(const std::string& list) {
  ProbeSpec spec;
  std::string_view rest = list;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if (item == "rows") {
      spec.rows = true;
    } else if (item == "columns") {
      spec.columns = true;
    } else if (item.starts_with("scores=")) {
      spec.scores = stage_of(item.substr(7));
    } else if (const Index top = number_after(item, "top"); top > 0) {
      spec.top_k = top;
    } else if (const Index classes = number_after(item, "classes"); classes > 0) {
      spec.classes = classes;
    } else if (const Index picked = number_after(item, "picked"); picked > 0) {
      spec.picked = picked;
    } else {
      throw Error(ErrorKind::bad_argument, text("--probe: \"", item, "\" is no probe; use ", kProbes));
    }
  }
  return spec;
}

}  // namespace headwise::cli
