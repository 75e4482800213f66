#include "headwise/server/door/door.h"

#include <algorithm>
#include <utility>

#include "headwise/base/error.h"
#include "headwise/base/words.h"

namespace headwise::server {

Door::Door(DoorOptions options, const std::string& address, int port) : options_(std::move(options)) {
  for (std::string& host : options_.hosts) host = lowered(host);
  const std::string own = address.find(':') != std::string::npos ? "[" + lowered(address) + "]" : address;
  for (const std::string& host :
       {std::string("127.0.0.1"), std::string("localhost"), std::string("[::1]"), own}) {
    options_.hosts.push_back(text(host, ":", port));
    if (port == 80) options_.hosts.push_back(host);
  }
}

bool Door::known(std::string_view host) const {
  return std::find(options_.hosts.begin(), options_.hosts.end(), lowered(host)) != options_.hosts.end();
}

std::optional<HttpResponse> Door::refusal(const HttpRequest& request, Lock lock) const {
  if (!known(*request.find("host")))
    return error_response(421, "unknown_host", "this service does not go by that Host; see --allow-host");
  if (const std::string* origin = request.find("origin")) {
    std::string_view host = *origin;
    if (host.starts_with("http://"))
      host.remove_prefix(7);
    else if (host.starts_with("https://"))
      host.remove_prefix(8);
    if (host.size() == origin->size() || !known(host))
      return error_response(403, "foreign_origin", "pages of other origins may not ask");
  }
  if (const std::string* site = request.find("sec-fetch-site");
      site != nullptr && *site != "same-origin" && *site != "none")
    return error_response(403, "foreign_origin", "pages of other origins may not ask");
  if (request.target.find('?') != std::string::npos)
    return error_response(
        400, "query_in_url",
        "nothing is taken from the URL; a token belongs into the Authorization header, and one that "
        "stood in a URL should be replaced");
  if (!options_.token || lock == Lock::open) return std::nullopt;
  const std::string* shown = request.find("authorization");
  const std::string empty;
  const std::string& words = shown != nullptr ? *shown : empty;
  // Both are compared, always: which of them was wrong takes no other time.
  const bool bearer = options_.token->equals(bearer_of(words));
  const bool password = options_.token->equals(password_of(words)) && lock == Lock::password;
  if (bearer || password) return std::nullopt;
  HttpResponse r = error_response(401, "no_token", "show the token: Authorization: Bearer TOKEN");
  r.headers.push_back({"WWW-Authenticate", lock == Lock::password ? "Basic realm=\"headwise\"" : "Bearer"});
  return r;
}

}  // namespace headwise::server
