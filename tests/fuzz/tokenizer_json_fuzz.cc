// Fuzzes tokenizer.json: any bytes give a tokenizer whose ids are in range and whose bytes come back, or an
// Error.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "headwise/base/error.h"
#include "headwise/text/pieces/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwise;
  static const std::string path = "/tmp/headwise_tokenizer_fuzz." + std::to_string(getpid()) + ".json";
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) std::abort();
  if (std::fwrite(data, 1, size, file) != size || std::fclose(file) != 0) std::abort();
  constexpr Index kRows = 512;
  try {
    const auto tokenizer = read_json_tokenizer(path, kRows, {});
    for (const char* text : {"", "the man's 12 \xc3\xa9\xe2\x82\xac ", "\xff\xfe a\n\n b", "<|end|>x"}) {
      const std::vector<TokenId> ids = tokenizer->encode(text);
      for (const TokenId id : ids)
        if (id < 0 || id >= tokenizer->size() || tokenizer->bytes(id).size() > size) std::abort();
      (void)tokenizer->decode(ids);
    }
  } catch (const Error&) {
  }
  return 0;
}
