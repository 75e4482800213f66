#include "headwise/cli/intent/surface.h"

#include <cstdlib>

namespace headwise::cli {
namespace {

constexpr PredictWords kEnglish = {
    .none = "none of its intents: the likeliest has {:.1f} %, below {:.1f} %",
    .said_by = "{} said by \"{}\"",
    .reasons = "said by  {}",
    .missed = "missed   it has {:.1f} % and would need {}{:.1f} %{}: {:.2f} more in log-odds",
    .more_than = "more than ",
    .which_has = ", which {} has",
    .against = "against  {}",
    .no_word = "no single word",
    .without = "without  {} it would be given",
    .either = " or ",
    .words = "words    {}",
    .heads = "heads    {}",
    .head = "layer {} head {} {:+.2f}",
    .no_heads = "this kind of head has no outputs of its own",
    .lines = "texts, one a line; Ctrl-D ends\n",
};
constexpr PredictWords kChinese = {
    .none = "不属于任何意图：最可能的为 {:.1f} %，低于 {:.1f} %",
    .said_by = "{} 依据“{}”",
    .reasons = "依据  {}",
    .missed = "落选  它有 {:.1f} %，需要{}{:.1f} %{}：对数几率还差 {:.2f}",
    .more_than = "高于 ",
    .which_has = "（{} 的概率）",
    .against = "反对  {}",
    .no_word = "没有哪个单独的词",
    .without = "去掉  {} 就会给出",
    .either = " 或 ",
    .words = "各词  {}",
    .heads = "各头  {}",
    .head = "层 {} 头 {} {:+.2f}",
    .no_heads = "这种头没有自己的输出",
    .lines = "每行一段文本；Ctrl-D 结束\n",
};

}  // namespace

std::string surface_language(const std::string& asked) {
  if (!asked.empty()) return asked;
  for (const char* name : {"LC_ALL", "LC_MESSAGES", "LANG"})
    if (const char* value = std::getenv(name); value != nullptr && *value != 0)
      return std::string(value).starts_with("zh") ? "zh" : "en";
  return "en";
}

const PredictWords& predict_words(const std::string& language) {
  return language == "zh" ? kChinese : kEnglish;
}

void add_language_option(CLI::App& word, std::string& language) {
  word.add_option("--language", language, "Of what is said about an answer: en or zh; else as the locale")
      ->check(CLI::IsMember({"en", "zh"}));
}

}  // namespace headwise::cli
