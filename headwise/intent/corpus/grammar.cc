#include "headwise/intent/corpus/grammar.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "headwise/base/error.h"
#include "headwise/base/words.h"
#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

/// The next word of `line`, which loses it.
std::string take_word(std::string_view& line) {
  line = trimmed(line);
  const std::size_t end = std::min(line.find(' '), line.size());
  const std::string word(line.substr(0, end));
  line = trimmed(line.substr(end));
  return word;
}

class Parser {
 public:
  Parser(Grammar& grammar, std::string_view name) : grammar_(grammar), name_(name) {}

  void line(std::string_view all) {
    ++number_;
    if (trimmed(all).empty() || all[0] == '#') return;
    if (all.starts_with("intent ")) return intent(all.substr(7));
    const std::size_t colon = all.find(':');
    check(colon != std::string_view::npos, "has no colon");
    std::string_view front = all.substr(0, colon);
    const std::string_view body = trimmed(all.substr(colon + 1));
    check(!body.empty(), "has nothing behind its colon");
    std::string word = take_word(front);
    if (word == "slot") {
      const std::string language = take_word(front), slot = take_word(front);
      check(!slot.empty() && front.empty(), "must read slot LANGUAGE NAME: a | b");
      check(grammar_.languages[language].slots.try_emplace(slot, choices(body)).second,
            "defines a slot again");
    } else if (word == "open") {
      grammar_.languages[take_word(front)].openings = choices(body);
    } else if (word == "join") {
      const std::string language = take_word(front);
      check(body.find("{a}") != std::string_view::npos && body.find("{b}") != std::string_view::npos,
            "joins without {a} and {b}");
      add(grammar_.languages[language].joins, front, body);
    } else {
      check(!grammar_.intents.empty(), "stands before the first intent");
      check(grammar_.languages.contains(word), "begins with ", headwise::quoted(word),
            ", which is neither slot, open, join, intent nor a language with slots");
      check_slots(grammar_.languages[word], body);
      check(seen_.insert(std::string(body)).second, "repeats a template");
      add(grammar_.intents.back().languages[word], front, body);
    }
  }
  void finish() {
    check(!grammar_.intents.empty(), "ends without an intent");
    for (const GrammarIntent& i : grammar_.intents)
      for (const auto& [language, templates] : i.languages)
        check(!templates.train.empty() && !templates.test.empty(), "ends, and intent ", i.name, " has no ",
              templates.train.empty() ? "training" : "held-out", " template in ", language);
  }

 private:
  template <class... Parts>
  void check(bool ok, const Parts&... parts) const {
    require(ok, ErrorKind::bad_argument, "grammar", name_, ": line ", number_, " ", parts...);
  }
  void intent(std::string_view rest) {
    GrammarIntent i;
    i.name = take_word(rest);
    i.group = take_word(rest);
    check(!i.group.empty() && rest.empty(), "must read intent NAME GROUP");
    check(std::none_of(grammar_.intents.begin(), grammar_.intents.end(),
                       [&](const GrammarIntent& o) { return o.name == i.name; }),
          "names intent ", i.name, " again");
    grammar_.intents.push_back(std::move(i));
  }
  void add(Templates& templates, std::string_view kind, std::string_view body) {
    check(kind.empty() || kind == "test", "has ", headwise::quoted(kind), " where only test may stand");
    (kind.empty() ? templates.train : templates.test).emplace_back(body);
  }
  std::vector<std::string> choices(std::string_view body) const {
    std::vector<std::string> out;
    for (;;) {
      const std::size_t bar = body.find('|');
      const std::string_view one = trimmed(body.substr(0, bar));
      check(!one.empty(), "has an empty choice");
      int first = 0, last = 0;
      const char* const end = one.data() + one.size();
      const auto [dots, bad] = std::from_chars(one.data(), end, first);
      if (bad == std::errc() &&
          std::string_view(dots, static_cast<std::size_t>(end - dots)).starts_with("..")) {
        const auto [stop, wrong] = std::from_chars(dots + 2, end, last);
        check(wrong == std::errc() && stop == end && first <= last && last - first < 10000,
              "has a range that counts badly");
        for (int i = first; i <= last; ++i) out.push_back(std::to_string(i));
      } else {
        out.emplace_back(one);
      }
      if (bar == std::string_view::npos) return out;
      body.remove_prefix(bar + 1);
    }
  }
  void check_slots(const GrammarLanguage& language, std::string_view body) const {
    for (std::size_t at = body.find('{'); at != std::string_view::npos; at = body.find('{', at + 1)) {
      const std::size_t end = body.find('}', at);
      check(end != std::string_view::npos, "opens a slot and does not close it");
      const std::string slot(body.substr(at + 1, end - at - 1));
      check(language.slots.contains(slot), "uses slot ", headwise::quoted(slot),
            ", which no line above defines");
    }
  }

  Grammar& grammar_;
  std::string_view name_;
  Index number_ = 0;
  std::set<std::string> seen_;
};

}  // namespace

Grammar Grammar::parse(std::string_view text, std::string_view name) {
  require(first_bad_utf8(text) < 0, ErrorKind::bad_argument, "grammar", name,
          ": is no UTF-8 text; convert it");
  Grammar grammar;
  Parser parser(grammar, name);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    parser.line(text.substr(at, end - at));
    at = end + 1;
  }
  parser.finish();
  return grammar;
}

}  // namespace headwise
