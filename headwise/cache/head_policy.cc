#include "headwise/cache/head_policy.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "headwise/base/error.h"

namespace headwise {
namespace {

std::string in_quotes(std::string_view s) { return text("\"", s, "\""); }
[[noreturn]] void refuse(std::string_view policy, std::string_view why) {
  throw Error(ErrorKind::bad_argument,
              text("head policy: ", in_quotes(policy), " ", why,
                   "; write full, window:N,first:M, heavy:N,recent:R,first:M or snap:N,look:W, and "
                   "dtype:T behind it"));
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

namespace {

/// A part "name:N" of a policy; the first part names its kind and stands alone or before the others of it.
struct Part {
  std::string_view name, behind;  // behind: the kind it belongs to; its own name where it is one
  Index HeadPolicy::*number;
  Index least;
};
constexpr Part kParts[] = {
    {"window", "window", &HeadPolicy::window, 1}, {"first", "window", &HeadPolicy::first, 0},
    {"heavy", "heavy", &HeadPolicy::heavy, 1},    {"recent", "heavy", &HeadPolicy::recent, 1},
    {"first", "heavy", &HeadPolicy::first, 0},    {"snap", "snap", &HeadPolicy::snap, 1},
    {"look", "snap", &HeadPolicy::look, 1},
};

}  // namespace

HeadPolicy parse_head_policy(std::string_view policy) {
  HeadPolicy p;
  std::string_view kind;
  std::vector<std::string_view> seen;
  for (std::string_view rest = policy; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma), name = part.substr(0, part.find(':'));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const std::string_view digits = name.size() < part.size() ? part.substr(name.size() + 1) : "";
    const auto unknown = [&] {
      refuse(policy, text("has the part ", in_quotes(part), ", which is not known there"));
    };
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) unknown();
    seen.push_back(name);
    if (name == "dtype" && !digits.empty()) {
      p.dtype = dtype_named(policy, digits);
      continue;
    }
    const std::string_view of = kind.empty() ? name : kind;
    const Part* found = std::find_if(std::begin(kParts), std::end(kParts),
                                     [&](const Part& x) { return x.name == name && x.behind == of; });
    if (part == "full" && kind.empty())
      kind = part;
    else if (found != std::end(kParts))
      p.*found->number = number(policy, digits, found->least), kind = of;
    else
      unknown();
  }
  if (kind.empty()) refuse(policy, "says nothing of what a head keeps");
  if (p.heavy > 0 && p.recent == 0) refuse(policy, "keeps no recent tokens; add recent:R");
  if (p.snap > 0 && p.look == 0) refuse(policy, "has no tokens of the prompt that look; add look:W");
  return p;
}

std::string to_text(const HeadPolicy& p) {
  std::string s = p.window > 0  ? text("window:", p.window, ",first:", p.first)
                  : p.heavy > 0 ? text("heavy:", p.heavy, ",recent:", p.recent, ",first:", p.first)
                  : p.snap > 0  ? text("snap:", p.snap, ",look:", p.look)
                                : "full";
  if (p.dtype.has_value()) s += text(",dtype:", *p.dtype);
  return s;
}

}  // namespace headwise
