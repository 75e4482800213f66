#include "headwise/text/wordpiece.h"

#include <algorithm>

#include "headwise/base/error.h"

namespace headwise {

WordPiece::WordPiece(Vocabulary vocabulary, WordPieceOptions options)
    : vocabulary_(std::move(vocabulary)),
      options_(std::move(options)),
      unknown_(vocabulary_.find(options_.unknown)),
      cls_(vocabulary_.find("[CLS]")),
      sep_(vocabulary_.find("[SEP]")) {
  require(unknown_ >= 0, ErrorKind::bad_argument, "wordpiece", "the vocabulary has no ", options_.unknown,
          ", which stands for words it cannot build; add it or name another");
  require(options_.words.word_chars > 0, ErrorKind::bad_argument, "wordpiece", "word_chars is ",
          options_.words.word_chars, "; a word has at least one character");
}

void WordPiece::add_word(const Word& word, Encoding& out) const {
  const std::size_t before = out.ids.size();
  const auto fail = [&] {
    out.ids.resize(before);
    out.spans.resize(before);
    out.ids.push_back(unknown_);
    out.spans.push_back(word.whole);
  };
  if (word.chars > options_.words.word_chars) return fail();
  const std::string_view text = word.text;
  std::size_t first = 0;  // the code point the next piece begins with
  while (first < word.starts.size()) {
    const auto at = static_cast<std::size_t>(word.starts[first]);
    const Vocabulary::Match match =
        vocabulary_.longest(first == 0 ? std::string_view() : options_.inside, text.substr(at));
    if (match.id < 0) return fail();
    const Index end = static_cast<Index>(at) + match.bytes;
    // Pieces and words are well-formed UTF-8, so a piece ends where a code point does.
    const auto next = static_cast<std::size_t>(std::lower_bound(word.starts.begin(), word.starts.end(), end) -
                                               word.starts.begin());
    TextSpan span = word.spans[first];
    for (std::size_t i = first + 1; i < next; ++i) {
      span.begin = std::min(span.begin, word.spans[i].begin);
      span.end = std::max(span.end, word.spans[i].end);
    }
    out.ids.push_back(match.id);
    out.spans.push_back(span);
    first = next;
  }
}

Encoding WordPiece::encode(std::string_view text, const EncodeOptions& options) const {
  require(!options.around || (cls_ >= 0 && sep_ >= 0), ErrorKind::bad_argument, "wordpiece",
          "the vocabulary has no ", cls_ < 0 ? "[CLS]" : "[SEP]", "; add it or encode without around");
  const Index added = options.around ? 2 : 0;
  require(options.most < 0 || options.most >= added, ErrorKind::bad_argument, "wordpiece", "most is ",
          options.most, "; [CLS] and [SEP] alone are 2 tokens");
  Encoding out;
  if (options.around) {
    out.ids.push_back(cls_);
    out.spans.push_back({0, 0});
  }
  out.invalid_bytes = split_words(text, options_.words, [&](const Word& word) {
    const auto room = static_cast<std::size_t>(options.most - added / 2);
    if (out.cut) return;
    add_word(word, out);
    if (options.most >= 0 && out.ids.size() > room) {
      out.ids.resize(room);
      out.spans.resize(room);
      out.cut = true;
    }
  });
  if (options.around) {
    const auto end = static_cast<Index>(text.size());
    out.ids.push_back(sep_);
    out.spans.push_back({end, end});
  }
  return out;
}

std::string WordPiece::decode(std::span<const TokenId> ids) const {
  std::string out;
  for (const TokenId id : ids) {
    const std::string& piece = vocabulary_.piece(id);
    if (!out.empty() && piece.starts_with(options_.inside) && piece.size() > options_.inside.size()) {
      out.append(piece, options_.inside.size());
    } else {
      if (!out.empty()) out += ' ';
      out += piece;
    }
  }
  return out;
}

}  // namespace headwise
