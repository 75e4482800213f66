// Masks are values: combine them, ask them, write them down, and see which tiles a kernel would visit.
// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <vector>

#include "headwise/masks/mask.h"
namespace hw = headwise;
using hw::Mask;

/// One character a tile: "#" no test inside, "+" test each pair, "." skipped.
void draw(const std::string& title, const Mask& mask, const hw::MaskSubject& at = {}) {
  std::cout << title << "\n  " << to_text(mask) << '\n';
  for (hw::Index q = 0; q < 32; q += 4) {
    std::cout << "  ";
    for (hw::Index k = 0; k < 32; k += 4) {
      const hw::TileKind kind = mask.tile(q, q + 4, k, k + 4, at);
      std::cout << (kind == hw::TileKind::empty ? '.' : kind == hw::TileKind::full ? '#' : '+');
    }
    std::cout << '\n';
  }
  std::cout << "  open pairs: " << open_pairs(mask, 32, 32, at) << " of 1024, tiles visited: "
            << count_tiles(mask, {.q_tokens = 32, .kv_tokens = 32, .q_tile = 4, .kv_tile = 4}, at)
            << " of 64\n\n";
}

int main() {
  const std::vector<hw::Index> documents = {0, 10, 16, 32}, lengths = {32, 13}, positions = {0, 1};

  draw("a language model that looks back 8 tokens", Mask::causal() & Mask::window(/*back=*/8, /*ahead=*/0));
  draw("a prefix language model", Mask::causal() | Mask::prefix(6));
  draw("three documents in one row", Mask::documents(documents) & Mask::causal());
  draw("sequence 1 of a padded batch", Mask::lengths(lengths), {.sequence = 1});
  draw("a long text: near keys, and two tokens that see all", Mask::window(4, 4) | Mask::global(positions));

  const Mask heads = Mask::per_head(std::vector<Mask>{Mask::sliding(4), Mask::sliding(16), Mask::causal()});
  std::cout << "one mask a head\n  " << to_text(heads) << '\n';

  const Mask read = hw::parse_mask("causal & (window(8, 0) | global(0, 1))");
  std::cout << "from text\n  query 20 sees key 1: " << read.may_attend(20, 1)
            << ", key 5: " << read.may_attend(20, 5) << '\n';
  try {
    hw::parse_mask("window(1,x)");
  } catch (const hw::Error& e) {
    std::cout << "a slip of the pen\n  " << e.what() << '\n';
  }
}
