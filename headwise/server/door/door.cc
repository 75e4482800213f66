#include "headwise/server/door/door.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "headwise/base/error.h"
#include "headwise/base/words.h"

namespace headwise::server {
namespace {

/// An address of IPv4, or of IPv6 in brackets, with or without a port.
bool is_number(std::string_view host) {
  const std::size_t colon = host.rfind(':'), bracket = host.rfind(']');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  if (has_port) {
    const std::string_view port = host.substr(colon + 1);
    if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string_view::npos)
      return false;
    host = host.substr(0, colon);
  }
  const bool six = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string words(six ? host.substr(1, host.size() - 2) : host);
  in6_addr unused{};
  return ::inet_pton(six ? AF_INET6 : AF_INET, words.c_str(), &unused) == 1;
}

}  // namespace

Door::Door(DoorOptions options, const std::string& address, int port)
    : hosts_(std::move(options.hosts)), asks_(!options.tokens.empty()), tokens_(std::move(options.tokens)) {
  any_host_ = address.empty() || std::find(hosts_.begin(), hosts_.end(), "*") != hosts_.end();
  for (std::string& host : hosts_) host = lowered(host);
  const std::string own = address.find(':') != std::string::npos ? "[" + lowered(address) + "]" : address;
  for (const std::string& host :
       {std::string("127.0.0.1"), std::string("localhost"), std::string("[::1]"), own}) {
    hosts_.push_back(text(host, ":", port));
    if (port == 80) hosts_.push_back(host);
  }
}

void Door::change_tokens(std::vector<Token> tokens) {
  require(!asks_ || !tokens.empty(), ErrorKind::bad_argument, "serve",
          "there is no token left; give one or more");
  const std::lock_guard hold(lock_);
  if (asks_) tokens_ = std::move(tokens);
}

bool Door::listed(std::string_view host) const {
  return std::find(hosts_.begin(), hosts_.end(), lowered(host)) != hosts_.end();
}

bool Door::host_fits(const HttpRequest& request, Lock lock) const {
  const std::string* host = request.find("host");
  if (host == nullptr || any_host_ || lock == Lock::open || (lock == Lock::scrape && asks_)) return true;
  return listed(*host) || is_number(*host);
}

bool Door::origin_fits(const HttpRequest& request) const {
  const std::string* site = request.find("sec-fetch-site");
  if (site != nullptr && *site != "same-origin" && *site != "none") return false;
  const std::string* origin = request.find("origin");
  if (origin == nullptr) return true;
  std::string_view from = *origin;
  if (from.starts_with("http://"))
    from.remove_prefix(7);
  else if (from.starts_with("https://"))
    from.remove_prefix(8);
  const std::string* host = request.find("host");
  const bool same = host != nullptr && lowered(from) == lowered(*host) && (any_host_ || is_number(*host));
  return from.size() < origin->size() && (listed(from) || same);
}

/// Every token is compared in every way, always: which of them was wrong takes no other time.
bool Door::token_fits(std::string_view shown, Lock lock) const {
  const std::string bearer = bearer_of(shown), password = password_of(shown);
  const std::lock_guard hold(lock_);
  bool fits = false;
  for (const Token& token : tokens_) {
    const bool as_bearer = token.equals(bearer), as_password = token.equals(password);
    fits |= as_bearer || (as_password && lock == Lock::password);
  }
  return fits;
}

std::optional<HttpResponse> Door::refusal(const HttpRequest& request, Lock lock) const {
  if (!host_fits(request, lock))
    return error_response(421, "unknown_host", "this service does not go by that Host; see --allow-host");
  if (!origin_fits(request))
    return error_response(403, "foreign_origin", "pages of other origins may not ask");
  if (request.target.find('?') != std::string::npos)
    return error_response(
        400, "query_in_url",
        "nothing is taken from the URL; a token belongs into the Authorization header, and one that "
        "stood in a URL should be replaced");
  if (!asks_ || lock == Lock::open) return std::nullopt;
  const std::string* shown = request.find("authorization");
  if (token_fits(shown != nullptr ? std::string_view(*shown) : std::string_view(), lock)) return std::nullopt;
  HttpResponse r = error_response(401, "no_token", "show the token: Authorization: Bearer TOKEN");
  r.headers.push_back({"WWW-Authenticate", lock == Lock::password ? "Basic realm=\"headwise\"" : "Bearer"});
  return r;
}

}  // namespace headwise::server
