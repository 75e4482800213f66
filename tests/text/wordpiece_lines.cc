// wordpiece_lines VOCABULARY [cased]: reads texts, one a line in hexadecimal; prints "id:begin:end ..." for
// each. The Python tests compare it with the package tokenizers.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>

#include "headwise/base/error.h"
#include "headwise/text/wordpiece.h"

int main(int argc, char** argv) try {
  using namespace headwise;
  if (argc < 2) return 2;
  WordPieceOptions options;
  if (argc > 2 && std::string_view(argv[2]) == "cased")
    options.words.lower_case = options.words.strip_accents = false;
  const WordPiece tokens(Vocabulary::read(argv[1]), options);
  for (std::string line, bytes; std::getline(std::cin, line);) {
    bytes.clear();
    for (std::size_t i = 0; i + 1 < line.size(); i += 2)
      bytes += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
    const Encoding e = tokens.encode(bytes);
    for (std::size_t i = 0; i < e.ids.size(); ++i)
      std::printf("%s%d:%lld:%lld", i ? " " : "", e.ids[i], static_cast<long long>(e.spans[i].begin),
                  static_cast<long long>(e.spans[i].end));
    std::puts("");
  }
  return 0;
} catch (const headwise::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
