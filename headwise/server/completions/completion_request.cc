#include "headwise/server/completions/completion_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <random>

#include "headwise/model/json_object.h"
#include "headwise/model/json_reader.h"
#include "headwise/server/completions/completion_keys.h"

namespace headwise::server {
namespace {

constexpr std::string_view kWhere = "the body";
constexpr Index kMost = Index{1} << 40;

[[noreturn]] void refuse(std::string param, std::string message, int status = 400,
                         std::string code = "bad_request") {
  throw CompletionFault{status, std::move(code), std::move(message), std::move(param)};
}

class Reader {
 public:
  Reader(std::string_view body, CompletionKind kind, const CompletionContext& context)
      : json_(body, kWhere), kind_(kind), context_(context) {
    out_.kind = kind;
  }

  CompletionRequest read() {
    check_keys();
    const std::string model = json_.word("model", context_.model);
    if (model != context_.model)
      refuse("model", text("the model ", quoted(model), " is not served; ", quoted(context_.model), " is"),
             404, "model_not_found");
    read_prompts();
    read_options();
    read_stream();
    add_requests();
    return std::move(out_);
  }

 private:
  void check_keys() const {
    for (const std::string& key : json_.keys())
      if (std::none_of(std::begin(kCompletionKeys), std::end(kCompletionKeys),
                       [&](const CompletionKey& k) { return k.name == key && k.of(kind_); }))
        refuse(key, text("the key ", quoted(key), " is not known here"));
    if (json_.integer("best_of", 1, 1, 1) != 1 || json_.has("suffix"))
      refuse(json_.has("suffix") ? "suffix" : "best_of", "this is not offered; leave it out");
  }

  /// A text, ids, or a list of either.
  void read_prompts() {
    const bool talks = json_.has("messages");
    if (kind_ == CompletionKind::chat || talks) {
      if (json_.has("prompt")) refuse("prompt", "give prompt or messages, not both");
      return read_messages();
    }
    const std::string* value = json_.raw("prompt");
    if (value == nullptr) refuse("prompt", "a prompt is needed: a text, a list of ids, or a list of such");
    JsonReader r(*value, text(kWhere, ": \"prompt\""));
    if (!r.try_take('[')) return add_prompt(prompt_text(r));
    if (r.peek() != '"' && r.peek() != '[' && r.peek() != ']') return add_prompt(prompt_ids(r, *value));
    for (bool first = true; !r.try_take(']'); first = false) {
      if (!first) r.take(',', "a list of prompts");
      if (std::ssize(prompts_) >= context_.limits.prompts)
        refuse("prompt", text("a request may have ", context_.limits.prompts, " prompts"));
      add_prompt(r.try_take('[') ? prompt_ids(r, *value) : prompt_text(r));
    }
    if (prompts_.empty()) refuse("prompt", "the list of prompts is empty; give one or more");
    if (kind_ == CompletionKind::heads && prompts_.size() > 1)
      refuse("prompt", "the heads of one prompt are watched at a time; send one");
  }
  std::vector<TokenId> prompt_text(JsonReader& r) {
    const std::string text = r.string("a prompt", kMost);
    return tokenizer().encode(text);
  }
  /// What `r` reads next in `all`: an id may be written 129.0, as a client without whole numbers does.
  std::vector<TokenId> prompt_ids(JsonReader& r, std::string_view all) const {
    std::vector<TokenId> ids;
    for (bool first = true; !r.try_take(']'); first = false) {
      if (!first) r.take(',', "a list of ids");
      r.peek();
      const std::size_t begin = r.at();
      r.skip("an id", 1);
      const std::string_view word = all.substr(begin, r.at() - begin);
      double id = -1;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
      const bool whole = error == std::errc() && end == word.data() + word.size() && id == std::floor(id);
      if (!whole || id < 0 || id >= static_cast<double>(context_.vocabulary))
        refuse("prompt", text("the prompt has token ", word.substr(0, 20),
                              "; ids are whole numbers from 0 to ", context_.vocabulary - 1));
      ids.push_back(static_cast<TokenId>(id));
    }
    return ids;
  }
  void read_messages() {
    if (context_.chat == nullptr)
      refuse("messages",
             "the model's template for conversations is not known; send a prompt to /v1/completions", 404,
             "no_template");
    std::vector<ChatMessage> messages;
    for (const JsonObject& m : json_.objects("messages")) {
      for (const std::string& key : m.keys())
        if (key != "role" && key != "content" && key != "name" && m.has(key))
          refuse("messages", text("the key ", quoted(key), " of a message is not known here"));
      m.word("name", std::string());  // of the right type: templates do not ask for it
      std::string role = m.word("role");
      if (role == "developer") role = "system";
      messages.push_back({std::move(role), content_of(m)});
    }
    try {
      add_prompt(context_.chat->encode(messages, tokenizer()));
    } catch (const Error& e) {
      refuse("messages", e.what());
    }
  }
  /// A text, or a list of parts of the type text.
  static std::string content_of(const JsonObject& m) {
    if (!m.has("content") || m.is_text("content")) return m.word("content", std::string());
    std::string all;
    for (const JsonObject& part : m.objects("content")) {
      if (part.word("type") != "text") part.refuse("type", "text parts alone are read");
      all += part.word("text");
    }
    return all;
  }
  void add_prompt(std::vector<TokenId> ids) {
    if (ids.empty()) refuse(kind_ == CompletionKind::chat ? "messages" : "prompt", "the prompt has no token");
    if (std::ssize(ids) > context_.positions)
      refuse(kind_ == CompletionKind::chat ? "messages" : "prompt",
             text("the prompt has ", ids.size(), " tokens; the model has ", context_.positions, " positions"),
             400, "context_length_exceeded");
    out_.prompt_tokens += std::ssize(ids);
    prompts_.push_back(std::move(ids));
  }
  const Tokenizer& tokenizer() const {
    if (context_.tokenizer == nullptr) refuse("prompt", "the model has no tokenizer; send ids");
    return *context_.tokenizer;
  }

  void read_options() {
    SamplingOptions& s = options_.sampling;
    s.temperature = json_.number("temperature", 0, 100, 1.0);
    s.top_p = json_.number("top_p", 0, 1, 1.0), s.min_p = json_.number("min_p", 0, 1, 0.0);
    s.top_k = std::max<Index>(json_.integer("top_k", -1, kMost, 0), 0);
    s.presence_penalty = json_.number("presence_penalty", -2, 2, 0.0);
    s.frequency_penalty = json_.number("frequency_penalty", -2, 2, 0.0);
    s.repetition_penalty = json_.number("repetition_penalty", 0.01, 100, 1.0);
    const Index own = static_cast<Index>(std::random_device{}());
    s.seed = static_cast<std::uint64_t>(
        json_.integer("seed", std::numeric_limits<Index>::min(), std::numeric_limits<Index>::max(), own));
    options_.min_tokens = json_.integer("min_tokens", 0, kMost, 0);
    options_.priority = json_.integer("priority", -1'000'000, 1'000'000, 0);
    options_.tenant = json_.word("cache_salt", std::string());
    options_.stop = json_.is_text("stop") ? std::vector{json_.word("stop")} : json_.words("stop");
    if (std::ssize(options_.stop) > context_.limits.stops)
      refuse("stop", text("a request may have ", context_.limits.stops, " stop texts"));
    if (std::any_of(options_.stop.begin(), options_.stop.end(), [](const auto& t) { return t.empty(); }))
      refuse("stop", "a stop text is empty");
    read_bias();
    read_logprobs();
    n_ = json_.integer("n", 1, context_.limits.choices, 1);
    if (n_ * std::ssize(prompts_) > context_.limits.choices)
      refuse("n", text("a request may have ", context_.limits.choices, " choices"));
    if (kind_ == CompletionKind::heads && n_ > 1)
      refuse("n", "the heads of one text are watched at a time; leave n at 1");
    for (const char* key : {"max_tokens", "max_completion_tokens"})  // the second counts where both are given
      if (json_.has(key)) max_tokens_ = json_.integer(key, 0, kMost);
    out_.per_token = json_.boolean("per_token", false);
  }
  void read_bias() {
    const JsonObject bias = json_.object("logit_bias");
    for (const std::string& key : bias.keys()) {
      TokenId id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= context_.vocabulary ||
          key != std::to_string(id))
        refuse("logit_bias", text(quoted(key), " is no token; ids run from 0 to ", context_.vocabulary - 1));
      options_.sampling.bias.emplace_back(id, bias.number(key, -100, 100, 0.0));
    }
  }
  void read_logprobs() {
    if (kind_ != CompletionKind::chat) {
      options_.logprobs = json_.integer("logprobs", 0, context_.limits.logprobs, -1);
      return;
    }
    const bool wanted = json_.boolean("logprobs", false);
    const Index top = json_.integer("top_logprobs", 0, context_.limits.logprobs, 0);
    if (json_.has("top_logprobs") && !wanted) refuse("top_logprobs", "set logprobs to true with it");
    options_.logprobs = wanted ? top : -1;
  }

  void read_stream() {
    out_.stream = json_.boolean("stream", false);
    const JsonObject more = json_.object("stream_options");
    if (json_.has("stream_options") && !out_.stream) refuse("stream_options", "it goes with stream alone");
    for (const std::string& key : more.keys())
      if (key != "include_usage" && key != "include_obfuscation")
        refuse("stream_options", text("the key ", quoted(key), " is not known here"));
    out_.include_usage = more.boolean("include_usage", false);
    echo_ = json_.boolean("echo", false);
    if (echo_ && options_.logprobs >= 0)
      refuse("echo", "log-probs of the prompt are not offered; leave out echo or logprobs");
    if (kind_ == CompletionKind::heads && out_.stream)
      refuse("stream", "heads come as one answer; leave out stream");
  }

  void add_requests() {
    constexpr std::uint64_t kNextChoice = 0x9e3779b97f4a7c15;
    for (const std::vector<TokenId>& prompt : prompts_) {
      const Index room = context_.positions - std::ssize(prompt) + 1;
      const Index fallback = kind_ == CompletionKind::chat ? room : Index{16};
      for (Index c = 0; c < n_; ++c) {
        GenerateRequest r = options_;
        r.prompt = prompt;
        r.max_tokens = max_tokens_.value_or(std::min(fallback, room));
        if (kind_ == CompletionKind::heads &&
            r.max_tokens + std::ssize(prompt) > context_.limits.heads_tokens)
          refuse("max_tokens",
                 text("prompt and continuation may have ", context_.limits.heads_tokens, " tokens here"));
        r.sampling.seed += static_cast<std::uint64_t>(c) * kNextChoice;
        out_.requests.push_back(std::move(r));
        out_.echoes.push_back(echo_ ? shown(prompt) : "");
      }
    }
  }
  std::string shown(const std::vector<TokenId>& ids) const {
    TextStream stream;
    std::string out = stream.push(tokenizer().decode(ids));
    return out + stream.finish();
  }

  JsonObject json_;
  CompletionKind kind_;
  const CompletionContext& context_;
  CompletionRequest out_;
  std::vector<std::vector<TokenId>> prompts_;
  GenerateRequest options_;
  std::optional<Index> max_tokens_;
  Index n_ = 1;
  bool echo_ = false;
};

}  // namespace

CompletionRequest read_completion(std::string_view body, CompletionKind kind,
                                  const CompletionContext& context) {
  try {
    return Reader(body, kind, context).read();
  } catch (const Error& e) {
    // "the body: \"key\" is ..." names the key that is wrong.
    CompletionFault fault{400, "bad_request", e.what(), ""};
    const std::string front = text(kWhere, ": \"");
    if (fault.message.starts_with(front))
      fault.param = fault.message.substr(front.size(), fault.message.find('"', front.size()) - front.size());
    throw fault;
  }
}

}  // namespace headwise::server
