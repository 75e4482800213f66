// A user of the installed headwise::text: prints the version and the number of tokens of a word; its
// recogniser compiles.
#include <headwise/base/version.h>
#include <headwise/intent/training/pretrained.h>
#include <headwise/text/wordpiece.h>

#include <cstdio>

int main() {
  const headwise::WordPiece tokens(headwise::Vocabulary({"[UNK]", "head", "##wise"}));
  std::printf("%s %zu tokens\n", headwise::kVersion, tokens.encode("Headwise").ids.size());
  return headwise::fine_tuning().epochs > 0 ? 0 : 1;
}
