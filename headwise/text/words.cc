#include "headwise/text/words.h"

#include <algorithm>

#include "headwise/text/unicode.h"

namespace headwise {
namespace {

/// A code point after decomposition, with the source bytes of what it came from.
struct Piece {
  char32_t value;
  TextSpan span;
  int combining;
};

class Splitter {
 public:
  Splitter(const WordRules& rules, const std::function<void(const Word&)>& on_word)
      : rules_(rules), on_word_(on_word) {}

  /// BERT's order: clean, put Chinese apart, decompose and drop accents, lower case, cut at spaces and
  /// punctuation.
  void take(const CodePoint& c) {
    if (c.value == 0 || c.value == kReplacement) return;
    if (is_control(c.value)) return;  // before spaces: U+000B, U+000C and U+0085 are both
    if (is_white_space(c.value)) return space();
    const TextSpan span{c.begin, c.end};
    const bool apart = rules_.chinese_apart && is_chinese(c.value);
    if (apart) space();
    if (rules_.strip_accents) {
      points_.clear();
      append_decomposition(points_, c.value);
      for (const char32_t p : points_) hold({p, span, combining_class(p)});
    } else {
      lower(c.value, span);
    }
    if (apart) space();
  }
  void space() {
    flush();
    end_word();
  }

 private:
  /// Marks wait for the next code point that does not move: only then is their canonical order known.
  void hold(const Piece& piece) {
    if (piece.combining == 0) flush();
    held_.push_back(piece);
  }
  void flush() {
    if (held_.size() > 2)
      std::stable_sort(held_.begin() + (held_.front().combining == 0), held_.end(),
                       [](const Piece& a, const Piece& b) { return a.combining < b.combining; });
    else if (held_.size() == 2 && held_[0].combining > held_[1].combining)
      std::swap(held_[0], held_[1]);
    for (const Piece& p : held_)
      if (!is_accent(p.value)) lower(p.value, p.span);
    held_.clear();
  }
  void lower(char32_t value, TextSpan span) {
    if (!rules_.lower_case) return cut(value, span);
    points_lower_.clear();
    append_lower_case(points_lower_, value);
    for (const char32_t p : points_lower_) cut(p, span);
  }
  void cut(char32_t value, TextSpan span) {
    const bool alone = is_punctuation(value);
    if (alone) end_word();
    add(value, span);
    if (alone) end_word();
  }
  void add(char32_t value, TextSpan span) {
    word_.whole.begin = word_.chars ? std::min(word_.whole.begin, span.begin) : span.begin;
    word_.whole.end = word_.chars ? std::max(word_.whole.end, span.end) : span.end;
    if (word_.chars++ >= rules_.word_chars) return;
    word_.starts.push_back(static_cast<Index>(word_.text.size()));
    word_.spans.push_back(span);
    append_utf8(word_.text, value);
  }
  void end_word() {
    if (word_.chars == 0) return;
    on_word_(word_);
    word_.text.clear();
    word_.starts.clear();
    word_.spans.clear();
    word_.chars = 0;
  }

  const WordRules& rules_;
  const std::function<void(const Word&)>& on_word_;
  std::u32string points_, points_lower_;
  std::vector<Piece> held_;
  Word word_;
};

}  // namespace

Index split_words(std::string_view text, const WordRules& rules,
                  const std::function<void(const Word&)>& on_word) {
  Splitter splitter(rules, on_word);
  Index invalid = 0;
  for (Index at = 0; at < static_cast<Index>(text.size());) {
    const CodePoint c = decode_utf8(text, at);
    if (!c.valid) invalid += c.end - c.begin;
    splitter.take(c);
    at = c.end;
  }
  splitter.space();
  return invalid;
}

}  // namespace headwise
