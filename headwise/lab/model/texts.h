// texts: plain texts, dependency trees and named pairs of words, read from files without trust.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// One text a line, of a line with tabs what stands before the first; gzip too. Empty lines are passed over.
/// Refused: a file without texts, bytes that are no UTF-8.
std::vector<std::string> read_texts(const std::string& path);

/// Words of a text as bytes [begin, end), and relations between two of them.
struct WordRelation {
  std::string name;
  Index from = 0, to = 0;  // numbers of words: the dependent and its head, or the two of a pair
};
struct RelatedText {
  std::string text = {};
  std::vector<std::pair<Index, Index>> words = {};
  std::vector<WordRelation> relations = {};
};

/// CoNLL-U: sentences as their words with a space between, unless SpaceAfter=No; a relation for every word
/// but root and punct, without its subtype. Refused with the line: a head that is no word, a tree with a
/// cycle, a line of other columns.
std::vector<RelatedText> read_conllu(const std::string& path);
std::vector<RelatedText> parse_conllu(std::string_view bytes, std::string_view name);

/// name<TAB>text<TAB>word<TAB>word a line: a relation of that name between the first places of both words in
/// the text. Refused with the line: a word that is not in its text.
std::vector<RelatedText> read_pairs(const std::string& path);
std::vector<RelatedText> parse_pairs(std::string_view bytes, std::string_view name);

}  // namespace headwise
#pragma GCC visibility pop
