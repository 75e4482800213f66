// Masks from text: & binds before |, parentheses, numbers and lists; every error names its column.
// SPDX-License-Identifier: Apache-2.0
#include <charconv>

#include "headwise/masks/mask.h"

namespace headwise {
namespace {

constexpr int kMaxDepth = 64;

/// "all, causal, ... or "(""
std::string terms() {
  std::string names;
  for (const MaskKind& kind : kMaskKinds) {
    if (kind.form == MaskForm::dense || kind.form == MaskForm::join) continue;
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
    if (kind.op == MaskOp::window) names += ", sliding";
  }
  return names + " or \"(\"";
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return '0' <= c && c <= '9'; }
bool is_word(char c) { return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || c == '_' || is_digit(c); }

class Parser {
 public:
  Parser(std::string_view text, std::span<const Mask> dense) : text_(text), dense_(dense) {}

  Mask whole() {
    const std::size_t begin = skip_spaces();
    Mask m;
    if (word() == "per_head") {
      expect('(');
      std::vector<Mask> masks;
      do masks.push_back(either(0));
      while (accept(';'));
      expect(')', "\";\" or \")\"");
      m = Mask::per_head(masks);
    } else {
      at_ = begin;
      m = either(0);
    }
    if (skip_spaces() < text_.size()) fail("\"&\", \"|\" or the end");
    return m;
  }

 private:
  std::size_t skip_spaces() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    return at_;
  }
  bool accept(char c) {
    if (skip_spaces() == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c, std::string_view what = {}) {
    if (!accept(c)) fail(what.empty() ? text('"', c, '"') : std::string(what));
  }
  std::string_view word() {
    const std::size_t begin = skip_spaces();
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  /// What stands at the cursor, short and printable.
  std::string found() const {
    if (at_ == text_.size()) return "the end";
    std::size_t end = at_ + 1;
    if (is_word(text_[at_]))
      while (end < text_.size() && end - at_ < 24 && is_word(text_[end])) ++end;
    std::string out = "\"";
    for (char c : text_.substr(at_, end - at_)) {
      const auto byte = static_cast<unsigned char>(c);
      const char* hex = "0123456789abcdef";
      if (byte < 0x20 || byte >= 0x7f)
        out += {'\\', 'x', hex[byte / 16], hex[byte % 16]};
      else
        out += c;
    }
    return out + '"';
  }
  [[noreturn]] void fail(std::string_view expected) {
    skip_spaces();
    throw Error(ErrorKind::bad_argument,
                text("mask: column ", at_ + 1, ": expected ", expected, ", got ", found()));
  }

  Index number() {
    const std::size_t begin = skip_spaces();
    Index value = 0;
    const auto [end, error] = std::from_chars(text_.data() + begin, text_.data() + text_.size(), value);
    if (error == std::errc::invalid_argument) fail("a number");
    require(error != std::errc::result_out_of_range, ErrorKind::bad_argument, "mask", "column ", begin + 1,
            ": the number does not fit in 64 bits; positions end at ", std::numeric_limits<Index>::max());
    at_ = static_cast<std::size_t>(end - text_.data());
    return value;
  }
  /// Numbers up to `end`, none allowed; reads `end` too.
  std::vector<Index> numbers(char end) {
    std::vector<Index> list;
    if (accept(end)) return list;
    do list.push_back(number());
    while (accept(','));
    expect(end, text("\",\" or \"", end, '"'));
    return list;
  }

  /// "(a)" or "(a, b)"; b may be left out where `otherwise` is not -1.
  std::vector<Index> list_of(int count, Index otherwise) {
    expect('(');
    std::vector<Index> read{number()};
    if (count == 2 && otherwise != -1 && accept(')')) return {read[0], otherwise};
    if (count == 2) {
      expect(',');
      read.push_back(number());
    }
    expect(')');
    return read;
  }
  Mask of_kind(const MaskKind& kind) {
    switch (kind.form) {
      case MaskForm::bare: return Mask::of_kind(kind.op, {});
      case MaskForm::one: return Mask::of_kind(kind.op, list_of(1, -1));
      case MaskForm::two: return Mask::of_kind(kind.op, list_of(2, kind.second));
      case MaskForm::list:
      case MaskForm::offsets: expect('('); return Mask::of_kind(kind.op, numbers(')'));
      case MaskForm::blocks: {
        expect('(');
        const Index q_block = number();
        expect(',');
        const Index kv_block = number();
        expect(';');
        const std::vector<Index> rows = numbers(';'), columns = numbers(')');
        return Mask::blocks(q_block, kv_block, rows, columns);
      }
      case MaskForm::dense:
      case MaskForm::join: break;
    }
    return {};
  }

  Mask either(int depth) {
    Mask m = both(depth);
    while (accept('|')) m = std::move(m) | both(depth);
    return m;
  }
  Mask both(int depth) {
    Mask m = term(depth);
    while (accept('&')) m = std::move(m) & term(depth);
    return m;
  }
  Mask term(int depth) {
    const std::size_t begin = skip_spaces();
    if (accept('(')) {
      require(depth < kMaxDepth, ErrorKind::bad_argument, "mask", "column ", begin + 1, ": more than ",
              kMaxDepth, " parentheses stand inside each other; write the expression flatter");
      Mask m = either(depth + 1);
      expect(')', "\"&\", \"|\" or \")\"");
      return m;
    }
    const std::string_view name = word();
    if (name == "dense" && dense_at_ < dense_.size()) {  // dense[batch heads q kv], as printed
      expect('[');
      for (int axis = 0; axis < 4; ++axis) number();
      expect(']');
      return dense_[dense_at_++];
    }
    if (name == "sliding") return Mask::sliding(list_of(1, -1)[0]);
    for (const MaskKind& kind : kMaskKinds)
      if (name == kind.name && kind.form != MaskForm::dense) return of_kind(kind);
    at_ = begin;
    require(name != "dense", ErrorKind::bad_argument, "mask", "column ", begin + 1,
            ": dense masks have no text; build one with Mask::dense");
    require(name != "per_head", ErrorKind::bad_argument, "mask", "column ", begin + 1,
            ": per_head must be outermost; combine each head's mask inside it");
    fail(terms());
  }

  std::string_view text_;
  std::span<const Mask> dense_;
  std::size_t at_ = 0, dense_at_ = 0;
};

}  // namespace

Mask parse_mask(std::string_view text, std::span<const Mask> dense) { return Parser(text, dense).whole(); }

}  // namespace headwise
