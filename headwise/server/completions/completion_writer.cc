#include "headwise/server/completions/completion_writer.h"

#include <array>
#include <charconv>
#include <cmath>
#include <ctime>
#include <set>

#include "headwise/base/words.h"
#include "headwise/server/http/http_response.h"

namespace headwise::server {
namespace {

/// The shortest decimal that reads back as the same number; what is not finite is null.
std::string number(double x) {
  if (!std::isfinite(x)) return "null";
  std::array<char, 40> digits;
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), x).ptr};
}

std::string finish_json(Finish f) {
  if (f == Finish::none) return "null";
  return f == Finish::stop ? "\"stop\"" : "\"length\"";
}

std::string event(const std::string& json) { return "data: " + json + "\n\n"; }

void append(std::string& list, const std::string& item) { list += (list.empty() ? "" : ", ") + item; }

}  // namespace

std::string error_json(const CompletionFault& f) {
  const std::string_view type = f.status == 429  ? "rate_limit_error"
                                : f.status < 500 ? "invalid_request_error"
                                                 : "server_error";
  return headwise::text("{\"error\": {\"message\": ", page_string(f.message),
                        ", \"type\": ", page_string(type),
                        ", \"param\": ", f.param.empty() ? "null" : page_string(f.param),
                        ", \"code\": ", page_string(f.code), "}}");
}

CompletionWriter::CompletionWriter(const CompletionRequest& request, const Tokenizer* tokenizer,
                                   std::string model, std::uint64_t number)
    : chat_(request.kind == CompletionKind::chat),
      streamed_(request.stream),
      usage_asked_(request.include_usage),
      logprobs_asked_(request.requests[0].logprobs >= 0),
      tokenizer_(tokenizer),
      model_(page_string(model)),
      id_(headwise::text(chat_ ? "chatcmpl-" : "cmpl-", number)),
      created_(static_cast<std::int64_t>(std::time(nullptr))),
      prompt_tokens_(request.prompt_tokens),
      choices_(request.requests.size()),
      open_(choices_.size()) {
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].text = request.echoes[i];
  }
}

std::string CompletionWriter::printable(TokenId id) const {
  if (tokenizer_ == nullptr) return std::to_string(id);
  TextStream stream;
  std::string out = stream.push(tokenizer_->bytes(id));
  return out + stream.finish();
}

std::string CompletionWriter::token_json(TokenId id, double logprob) const {
  std::string bytes;
  if (tokenizer_ != nullptr)
    for (const char c : tokenizer_->bytes(id))
      append(bytes, std::to_string(static_cast<int>(static_cast<unsigned char>(c))));
  return headwise::text("\"token\": ", page_string(printable(id)), ", \"logprob\": ", number(logprob),
                        ", \"bytes\": [", bytes, "]");
}

void CompletionWriter::add_logprobs(Choice& c, const Drawn& d) const {
  if (chat_) {
    std::string top;
    for (const TokenLogprob& t : d.top) append(top, "{" + token_json(t.token, t.logprob) + "}");
    append(c.logprobs[0], "{" + token_json(d.token, d.logprob) + ", \"top_logprobs\": [" + top + "]}");
    return;
  }
  const std::string word = printable(d.token);
  std::string top;
  std::set<std::string> seen;  // two ids may share a form: a map holds the likelier one
  for (const TokenLogprob& t : d.top)
    if (seen.insert(printable(t.token)).second)
      append(top, page_string(printable(t.token)) + ": " + number(t.logprob));
  if (seen.insert(word).second) append(top, page_string(word) + ": " + number(d.logprob));
  append(c.logprobs[0], page_string(word)), append(c.logprobs[1], number(d.logprob));
  append(c.logprobs[2], "{" + top + "}"), append(c.logprobs[3], std::to_string(c.offset));
  for (const char b : word) c.offset += (static_cast<unsigned char>(b) & 0xc0u) != 0x80u;
}

std::string CompletionWriter::logprobs_json(const Choice& c) const {
  if (!logprobs_asked_) return "null";
  if (chat_) return "{\"content\": [" + c.logprobs[0] + "], \"refusal\": null}";
  return headwise::text("{\"tokens\": [", c.logprobs[0], "], \"token_logprobs\": [", c.logprobs[1],
                        "], \"top_logprobs\": [", c.logprobs[2], "], \"text_offset\": [", c.logprobs[3],
                        "]}");
}

std::string CompletionWriter::head(std::string_view object) const {
  return headwise::text("{\"id\": \"", id_, "\", \"object\": \"", object, "\", \"created\": ", created_,
                        ", \"model\": ", model_);
}

std::string CompletionWriter::usage() const {
  Index drawn = 0;
  for (const Choice& c : choices_) drawn += static_cast<Index>(c.tokens.size());
  return headwise::text("{\"prompt_tokens\": ", prompt_tokens_, ", \"completion_tokens\": ", drawn,
                        ", \"total_tokens\": ", prompt_tokens_ + drawn, "}");
}

std::string CompletionWriter::take(std::size_t at, const GenerateEvent& e) {
  Choice& c = choices_[at];
  std::string piece = e.text;
  if (streamed_ && !c.begun) piece = c.text + piece;  // the echo
  c.text += e.text;
  c.tokens.insert(c.tokens.end(), e.tokens.begin(), e.tokens.end());
  if (streamed_)
    for (std::string& list : c.logprobs) list.clear();
  for (const Drawn& d : e.drawn) add_logprobs(c, d);
  c.finish = e.finish;
  if (e.finish != Finish::none) --open_;
  if (!streamed_) return "";
  const bool first = !std::exchange(c.begun, true);
  if (piece.empty() && e.finish == Finish::none && c.logprobs[0].empty() && !first) return "";
  const std::string usage = usage_asked_ ? ", \"usage\": null}" : "}";
  std::string out;
  const auto chunk = [&](const std::string& delta, const std::string& logprobs, Finish finish) {
    out += event(headwise::text(head(chat_ ? "chat.completion.chunk" : "text_completion"),
                                ", \"choices\": [{\"index\": ", at, ", ", delta, ", \"logprobs\": ", logprobs,
                                ", \"finish_reason\": ", finish_json(finish), "}]", usage));
  };
  if (!chat_) {
    chunk("\"text\": " + page_string(piece), logprobs_json(c), e.finish);
    return out;
  }
  if (first) chunk(R"("delta": {"role": "assistant", "content": ""})", "null", Finish::none);
  if (!piece.empty() || !c.logprobs[0].empty())
    chunk("\"delta\": {\"content\": " + page_string(piece) + "}", logprobs_json(c), Finish::none);
  if (e.finish != Finish::none) chunk("\"delta\": {}", "null", e.finish);
  return out;
}

std::string CompletionWriter::last_events() const {
  const std::string end = "data: [DONE]\n\n";
  if (!usage_asked_) return end;
  return event(headwise::text(head(chat_ ? "chat.completion.chunk" : "text_completion"),
                              ", \"choices\": [], \"usage\": ", usage(), "}")) +
         end;
}

std::string CompletionWriter::error_event(const CompletionFault& fault) { return event(error_json(fault)); }

std::string CompletionWriter::whole() const {
  std::string list;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Choice& c = choices_[i];
    const std::string said =
        chat_ ? "\"message\": {\"role\": \"assistant\", \"content\": " + page_string(c.text) +
                    ", \"refusal\": null}"
              : "\"text\": " + page_string(c.text);
    append(list, headwise::text("{\"index\": ", i, ", ", said, ", \"logprobs\": ", logprobs_json(c),
                                ", \"finish_reason\": ", finish_json(c.finish), "}"));
  }
  return headwise::text(head(chat_ ? "chat.completion" : "text_completion"), ", \"choices\": [", list,
                        "], \"usage\": ", usage(), "}\n");
}

}  // namespace headwise::server
