// unpack_gzip over zlib.
#include <zlib.h>

#include "headwise/base/error.h"
#include "headwise/intent/corpus/corpus.h"

namespace headwise {
namespace {

struct Inflater {
  z_stream stream{};
  ~Inflater() { inflateEnd(&stream); }
};

}  // namespace

std::string unpack_gzip(std::string_view packed, Index most, std::string_view name) {
  const auto check = [&](bool ok, const auto&... parts) {
    require(ok, ErrorKind::bad_argument, "corpus", name, ": ", parts...);
  };
  check(packed.size() < (std::size_t{1} << 31), "has ", packed.size(),
        " bytes packed; at most 2 GiB are read");
  Inflater z;
  check(inflateInit2(&z.stream, 15 + 16) == Z_OK, "zlib does not start; is there memory left?");
  // zlib never writes here; its field has no const.
  z.stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  z.stream.avail_in = static_cast<uInt>(packed.size());
  std::string out;
  char piece[1 << 16];
  for (;;) {
    z.stream.next_out = reinterpret_cast<Bytef*>(piece);
    z.stream.avail_out = sizeof piece;
    const int code = inflate(&z.stream, Z_NO_FLUSH);
    out.append(piece, sizeof piece - z.stream.avail_out);
    check(static_cast<Index>(out.size()) <= most, "unpacks to more than ", most,
          " bytes; that is the most read");
    if (code == Z_STREAM_END) {
      if (z.stream.avail_in == 0) return out;
      check(inflateReset(&z.stream) == Z_OK, "zlib does not go on");  // another member follows
      continue;
    }
    check(code != Z_BUF_ERROR || z.stream.avail_in > 0,
          "is cut short: gzip ends before its data; fetch it again");
    check(code == Z_OK, "is damaged gzip (", z.stream.msg ? z.stream.msg : "no reason given",
          "); fetch it again");
  }
}

}  // namespace headwise
