// Door: who may come in: the Host and Origin a request names, and the token it shows; closed unless all fit.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "headwise/server/door/token.h"
#include "headwise/server/http/http_response.h"

namespace headwise::server {

struct DoorOptions {
  std::optional<Token> token;      // none: nobody is asked for one
  std::vector<std::string> hosts;  // "name:port" beside the address itself; "name" alone is port 80
};

class Door {
 public:
  /// How a request may show its token: not at all, in a header of its program, or also as a browser's
  /// password.
  enum class Lock { open, bearer, password };
  Door(DoorOptions options, const std::string& address, int port);

  /// A refusal, or nothing. A page of another site, or a name that was made to point here (DNS rebinding),
  /// stays outside whatever token it has.
  std::optional<HttpResponse> refusal(const HttpRequest& request, Lock lock) const;

 private:
  bool known(std::string_view host) const;
  DoorOptions options_;
};

}  // namespace headwise::server
