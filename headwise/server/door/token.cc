#include "headwise/server/door/token.h"

#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <span>
#include <utility>

#include "headwise/base/error.h"
#include "headwise/model/file.h"

namespace headwise::server {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr std::size_t kLeast = 16, kMost = 4096;

/// RFC 9110's token68, what a header can carry.
bool is_token68(char c) {
  return kDigits.find(c) != std::string_view::npos || c == '.' || c == '~' || c == '+' || c == '/' ||
         c == '=';
}

/// What stands behind `scheme`, whose case does not matter, and one space.
std::string_view behind(std::string_view authorization, std::string_view scheme) {
  if (authorization.size() <= scheme.size() || authorization[scheme.size()] != ' ') return {};
  for (std::size_t i = 0; i < scheme.size(); ++i)
    if ((authorization[i] | 0x20) != (scheme[i] | 0x20)) return {};
  return authorization.substr(scheme.size() + 1);
}

/// Base64 with its padding; empty when `s` is none.
std::string decoded(std::string_view s) {
  if (s.size() % 4 != 0) return {};
  const std::size_t padding =
      static_cast<std::size_t>(s.ends_with('=')) + static_cast<std::size_t>(s.ends_with("=="));
  s.remove_suffix(padding);
  std::string out;
  unsigned bits = 0, have = 0;
  for (char c : s) {
    if (c == '-' || c == '_') return {};  // of the other alphabet
    c = c == '+' ? '-' : c == '/' ? '_' : c;
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return {};
    bits = (bits << 6 | static_cast<unsigned>(digit)) & 0xffffu, have += 6;
    if (have >= 8) have -= 8, out += static_cast<char>(bits >> have & 0xffu);
  }
  return out;
}

}  // namespace

Token::Token(std::string words, std::string_view from) : words_(std::move(words)) {
  require(words_.size() >= kLeast && words_.size() <= kMost &&
              std::all_of(words_.begin(), words_.end(), is_token68),
          ErrorKind::bad_argument, "token", from, " must hold ", kLeast, " to ", kMost,
          " characters of A-Z a-z 0-9 - . _ ~ + / =; one is made by: head -c 32 /dev/urandom | base64");
}

Token Token::random() {
  std::array<unsigned char, 32> bytes{};
  for (std::size_t have = 0; have < bytes.size();) {
    const ssize_t n = ::getrandom(bytes.data() + have, bytes.size() - have, 0);
    require(n >= 0 || errno == EINTR, ErrorKind::device, "token", "the system gives no random bytes");
    have += static_cast<std::size_t>(std::max<ssize_t>(n, 0));
  }
  std::string words;
  unsigned bits = 0, have = 0;
  for (const unsigned char b : bytes) {
    bits = bits << 8 | b, have += 8;
    for (; have >= 6; have -= 6) words += kDigits[bits >> (have - 6) & 63u];
    bits &= 0xffu;
  }
  words += kDigits[bits << (6 - have) & 63u];
  return Token(std::move(words), "the random token");
}

Token::InFile Token::read(const std::string& path) {
  constexpr Index kMostBytes = Index{1} << 20;
  const File file = File::open_to_read(path, "token", Links::follow);
  struct stat facts {};
  if (::fstat(file.descriptor(), &facts) != 0) file_failed("token", path, "ask its rights", errno);
  require((facts.st_mode & (S_IWGRP | S_IWOTH)) == 0, ErrorKind::bad_argument, "token", path,
          " can be written by others, who could make their own token; chmod 600 it");
  require(file.bytes() <= kMostBytes, ErrorKind::bad_argument, "token", path, " has ", file.bytes(),
          " bytes; a file of tokens has at most ", kMostBytes);
  std::string all(static_cast<std::size_t>(file.bytes()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(all)));
  InFile found;
  found.readable_by_all = (facts.st_mode & S_IROTH) != 0;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find_first_of("\r\n", at), all.size());
    if (end > at && all[at] != '#') found.tokens.push_back(Token(all.substr(at, end - at), path));
    at = end + 1;
  }
  require(!found.tokens.empty(), ErrorKind::bad_argument, "token", path,
          " holds no token; one is made by: head -c 32 /dev/urandom | base64");
  return found;
}

Token Token::from_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  require(value != nullptr, ErrorKind::bad_argument, "token", "the variable ", name,
          " is not set; set it to a token, or make a file of one for --token-file");
  return Token(value, name);
}

bool Token::equals(std::string_view other) const {
  // Reads all of ours whatever theirs is; the length of ours is no secret.
  unsigned differ = other.size() == words_.size() ? 0u : 1u;
  for (std::size_t i = 0; i < words_.size(); ++i) {
    const char theirs = other.empty() ? '\0' : other[i % other.size()];
    differ |= static_cast<unsigned>(static_cast<unsigned char>(words_[i] ^ theirs));
  }
  return differ == 0;
}

std::string bearer_of(std::string_view authorization) { return std::string(behind(authorization, "Bearer")); }

std::string password_of(std::string_view authorization) {
  const std::string pair = decoded(behind(authorization, "Basic"));
  const std::size_t colon = pair.find(':');
  return colon == std::string::npos ? "" : pair.substr(colon + 1);
}

}  // namespace headwise::server
