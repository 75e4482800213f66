// Door: who may come in: the Host and Origin a request names, and the token it shows; closed unless all fit.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "headwise/server/door/token.h"
#include "headwise/server/http/http_response.h"

namespace headwise::server {

struct DoorOptions {
  std::vector<Token> tokens;  // any of them opens; none: nobody is asked for one
  std::vector<std::string>
      hosts;  // "name:port" beside the address itself; "name" alone is port 80; "*" is any
};

class Door {
 public:
  /// How a request may show its token. Not at all, and under any Host (probes); in a header of its program;
  /// the same under any Host where there are tokens (scrapers); or also as a browser's password.
  enum class Lock { open, bearer, scrape, password };
  /// `address` is that of the listener; "": a socket in the file system, which no browser reaches, takes any
  /// Host.
  Door(DoorOptions options, const std::string& address, int port);

  /// A refusal, or nothing. A page of another site, or a name that was made to point here (DNS rebinding),
  /// stays outside whatever token it has. A Host that is a number was made to point nowhere.
  std::optional<HttpResponse> refusal(const HttpRequest& request, Lock lock) const;
  /// From any thread; a door that asks for tokens keeps asking.
  void change_tokens(std::vector<Token> tokens);

 private:
  bool listed(std::string_view host) const;
  bool host_fits(const HttpRequest& request, Lock lock) const;
  bool origin_fits(const HttpRequest& request) const;
  bool token_fits(std::string_view shown, Lock lock) const;

  std::vector<std::string> hosts_;
  bool any_host_ = false, asks_;
  mutable std::mutex lock_;  // of the tokens
  std::vector<Token> tokens_;
};

}  // namespace headwise::server
