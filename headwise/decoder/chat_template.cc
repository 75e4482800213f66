#include "headwise/decoder/chat_template.h"

#include <algorithm>

#include "headwise/base/error.h"
#include "headwise/text/unicode.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "chat";

// Templates as models' files have them. Line ends inside their texts may be spelt \n there.
constexpr std::string_view kChatmlBegin = "{% for message in messages %}";
constexpr std::string_view kChatmlSystem =
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n";
constexpr std::string_view kChatmlSystemEnd = "<|im_end|>\n' }}{% endif %}";
constexpr std::string_view kChatmlTurn =
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
constexpr std::string_view kLlama3 =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + "
    "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}";
constexpr std::string_view kLlama3Ends[] = {
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}",
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"};
constexpr std::string_view kGemma =
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') "
    "}}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) "
    "%}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif "
    "%}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = "
    "message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + "
    "'<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}";

constexpr std::string_view kTurns =
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles "
    "must alternate user/assistant/user/assistant/...') }}{% endif %}";
constexpr std::string_view kLlama2Begin =
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
    "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% "
    "endif %}{% for message in loop_messages %}";
constexpr std::string_view kLlama2Turn =
    "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\n' + system_message + "
    "'\n<</SYS>>\n\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% "
    "if "
    "message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif "
    "message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}";
constexpr std::string_view kMistralBegin = "{{ bos_token }}{% for message in messages %}";
constexpr std::string_view kMistralTurn =
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif "
    "message['role'] == 'assistant' %}{{ message['content'] + eos_token";
constexpr std::string_view kMistralEnd =
    "}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor "
    "%}";

bool take(std::string_view& text, std::string_view front) {
  if (!text.starts_with(front)) return false;
  text.remove_prefix(front.size());
  return true;
}

/// Without white space at both ends, as the templates' `trim`.
std::string_view trimmed(std::string_view s) {
  const auto white = [](char32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); };
  Index begin = 0, end = 0;
  bool seen = false;
  for (Index at = 0; at < static_cast<Index>(s.size());) {
    const CodePoint c = decode_utf8(s, at);
    at = c.end;
    if (white(c.value)) continue;
    if (!seen) begin = c.begin, seen = true;
    end = c.end;
  }
  return s.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace

std::optional<ChatTemplate> ChatTemplate::find(std::string_view given) {
  std::string plain(given);
  for (std::size_t at = 0; (at = plain.find("\\n", at)) != std::string::npos; ++at)
    plain.replace(at, 2, "\n");
  std::string_view rest = plain;
  if (rest == kGemma) return ChatTemplate(Kind::gemma, "");
  if (take(rest, kLlama3)) {
    if (std::find(std::begin(kLlama3Ends), std::end(kLlama3Ends), rest) == std::end(kLlama3Ends)) return {};
    return ChatTemplate(Kind::llama3, "");
  }
  if (take(rest, kLlama2Begin)) {
    if (!take(rest, kTurns) || rest != kLlama2Turn) return {};
    return ChatTemplate(Kind::llama2, "");
  }
  if (take(rest, kMistralBegin)) {
    if (!take(rest, kTurns) || !take(rest, kMistralTurn)) return {};
    const bool space = take(rest, " + ' ' ");  // 0.1; 0.2 writes none
    if (rest != kMistralEnd) return {};
    return ChatTemplate(Kind::mistral, space ? " " : "");
  }
  if (!take(rest, kChatmlBegin)) return {};
  std::string system;
  if (take(rest, kChatmlSystem)) {
    const std::size_t end = rest.find(kChatmlSystemEnd);
    if (end == std::string_view::npos) return {};
    system = rest.substr(0, end);
    if (system.find_first_of("'\\{}<") != std::string::npos) return {};
    rest.remove_prefix(end + kChatmlSystemEnd.size());
  }
  if (rest != kChatmlTurn) return {};
  return ChatTemplate(Kind::chatml, std::move(system));
}

std::string_view ChatTemplate::name() const {
  switch (kind_) {
    case Kind::chatml: return "chatml";
    case Kind::llama2: return "llama2";
    case Kind::llama3: return "llama3";
    case Kind::mistral: return "mistral";
    case Kind::gemma: return "gemma";
  }
  return "";
}

void ChatTemplate::check(std::span<const ChatMessage> messages) const {
  require(!messages.empty(), ErrorKind::bad_argument, kOp, "there is no message; give at least one");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    require(role == "system" || role == "user" || role == "assistant", ErrorKind::bad_argument, kOp,
            "message ", i, " has the role \"", role, "\"; system, user and assistant are known");
    if (kind_ == Kind::chatml || kind_ == Kind::llama3) continue;
    const bool told = kind_ == Kind::llama2 && messages[0].role == "system";
    if (told && i == 0) continue;
    require(role == ((i + (told ? 1 : 0)) % 2 == 0 ? "user" : "assistant"), ErrorKind::bad_argument, kOp,
            "message ", i, " is the ", role, "'s; this model takes user and assistant in turns, and ",
            kind_ == Kind::llama2 ? "a system before them alone" : "no system");
  }
  require(kind_ != Kind::llama2 || messages.size() > 1 || messages[0].role != "system",
          ErrorKind::bad_argument, kOp,
          "the system is told something and nobody asks; give a user's message");
}

void ChatTemplate::turn(const ChatMessage& m, std::vector<Part>& out) const {
  const auto special = [&](const char* text) { out.push_back({text, true}); };
  const auto plain = [&](std::string text) { out.push_back({std::move(text), false}); };
  switch (kind_) {
    case Kind::chatml:
      special("<|im_start|>"), plain(m.role + "\n" + m.content), special("<|im_end|>"), plain("\n");
      return;
    case Kind::llama2:
      if (m.role == "user")
        special("<s>"), plain("[INST] " + std::string(trimmed(m.content)) + " [/INST]");
      else
        plain(" " + std::string(trimmed(m.content)) + " "), special("</s>");
      return;
    case Kind::mistral:
      if (m.role == "user")
        plain("[INST] " + m.content + " [/INST]");
      else
        plain(m.content), special("</s>"), plain(system_);
      return;
    case Kind::llama3:
      special("<|start_header_id|>"), plain(m.role), special("<|end_header_id|>");
      plain("\n\n" + std::string(trimmed(m.content))), special("<|eot_id|>");
      return;
    case Kind::gemma:
      special("<start_of_turn>");
      plain((m.role == "assistant" ? "model" : m.role) + "\n" + std::string(trimmed(m.content)));
      special("<end_of_turn>"), plain("\n");
      return;
  }
}

std::vector<ChatTemplate::Part> ChatTemplate::parts_of(std::span<const ChatMessage> messages) const {
  std::vector<Part> parts;
  if (kind_ == Kind::llama2 && messages[0].role == "system") {
    ChatMessage first = messages[1];
    first.content = "<<SYS>>\n" + messages[0].content + "\n<</SYS>>\n\n" + first.content;
    turn(first, parts);
    messages = messages.subspan(2);
  }
  if (kind_ == Kind::chatml && !system_.empty() && messages[0].role != "system")
    turn({"system", system_}, parts);
  for (const ChatMessage& m : messages) turn(m, parts);
  if (!instructs()) {
    std::vector<Part> open;  // the turn of the model: as one of an assistant, without what ends it
    turn({"assistant", ""}, open);
    const auto last = std::find_if(open.rbegin(), open.rend(), [](const Part& p) { return p.special; });
    parts.insert(parts.end(), open.begin(), last.base() - 1);
  }
  std::vector<Part> joined;  // text that stands together is one piece for the tokenizer
  for (Part& p : parts)
    if (!p.special && !joined.empty() && !joined.back().special)
      joined.back().text += p.text;
    else
      joined.push_back(std::move(p));
  return joined;
}

std::vector<TokenId> ChatTemplate::encode(std::span<const ChatMessage> messages,
                                          const Tokenizer& tokenizer) const {
  check(messages);
  const std::vector<Part> parts = parts_of(messages);
  std::vector<TokenId> ids;
  if (kind_ != Kind::chatml && kind_ != Kind::llama2)
    ids.push_back(tokenizer.begin_token());  // these templates write it themselves
  for (const Part& p : parts) {
    if (!p.special) {
      const auto more = tokenizer.encode(p.text, {.specials = false, .begin = false});
      ids.insert(ids.end(), more.begin(), more.end());
      continue;
    }
    ids.push_back(tokenizer.special(p.text));
    require(ids.back() >= 0, ErrorKind::bad_argument, kOp, "the template needs the token ", p.text,
            "; the tokenizer has none");
  }
  require(ids[0] >= 0, ErrorKind::bad_argument, kOp,
          "the template needs a token of the beginning; the tokenizer has none");
  return ids;
}

}  // namespace headwise
