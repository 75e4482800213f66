// A tokenizer for tests: every byte is a token.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "headwise/text/pieces/tokenizer.h"

namespace headwise::server {

class Bytes final : public Tokenizer {
 public:
  Bytes() {
    for (int i = 0; i < 256; ++i) bytes_.push_back(static_cast<char>(i));
  }
  std::string_view bytes(TokenId id) const override {
    return std::string_view(bytes_).substr(static_cast<std::size_t>(id), 1);
  }
  Index size() const override { return 256; }

 protected:
  void encode_plain(std::string_view text, bool, std::vector<TokenId>& out) const override {
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  }

 private:
  std::string bytes_;
};

}  // namespace headwise::server
