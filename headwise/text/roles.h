// Roles: what heads may be for, as rows of a text file: classes of tokens, and which class looks at which.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/text/words.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Tokens that are, or lie inside, one of the words; and tokens of a kind.
struct TokenClass {
  std::string name;
  std::vector<std::string> words = {};  // ASCII letters in lower case
  bool digits = false, punctuation = false, special = false, any = false;
  /// Is it about what is said, and not about the form of a sentence?
  bool has_meaning() const { return digits || !words.empty(); }
};

struct Role {
  std::string name, row;  // row: as the file has it, `any -> number`
  int source = 0, target = 0;
  bool both = false;  // <->: also from target to source
  bool near = false;  // target - source in from..to
  Index from = 0, to = 0;
  double least_mass = 0, spread = 0;  // 0: none is asked
  /// A role of meaning is claimed only when switching the head off proves it; one of form by its mass.
  bool meaning = false;
};

/// Classes of a token, bit c for class c.
using ClassBits = std::uint64_t;

class RoleBook {
 public:
  static constexpr int kMostClasses = 64;

  /// Refused with the line: an unknown word, class or kind, a role twice.
  static RoleBook parse(std::string_view text, std::string_view name);
  /// The rows that ship: roles.txt.
  static const RoleBook& builtin();
  /// Adds the rows of another file; it may use and extend the classes there are.
  void add(std::string_view text, std::string_view name);

  const std::vector<TokenClass>& classes() const { return classes_; }
  const std::vector<Role>& roles() const { return roles_; }
  /// -1 when it is not there.
  int find_class(std::string_view name) const;

  /// One value a token; spans as the tokenizer gave them, empty ones are [CLS] and the like.
  std::vector<ClassBits> classes_of(std::string_view text, std::span<const TextSpan> spans) const;
  /// f(query, key) for every pair of the role, a token with itself left out.
  void each_pair(const Role& role, std::span<const ClassBits> tokens,
                 const std::function<void(Index, Index)>& f) const;

 private:
  std::vector<TokenClass> classes_;
  std::vector<Role> roles_;
};

}  // namespace headwise
#pragma GCC visibility pop
