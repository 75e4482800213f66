#include "headwise/lab/model/texts.h"

#include <algorithm>

#include "headwise/intent/corpus/corpus.h"
#include "headwise/model/file.h"
#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "texts";
constexpr Index kMostBytes = Index{1} << 30;

std::string bytes_of(const std::string& path) {
  std::string bytes = read_text(path, kMostBytes, kOp);
  return is_gzip(bytes) ? unpack_gzip(bytes, kMostBytes, path) : bytes;
}

/// f(line, number) for every line, without its line end.
template <class F>
void each_line(std::string_view bytes, std::string_view name, F&& f) {
  require(first_bad_utf8(bytes) < 0, ErrorKind::bad_argument, kOp, name,
          ": is no UTF-8; save it as UTF-8 without zero bytes");
  Index number = 1;
  for (std::size_t at = 0; at < bytes.size(); ++number) {
    const std::size_t end = std::min(bytes.find('\n', at), bytes.size());
    std::string_view line = bytes.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    f(line, number);
    at = end + 1;
  }
}

std::vector<std::string_view> columns_of(std::string_view line) {
  std::vector<std::string_view> all;
  for (;;) {
    const std::size_t tab = line.find('\t');
    all.push_back(line.substr(0, tab));
    if (tab == line.npos) return all;
    line.remove_prefix(tab + 1);
  }
}

Index number_of(std::string_view s) {
  if (s.empty() || s.size() > 6 || s.find_first_not_of("0123456789") != s.npos) return -1;
  return std::stol(std::string(s));
}

/// A sentence of CoNLL-U while it is read.
struct Sentence {
  RelatedText text;
  std::vector<Index> heads;  // of each word, 1-based; 0: the root
  std::vector<std::string> names;
  bool space = true;
  Index line = 0;

  void finish(std::string_view name, std::vector<RelatedText>& to) {
    const auto count = static_cast<Index>(heads.size());
    for (Index w = 0; w < count; ++w) {
      Index at = w + 1;
      for (Index steps = 0; at != 0; ++steps) {
        require(at <= count && steps <= count, ErrorKind::bad_argument, kOp, name, ", line ", line,
                ": the tree of this sentence has ", at <= count ? "a cycle" : "a head that is no word",
                "; mend or remove it");
        at = heads[static_cast<std::size_t>(at - 1)];
      }
      const std::string& relation = names[static_cast<std::size_t>(w)];
      if (heads[static_cast<std::size_t>(w)] != 0 && relation != "punct" && relation != "root")
        text.relations.push_back({relation, w, heads[static_cast<std::size_t>(w)] - 1});
    }
    if (count > 0) to.push_back(std::move(text));
    *this = {};
  }
};

}  // namespace

std::vector<std::string> read_texts(const std::string& path) {
  std::vector<std::string> texts;
  each_line(bytes_of(path), path, [&](std::string_view line, Index) {
    const std::string_view text = line.substr(0, line.find('\t'));
    if (text.find_first_not_of(' ') != text.npos) texts.emplace_back(text);
  });
  require(!texts.empty(), ErrorKind::bad_argument, kOp, path, ": holds no text; give one a line");
  return texts;
}

std::vector<RelatedText> parse_conllu(std::string_view bytes, std::string_view name) {
  std::vector<RelatedText> all;
  Sentence s;
  each_line(bytes, name, [&](std::string_view line, Index number) {
    if (line.empty()) return s.finish(name, all);
    if (line.starts_with('#')) return;
    const auto columns = columns_of(line);
    require(columns.size() == 10, ErrorKind::bad_argument, kOp, name, ", line ", number, ": has ",
            columns.size(), " columns; CoNLL-U has 10");
    if (number_of(columns[0]) < 0) return;  // 1-2 and 1.1: words of the surface, which have no tree
    const Index head = number_of(columns[6]);
    require(head >= 0, ErrorKind::bad_argument, kOp, name, ", line ", number, ": the head is \"", columns[6],
            "\"; it is the number of a word, or 0");
    if (s.heads.empty()) s.line = number;
    std::string& text = s.text.text;
    if (!text.empty() && s.space) text += ' ';
    s.text.words.emplace_back(static_cast<Index>(text.size()),
                              static_cast<Index>(text.size() + columns[1].size()));
    text += columns[1];
    s.space = columns[9].find("SpaceAfter=No") == std::string_view::npos;
    s.heads.push_back(head), s.names.emplace_back(columns[7].substr(0, columns[7].find(':')));
  });
  s.finish(name, all);
  require(!all.empty(), ErrorKind::bad_argument, kOp, name, ": holds no tree; give CoNLL-U");
  return all;
}

std::vector<RelatedText> read_conllu(const std::string& path) { return parse_conllu(bytes_of(path), path); }

std::vector<RelatedText> parse_pairs(std::string_view bytes, std::string_view name) {
  std::vector<RelatedText> all;
  each_line(bytes, name, [&](std::string_view line, Index number) {
    if (line.empty() || line.starts_with('#')) return;
    const auto columns = columns_of(line);
    require(columns.size() == 4, ErrorKind::bad_argument, kOp, name, ", line ", number, ": has ",
            columns.size(), " columns; give name, text, word and word with tabs between");
    RelatedText t{.text = std::string(columns[1])};
    const auto place = [&](std::string_view word, std::size_t from) {
      const std::size_t at = word.empty() ? std::string::npos : t.text.find(word, from);
      require(at != std::string::npos, ErrorKind::bad_argument, kOp, name, ", line ", number, ": \"", word,
              "\" is not in its text; name words as they stand there");
      t.words.emplace_back(static_cast<Index>(at), static_cast<Index>(at + word.size()));
      return at + word.size();
    };
    const std::size_t end = place(columns[2], 0);
    place(columns[3], columns[2] == columns[3] ? end : 0);
    t.relations.push_back({std::string(columns[0]), 0, 1});
    all.push_back(std::move(t));
  });
  require(!all.empty(), ErrorKind::bad_argument, kOp, name, ": holds no pair; give name, text, word, word");
  return all;
}

std::vector<RelatedText> read_pairs(const std::string& path) { return parse_pairs(bytes_of(path), path); }

}  // namespace headwise
