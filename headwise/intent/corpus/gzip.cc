// unpack_gzip and unpack_deflate over zlib.
#include <zlib.h>

#include "headwise/base/error.h"
#include "headwise/intent/corpus/corpus.h"
#include "headwise/intent/corpus/workbook.h"

namespace headwise {
namespace {

struct Inflater {
  z_stream stream{};
  ~Inflater() { inflateEnd(&stream); }
};

/// `bits` as inflateInit2 takes them: gzip, whose members may follow one another, or bare deflate; `what`
/// names it.
std::string unpack(std::string_view packed, Index most, std::string_view name, int bits,
                   std::string_view what) {
  const auto check = [&](bool ok, const auto&... parts) {
    require(ok, ErrorKind::bad_argument, "corpus", name, ": ", parts...);
  };
  const bool members = bits > 15;
  check(packed.size() < (std::size_t{1} << 31), "has ", packed.size(),
        " bytes packed; at most 2 GiB are read");
  Inflater z;
  check(inflateInit2(&z.stream, bits) == Z_OK, "zlib does not start; is there memory left?");
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
      if (z.stream.avail_in == 0 || !members) return out;
      check(inflateReset(&z.stream) == Z_OK, "zlib does not go on");  // another member follows
      continue;
    }
    check(code != Z_BUF_ERROR || z.stream.avail_in > 0, "is cut short: ", what,
          " ends before its data; fetch it again");
    check(code == Z_OK, "is damaged ", what, " (", z.stream.msg ? z.stream.msg : "no reason given",
          "); fetch it again");
  }
}

}  // namespace

std::string unpack_gzip(std::string_view packed, Index most, std::string_view name) {
  return unpack(packed, most, name, 15 + 16, "gzip");
}

std::string unpack_deflate(std::string_view packed, std::uint32_t crc, Index most, std::string_view name) {
  std::string out = unpack(packed, most, name, -15, "zip");
  const auto* bytes = reinterpret_cast<const Bytef*>(out.data());
  require(crc32_z(0, bytes, out.size()) == crc, ErrorKind::bad_argument, "corpus", name,
          ": is damaged zip: its checksum is another; fetch it again");
  return out;
}

}  // namespace headwise
