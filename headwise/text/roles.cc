#include "headwise/text/roles.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "headwise/base/error.h"
#include "headwise/base/words.h"
#include "headwise/model/json_reader.h"
#include "headwise/text/unicode.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "roles";
constexpr std::string_view kBlanks = " \t\r";

/// Takes what stands before `mark`; all of it where there is none.
std::string_view take_until(std::string_view& rest, std::string_view mark) {
  const std::size_t at = rest.find(mark);
  const std::string_view front = trimmed(rest.substr(0, at), kBlanks);
  rest = at == std::string_view::npos ? std::string_view{} : trimmed(rest.substr(at + mark.size()), kBlanks);
  return front;
}
template <class T>
bool read_number(std::string_view word, T& to) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), to);
  return error == std::errc{} && end == word.data() + word.size();
}
bool is_latin(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// A row and where it stands, for refusals.
struct NamedRow {
  std::string_view file, text;
  Index number;
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    throw Error(ErrorKind::bad_argument, headwise::text(kOp, ": ", file, " line ", number, ": ", parts...));
  }
};

void add_words(TokenClass& c, std::string_view rest, const NamedRow& line) {
  while (!rest.empty()) {
    const std::string word = lowered(take_until(rest, "|"));
    if (word.empty()) line.refuse("a word between | is empty; leave out the |");
    if (word[0] != '@') {
      c.words.push_back(word);
    } else if (word == "@digits") {
      c.digits = true;
    } else if (word == "@punctuation") {
      c.punctuation = true;
    } else if (word == "@special") {
      c.special = true;
    } else if (word == "@any") {
      c.any = true;
    } else {
      line.refuse("kind ", quoted(word), " is unknown; kinds are @digits, @punctuation, @special and @any");
    }
  }
}

/// `within A..B`, `mass M` and `spread S` behind a role's classes.
void read_conditions(Role& role, std::string_view rest, const NamedRow& line) {
  while (!rest.empty()) {
    const std::string_view word = take_until(rest, " "), value = take_until(rest, " ");
    bool good = false;
    if (word == "within") {
      const std::size_t dots = value.find("..");
      good = dots != std::string_view::npos && read_number(value.substr(0, dots), role.from) &&
             read_number(value.substr(dots + 2), role.to) && role.from <= role.to;
      role.near = true;
    } else if (word == "mass") {
      good = read_number(value, role.least_mass) && role.least_mass > 0 && role.least_mass <= 1;
    } else if (word == "spread") {
      good = read_number(value, role.spread) && role.spread > 0 && role.spread <= 1;
    }
    if (!good)
      line.refuse("got ", quoted(word), " ", quoted(value),
                  "; a role ends in within A..B, mass M or spread S, with A <= B and M, S in 0..1");
  }
}

bool holds_digit(std::string_view s) {
  for (Index at = 0; at < static_cast<Index>(s.size());) {
    const CodePoint c = decode_utf8(s, at);
    if ((c.value >= '0' && c.value <= '9') || (c.value >= 0xFF10 && c.value <= 0xFF19)) return true;
    at = c.end;
  }
  return false;
}
bool is_all_punctuation(std::string_view s) {
  for (Index at = 0; at < static_cast<Index>(s.size());) {
    const CodePoint c = decode_utf8(s, at);
    if (!is_punctuation(c.value)) return false;
    at = c.end;
  }
  return !s.empty();
}

}  // namespace

RoleBook RoleBook::parse(std::string_view text, std::string_view name) {
  RoleBook book;
  book.add(text, name);
  return book;
}

int RoleBook::find_class(std::string_view name) const {
  const auto it =
      std::find_if(classes_.begin(), classes_.end(), [&](const auto& c) { return c.name == name; });
  return it == classes_.end() ? -1 : static_cast<int>(it - classes_.begin());
}

void RoleBook::add(std::string_view text, std::string_view name) {
  RoleBook whole = *this;  // nothing is added when a line is refused
  NamedRow line{name, {}, 0};
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = rest.find('\n');
    std::string_view row = trimmed(rest.substr(0, end), kBlanks);
    rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
    line.text = row, ++line.number;
    if (row.empty() || row[0] == '#') continue;
    if (first_bad_utf8(row) >= 0) line.refuse("it is no UTF-8; save the file as UTF-8");
    const std::string_view kind = take_until(row, " ");
    const std::size_t colon = row.find(':');
    if ((kind != "class" && kind != "role") || colon == std::string_view::npos)
      line.refuse("got ", quoted(line.text), "; a row is class NAME: words, or role NAME: A -> B");
    const std::string id(take_until(row, ":"));
    if (id.empty()) line.refuse("the ", kind, " has no name; write it before the colon");
    if (kind == "class") {
      int at = whole.find_class(id);
      if (at < 0) {
        if (whole.classes_.size() == kMostClasses)
          line.refuse("it is class ", kMostClasses + 1, "; at most ", kMostClasses, " are known");
        at = static_cast<int>(whole.classes_.size());
        whole.classes_.push_back({.name = id});
      }
      add_words(whole.classes_[static_cast<std::size_t>(at)], row, line);
      continue;
    }
    for (const Role& r : whole.roles_)
      if (r.name == id) line.refuse("role ", quoted(id), " is there already; give it another name");
    Role role{.name = id, .row = std::string(row)};
    role.both = row.find("<->") != std::string_view::npos;
    if (!role.both && row.find("->") == std::string_view::npos)
      line.refuse("the role has no ->; write role NAME: SOURCE -> TARGET");
    const std::string_view source = take_until(row, role.both ? "<->" : "->"), target = take_until(row, " ");
    role.source = whole.find_class(source), role.target = whole.find_class(target);
    for (const auto& [id_of, word] : {std::pair{role.source, source}, std::pair{role.target, target}})
      if (id_of < 0) line.refuse("class ", quoted(word), " is unknown; write its row before the role's");
    read_conditions(role, row, line);
    const auto means = [&](int c) { return whole.classes_[static_cast<std::size_t>(c)].has_meaning(); };
    role.meaning = means(role.source) || means(role.target);
    whole.roles_.push_back(std::move(role));
  }
  *this = std::move(whole);
}

std::vector<ClassBits> RoleBook::classes_of(std::string_view text, std::span<const TextSpan> spans) const {
  std::vector<ClassBits> bits(spans.size(), 0);
  const std::string low = lowered(text);
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    const TokenClass& kind = classes_[c];
    const ClassBits bit = ClassBits{1} << c;
    for (std::size_t t = 0; t < spans.size(); ++t) {
      const std::string_view piece = std::string_view(text).substr(
          static_cast<std::size_t>(spans[t].begin), static_cast<std::size_t>(spans[t].end - spans[t].begin));
      if (kind.any || (kind.special && piece.empty()) || (kind.digits && holds_digit(piece)) ||
          (kind.punctuation && is_all_punctuation(piece)))
        bits[t] |= bit;
    }
    for (const std::string& word : kind.words)
      for (std::size_t at = low.find(word); at != std::string::npos; at = low.find(word, at + 1)) {
        const std::size_t end = at + word.size();
        // A Latin word stands alone: "rate" is not in "separate"; n't may close a word.
        if (is_latin(word.front()) && at > 0 && is_latin(low[at - 1]) && word != "n't") continue;
        if (is_latin(word.back()) && end < low.size() && is_latin(low[end])) continue;
        for (std::size_t t = 0; t < spans.size(); ++t)
          if (spans[t].begin < static_cast<Index>(end) && spans[t].end > static_cast<Index>(at))
            bits[t] |= bit;
      }
  }
  return bits;
}

void RoleBook::each_pair(const Role& role, std::span<const ClassBits> tokens,
                         const std::function<void(Index, Index)>& f) const {
  if (role.spread > 0) return;
  const auto count = static_cast<Index>(tokens.size());
  const auto is = [&](Index t, int c) { return (tokens[static_cast<std::size_t>(t)] >> c & 1) != 0; };
  const auto fits = [&](Index source, Index target) {
    return is(source, role.source) && is(target, role.target) &&
           (!role.near || (role.from <= target - source && target - source <= role.to));
  };
  for (Index i = 0; i < count; ++i)
    for (Index j = 0; j < count; ++j)
      if (i != j && (fits(i, j) || (role.both && fits(j, i)))) f(i, j);
}

}  // namespace headwise
