// Errors: one exception type, one way to raise it, always with the values that failed.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace headwise {

/// What went wrong; c/ and python/ map each kind to one status and one exception.
enum class ErrorKind {
  bad_shape,
  bad_dtype,
  bad_argument,
  unsupported,
  out_of_workspace,
  out_of_memory,
  device
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // a host's global locale must not group digits in our sentences
  (out << ... << parts);
  return out.str();
}

/// Throws when `ok` is false. `where` is the op the user called; the parts say what was got, what is needed,
/// what to do.
template <class... Parts>
void require(bool ok, ErrorKind kind, std::string_view where, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw Error(kind, text(where, ": ", parts...));
}

}  // namespace headwise
#pragma GCC visibility pop
