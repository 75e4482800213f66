#include "headwise/text/pieces/word_patterns.h"

#include "headwise/text/unicode.h"

namespace headwise {
namespace {

enum class Kind : std::uint8_t { letter, number, space, sign };

struct Letter {
  CodePoint point;
  Kind kind;
  bool line_end() const { return point.value == '\r' || point.value == '\n'; }
};

Kind kind_of(const CodePoint& c) {
  if (!c.valid) return Kind::sign;
  if (is_unicode_letter(c.value)) return Kind::letter;
  if (is_unicode_number(c.value)) return Kind::number;
  return is_white_space(c.value) ? Kind::space : Kind::sign;
}

/// Each function gives the place behind the word that begins at `at`; they stand in the order of the pattern.
class Cutter {
 public:
  Cutter(std::string_view text, WordPattern pattern) : text_(text), pattern_(pattern) {
    for (Index at = 0; at < static_cast<Index>(text.size()); at = all_.back().point.end) {
      const CodePoint c = decode_utf8(text, at);
      all_.push_back({c, kind_of(c)});
    }
  }

  std::vector<std::string_view> words() {
    const bool digits_first = pattern_ == WordPattern::smollm;
    for (std::size_t at = 0; at < all_.size();) {
      end_ = at;
      while (end_ < all_.size() && !(digits_first && all_[end_].kind == Kind::number)) ++end_;
      while (at < end_) {
        const bool plain = pattern_ == WordPattern::gpt2 || digits_first;
        const std::size_t next = plain ? word_gpt2(at) : word_llama3(at);
        add(at, next);
        at = next;
      }
      if (at < all_.size()) add(at, at + 1), ++at;
    }
    return std::move(words_);
  }

 private:
  void add(std::size_t from, std::size_t to) {
    const auto begin = static_cast<std::size_t>(all_[from].point.begin);
    words_.push_back(text_.substr(begin, static_cast<std::size_t>(all_[to - 1].point.end) - begin));
  }
  std::size_t run(std::size_t at, Kind kind) const {
    while (at < end_ && all_[at].kind == kind) ++at;
    return at;
  }
  char32_t lower(std::size_t at, bool any_case) const {
    if (at >= end_) return 0;
    const char32_t c = all_[at].point.value;
    if (!any_case) return c;
    if (c == 0x17f) return 's';  // the long s is an s in any case
    return c >= 'A' && c <= 'Z' ? c + 32 : c;
  }
  /// 's 't 're 've 'm 'll 'd; 0: none begins here.
  std::size_t suffix(std::size_t at, bool any_case) const {
    if (all_[at].point.value != '\'') return 0;
    const char32_t a = lower(at + 1, any_case), b = lower(at + 2, any_case);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
    return 0;
  }
  /// White space at `at`: all of it at the end of the text; else all but the last, or the only one.
  std::size_t spaces(std::size_t at) const {
    const std::size_t next = run(at, Kind::space);
    return next == end_ || next == at + 1 ? next : next - 1;
  }

  std::size_t word_gpt2(std::size_t at) const {
    if (const std::size_t next = suffix(at, false); next != 0) return next;
    const bool led = all_[at].point.value == ' ' && at + 1 < end_ && all_[at + 1].kind != Kind::space;
    const std::size_t first = led ? at + 1 : at;
    return all_[first].kind == Kind::space ? spaces(at) : run(first, all_[first].kind);
  }

  std::size_t word_llama3(std::size_t at) const {
    if (const std::size_t next = suffix(at, true); next != 0) return next;
    const Letter& c = all_[at];
    if (c.kind == Kind::letter) return run(at, Kind::letter);
    if (!c.line_end() && c.kind != Kind::number && at + 1 < end_ && all_[at + 1].kind == Kind::letter)
      return run(at + 1, Kind::letter);
    if (c.kind == Kind::number) {
      std::size_t next = at + 1;
      for (int more = pattern_ == WordPattern::llama3 ? 2 : 0; more > 0; --more)
        if (next < end_ && all_[next].kind == Kind::number) ++next;
      return next;
    }
    const bool led = c.point.value == ' ' && at + 1 < end_ && all_[at + 1].kind == Kind::sign;
    if (c.kind == Kind::sign || led) {
      std::size_t next = run(led ? at + 1 : at, Kind::sign);
      while (next < end_ && all_[next].line_end()) ++next;
      return next;
    }
    std::size_t last_line = run(at, Kind::space);
    while (last_line > at && !all_[last_line - 1].line_end()) --last_line;
    return last_line > at ? last_line : spaces(at);
  }

  std::string_view text_;
  WordPattern pattern_;
  std::vector<Letter> all_;
  std::size_t end_ = 0;  // of the piece that is cut now
  std::vector<std::string_view> words_;
};

}  // namespace

std::optional<WordPattern> gguf_word_pattern(std::string_view name) {
  if (name == "gpt-2") return WordPattern::gpt2;
  if (name == "smollm") return WordPattern::smollm;
  if (name == "llama-bpe") return WordPattern::llama3;
  if (name == "qwen2") return WordPattern::qwen2;
  return {};
}

std::optional<WordPattern> split_word_pattern(std::string_view expression) {
  constexpr std::string_view kHead = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})";
  constexpr std::string_view kTail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (expression.size() < kHead.size() + kTail.size()) return {};
  if (!expression.starts_with(kHead) || !expression.ends_with(kTail)) return {};
  const std::string_view digits =
      expression.substr(kHead.size(), expression.size() - kHead.size() - kTail.size());
  if (digits == "{1,3}") return WordPattern::llama3;
  if (digits.empty()) return WordPattern::qwen2;
  return {};
}

std::vector<std::string_view> pattern_words(WordPattern pattern, std::string_view text) {
  return Cutter(text, pattern).words();
}

}  // namespace headwise
