// Errors: one exception type, one way to raise it, always with the values that failed.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <iosfwd>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

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

/// One part of a sentence, borrowed, and how it is written. The stream stays out of every caller's way: whole
/// sentences are made in one place, and only a type with an operator<< of its own needs it.
class TextPart {
 public:
  TextPart(const char* s) : TextPart(std::string_view(s)) {}         // NOLINT: words are parts
  TextPart(const std::string& s) : TextPart(std::string_view(s)) {}  // NOLINT
  TextPart(std::string_view s) : kind_(Kind::words), words_(s) {}    // NOLINT
  TextPart(char c) : kind_(Kind::sign), sign_(c) {}                  // NOLINT
  template <class T>
  requires std::is_arithmetic_v<T> TextPart(T x) {  // NOLINT: numbers are parts
    if constexpr (std::is_floating_point_v<T>)
      kind_ = Kind::real, real_ = static_cast<double>(x);
    else if constexpr (sizeof(T) == 1 && !std::is_same_v<T, bool>)
      kind_ = Kind::sign, sign_ = static_cast<char>(x);
    else if constexpr (std::is_signed_v<T>)
      kind_ = Kind::whole, whole_ = x;
    else
      kind_ = Kind::natural, natural_ = x;
  }
  template <class T>
  requires(!std::is_arithmetic_v<T>) TextPart(const T& x)  // NOLINT: what an ostream takes is a part
      : kind_(Kind::other), other_{&x, [](std::ostream& out, const void* o) {
                                     out << *static_cast<const T*>(o);
                                   }} {}
  TextPart(std::ios_base& (*set)(std::ios_base&)) : kind_(Kind::setting), setting_(set) {}  // NOLINT

  void write(std::ostream& out) const;

 private:
  enum class Kind { words, sign, real, whole, natural, other, setting } kind_;
  struct Other {
    const void* object;
    void (*write)(std::ostream&, const void*);
  };
  union {
    std::string_view words_;
    char sign_;
    double real_;
    long long whole_;
    unsigned long long natural_;
    Other other_;
    std::ios_base& (*setting_)(std::ios_base&);
  };
};

/// The parts one after another, whatever the host's locale.
std::string joined(const TextPart* parts, std::size_t count);
[[noreturn]] void refuse_joined(ErrorKind kind, std::string_view where, const TextPart* parts,
                                std::size_t count);

template <class... Parts>
std::string text(const Parts&... parts) {
  const TextPart all[] = {TextPart(parts)...};
  return joined(all, sizeof...(Parts));
}

/// Throws when `ok` is false. `where` is the op the user called; the parts say what was got, what is needed,
/// what to do.
template <class... Parts>
void require(bool ok, ErrorKind kind, std::string_view where, const Parts&... parts) {
  if (!ok) [[unlikely]] {
    const TextPart all[] = {TextPart(parts)...};
    refuse_joined(kind, where, all, sizeof...(Parts));
  }
}

}  // namespace headwise
#pragma GCC visibility pop
