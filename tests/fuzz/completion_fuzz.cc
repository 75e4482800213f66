// Fuzzes the bodies of completions, chat and heads: any bytes give requests inside the limits, or a fault
// with a sentence.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "headwise/server/completions/completion_request.h"
#include "headwise/server/completions/completion_writer.h"
#include "tests/server/byte_tokenizer.h"

namespace headwise::server {
namespace {

void check(const CompletionRequest& r, const CompletionContext& c) {
  if (r.requests.empty() || std::ssize(r.requests) > c.limits.choices) std::abort();
  if (r.echoes.size() != r.requests.size()) std::abort();
  for (const GenerateRequest& one : r.requests) {
    if (one.prompt.empty() || std::ssize(one.prompt) > c.positions) std::abort();
    if (one.max_tokens < 0 || one.min_tokens < 0 || one.logprobs > c.limits.logprobs) std::abort();
    for (const TokenId id : one.prompt)
      if (id < 0 || id >= c.vocabulary) std::abort();
    one.sampling.check(c.vocabulary);
  }
}

}  // namespace
}  // namespace headwise::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwise;
  using namespace headwise::server;
  static const Bytes tokenizer;
  if (size == 0) return 0;
  const auto kind = static_cast<CompletionKind>(data[0] % 3);
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  const CompletionContext context{
      .model = "m", .tokenizer = &tokenizer, .positions = 64, .vocabulary = 256, .limits = {}};
  try {
    check(read_completion(body, kind, context), context);
  } catch (const CompletionFault& fault) {
    if (fault.message.empty() || fault.status < 400 || error_json(fault).empty()) std::abort();
  } catch (const Error&) {
    std::abort();  // sampling.check: what the reader lets through must run
  }
  return 0;
}
