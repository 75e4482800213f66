#include "headwise/server/http/request_id.h"

#include <algorithm>

namespace headwise::server {
namespace {

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }
bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
         c == '.' || c == ':';
}

}  // namespace

std::string request_id(const HttpRequest& request, std::uint64_t number) {
  constexpr std::size_t kMost = 128;
  const std::string* theirs = request.find("x-request-id");
  const bool right = theirs != nullptr && !theirs->empty() && theirs->size() <= kMost &&
                     std::all_of(theirs->begin(), theirs->end(), is_plain);
  return right ? *theirs : std::to_string(number);
}

std::string trace_id(const HttpRequest& request) {
  // version-trace-parent-flags: 2, 32, 16 and 2 digits; version ff is none, and zeros are no id.
  const std::string* given = request.find("traceparent");
  if (given == nullptr || given->size() < 55 || (given->size() > 55 && (*given)[55] != '-')) return "";
  const std::string_view t = std::string_view(*given).substr(0, 55);
  for (std::size_t i = 0; i < t.size(); ++i)
    if (i == 2 || i == 35 || i == 52 ? t[i] != '-' : !is_hex(t[i])) return "";
  const auto zeros = [](std::string_view s) { return s.find_first_not_of('0') == std::string_view::npos; };
  if (t.starts_with("ff") || (t.starts_with("00") && given->size() > 55)) return "";
  return zeros(t.substr(3, 32)) || zeros(t.substr(36, 16)) ? "" : std::string(t.substr(3, 32));
}

}  // namespace headwise::server
