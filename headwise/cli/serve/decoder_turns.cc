// Turns of a language model as texts: a JSON object for every request, an array of those that ended.
#include <nlohmann/json.hpp>

#include "headwise/cli/serve/serve_ranks.h"

namespace headwise::cli {
namespace {

using Json = nlohmann::json;

/// Calls visit(name, field) for all that a request is; ids and bias last. Every rank reads what one wrote.
template <class Request, class F>
void each_field(Request& r, F&& visit) {
  visit("prompt", r.prompt), visit("max_tokens", r.max_tokens), visit("min_tokens", r.min_tokens);
  visit("stop", r.stop), visit("ignore_end", r.ignore_end), visit("logprobs", r.logprobs);
  visit("priority", r.priority), visit("tenant", r.tenant);
  auto& s = r.sampling;
  visit("temperature", s.temperature), visit("min_p", s.min_p), visit("top_k", s.top_k),
      visit("top_p", s.top_p);
  visit("repetition", s.repetition_penalty), visit("frequency", s.frequency_penalty);
  visit("presence", s.presence_penalty), visit("bias", s.bias), visit("seed", s.seed);
}

/// Bytes of any text: JSON's own are code points alone.
std::vector<unsigned> bytes_of(const std::string& text) {
  return {reinterpret_cast<const unsigned char*>(text.data()),
          reinterpret_cast<const unsigned char*>(text.data()) + text.size()};
}
std::string text_of(const std::vector<unsigned>& bytes) {
  std::string all;
  for (const unsigned b : bytes) all += static_cast<char>(b);
  return all;
}

template <class T>
Json written(const T& field) {
  return field;
}
Json written(const std::string& field) { return bytes_of(field); }
Json written(const std::vector<std::string>& field) {
  Json all = Json::array();
  for (const std::string& one : field) all.push_back(bytes_of(one));
  return all;
}
template <class T>
void read(const Json& from, T& field) {
  field = from.get<T>();
}
void read(const Json& from, std::string& field) { field = text_of(from.get<std::vector<unsigned>>()); }
void read(const Json& from, std::vector<std::string>& field) {
  for (const Json& one : from) field.push_back(text_of(one.get<std::vector<unsigned>>()));
}

}  // namespace

std::vector<std::string> words_of(const DecoderTurn& turn) {
  std::vector<std::string> words = {Json(turn.dropped).dump()};
  for (const GenerateRequest& r : turn.added) {
    Json j = Json::object();
    each_field(r, [&](const char* name, const auto& field) { j[name] = written(field); });
    words.push_back(j.dump());
  }
  return words;
}

DecoderTurn turn_of(std::span<const std::string> words) {
  DecoderTurn turn;
  require(!words.empty(), ErrorKind::device, "serve", "rank 0 sent a turn without words");
  turn.dropped = Json::parse(words[0]).get<std::vector<RequestId>>();
  for (const std::string& one : words.subspan(1)) {
    const Json j = Json::parse(one);
    each_field(turn.added.emplace_back(), [&](const char* name, auto& field) { read(j.at(name), field); });
  }
  return turn;
}

}  // namespace headwise::cli
