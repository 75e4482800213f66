// CompletionWriter: log-probs that JSON has no word for, tokens that are parts of characters, forms that two
// tokens share.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/server/completions/completion_writer.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/server/byte_tokenizer.h"

namespace headwise::server {
namespace {

nlohmann::json choice_of(CompletionKind kind, const std::vector<Drawn>& drawn) {
  const Bytes tokenizer;
  CompletionRequest request;
  request.kind = kind, request.requests.resize(1), request.echoes = {""};
  request.requests[0].logprobs = 2;
  CompletionWriter writer(request, &tokenizer, "m", 1);
  GenerateEvent e;
  e.drawn = drawn, e.finish = Finish::length;
  for (const Drawn& d : drawn) e.tokens.push_back(d.token);
  writer.take(0, e);
  return nlohmann::json::parse(writer.whole()).at("choices").at(0);  // throws on what is no JSON
}

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(CompletionWriter, LogprobsThatAreNotFiniteAreNull) {
  const Drawn d{.token = 'a', .logprob = -kInf, .top = {{'b', -0.5}, {'c', -kInf}}};
  const nlohmann::json chat = choice_of(CompletionKind::chat, {d})["logprobs"]["content"][0];
  EXPECT_TRUE(chat["logprob"].is_null());
  EXPECT_EQ(chat["top_logprobs"][0]["logprob"], -0.5);
  EXPECT_TRUE(chat["top_logprobs"][1]["logprob"].is_null());
  const nlohmann::json plain = choice_of(CompletionKind::text, {d})["logprobs"];
  EXPECT_TRUE(plain["token_logprobs"][0].is_null());
  EXPECT_TRUE(plain["top_logprobs"][0]["c"].is_null());
}

TEST(CompletionWriter, PartsOfCharactersHaveTheirBytes) {
  // The euro sign in three tokens; another lead byte has the same printable form as the first.
  const Drawn parts[] = {{.token = 0xe2, .logprob = -1, .top = {{0xe3, -0.25}, {0xe2, -1}}},
                         {.token = 0x82, .logprob = -2, .top = {}},
                         {.token = 0xac, .logprob = -3, .top = {}}};
  const nlohmann::json content =
      choice_of(CompletionKind::chat, {parts[0], parts[1], parts[2]})["logprobs"]["content"];
  ASSERT_EQ(content.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(content[i]["bytes"], nlohmann::json::array({parts[i].token}));
    EXPECT_EQ(content[i]["token"], "\xef\xbf\xbd");
  }
  const nlohmann::json top = content[0]["top_logprobs"];
  ASSERT_EQ(top.size(), 2u);  // both, though they print alike
  EXPECT_EQ(top[0]["token"], top[1]["token"]);
  EXPECT_NE(top[0]["bytes"], top[1]["bytes"]);
  const nlohmann::json plain = choice_of(CompletionKind::text, {parts[0], parts[1]})["logprobs"];
  EXPECT_EQ(plain["tokens"].size(), 2u);
  EXPECT_EQ(plain["top_logprobs"][0]["\xef\xbf\xbd"], -0.25);  // a map holds the likelier one
}

}  // namespace
}  // namespace headwise::server
