#include "headwise/decoder/files/config.h"

#include "headwise/base/error.h"

namespace headwise {

void DecoderConfig::check(std::string_view where) const {
  const auto size = [&](const char* what, Index got, Index most) {
    require(got >= 1 && got <= most, ErrorKind::bad_argument, where, what, " is ", got,
            "; it runs from 1 to ", most);
  };
  size("the number of layers", layers, 1000);
  size("the width", model_dim, 65'536);
  size("the feed-forward width", feed_dim, 1'048'576);
  size("the number of heads", heads, 4096);
  size("the number of kv heads", kv_heads, 4096);
  size("the width of a head", head_dim, 4096);
  size("the vocabulary", vocabulary, 2'000'000);
  size("the number of positions", positions, Index{1} << 26);
  require(heads % kv_heads == 0, ErrorKind::bad_argument, where, heads, " heads cannot share ", kv_heads,
          " kv heads; the one must divide the other");
  require(learned_positions || head_dim % 2 == 0, ErrorKind::bad_argument, where, "a head is ", head_dim,
          " wide; RoPE turns pairs, so it must be even");
  for (const CrossHead& a : alignment)
    require(cross && a.layer >= 0 && a.layer < layers && a.head >= 0 && a.head < heads,
            ErrorKind::bad_argument, where, "head ", a.head, " of layer ", a.layer,
            " is listed for alignment; there is no such cross head");
  require(static_cast<Index>(windows.size()) == layers, ErrorKind::bad_argument, where, "there are ",
          windows.size(), " windows for ", layers, " layers");
}

}  // namespace headwise
