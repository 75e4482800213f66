#include "headwise/cache/head_policy.h"

#include <charconv>

#include "headwise/base/error.h"

namespace headwise {
namespace {

std::string in_quotes(std::string_view s) { return text("\"", s, "\""); }
[[noreturn]] void refuse(std::string_view policy, std::string_view why) {
  throw Error(ErrorKind::bad_argument, text("head policy: ", in_quotes(policy), " ", why,
                                            "; write full or window:N,first:M, and dtype:T behind it"));
}

Index number(std::string_view policy, std::string_view digits, Index least) {
  Index n = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
  if (code != std::errc() || end != digits.data() + digits.size() || n < least || n > Index{1} << 40)
    refuse(policy, text("has the number ", in_quotes(digits), ", which must be ", least, " or more"));
  return n;
}
DType dtype_named(std::string_view policy, std::string_view name) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::i8, DType::e4m3})
    if (name == name_of(t)) return t;
  refuse(policy, "has a dtype other than f32, bf16, f16, i8 and e4m3");
}

}  // namespace

HeadPolicy parse_head_policy(std::string_view policy) {
  HeadPolicy p;
  bool full = false, window = false, first = false;
  for (std::string_view rest = policy; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if (part == "full" && !full && !window)
      full = true;
    else if (part.starts_with("window:") && !window && !full)
      p.window = number(policy, part.substr(7), 1), window = true;
    else if (part.starts_with("first:") && window && !first)
      p.first = number(policy, part.substr(6), 0), first = true;
    else if (part.starts_with("dtype:") && !p.dtype.has_value())
      p.dtype = dtype_named(policy, part.substr(6));
    else
      refuse(policy, text("has the part ", in_quotes(part), ", which is not known there"));
  }
  if (!full && !window) refuse(policy, "keeps nothing");
  return p;
}

std::string to_text(const HeadPolicy& p) {
  std::string s = p.window == 0 ? "full" : text("window:", p.window, ",first:", p.first);
  if (p.dtype.has_value()) s += text(",dtype:", *p.dtype);
  return s;
}

}  // namespace headwise
