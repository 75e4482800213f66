// Fuzzes files of keys and values: a good one with any bytes changed and its checksums mended loads into a
// cache whose promises hold, or gives an Error.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "headwise/base/context.h"
#include "headwise/decoder/forward/kv_file.h"
#include "headwise/train/checkpoints/crc32c.h"
#include "tests/decoder/tiny_model.h"

namespace headwise {
namespace {

constexpr std::size_t kHead = 200, kCrcPlace = 68;
constexpr Index kTokens = 13;

/// A model, a text of two pages, and its file.
struct Scene {
  Scene() : source(tiny_config()), model(source, {}, ctx), cache(model.kv_shape(), options()) {
    const SequenceId id = cache.open();
    DecoderStep step;
    std::vector<DecoderRow> rows;
    std::vector<TokenId> tokens;
    for (TokenId t = 0; t < kTokens; ++t) rows.push_back({id, t, false}), tokens.push_back(t);
    if (!cache.reserve(id, kTokens)) std::abort();
    model.forward(rows, cache, step, ctx);
    cache.commit(id, tokens);
    save_kv(cache, id, model, path);
    cache.close(id);
    std::ifstream in(path, std::ios::binary);
    good.assign(std::istreambuf_iterator<char>(in), {});
  }
  static KvOptions options() { return {.bytes = 1 << 16, .page_tokens = 8}; }

  std::string path = "/tmp/headwise_kv_fuzz." + std::to_string(getpid());
  Context ctx{{.threads = 1}};
  TinySource source;
  Decoder model;
  KvCache cache;
  std::string good;
};

std::uint32_t crc_of(const char* from, std::size_t n) {
  Crc32c crc;
  crc.add(std::as_bytes(std::span(from, n)));
  return crc.value();
}
/// Checksums that fit what stands there now, where the file still has the size of the good one.
void mend(std::string& file) {
  std::uint32_t crc = 0;
  const std::size_t front = kHead + 4 * kTokens, page = (file.size() - front) / 2;
  std::memset(file.data() + kCrcPlace, 0, sizeof crc);
  crc = crc_of(file.data(), front);
  std::memcpy(file.data() + kCrcPlace, &crc, sizeof crc);
  for (std::size_t at = front; at < file.size(); at += page) {
    crc = crc_of(file.data() + at, page - sizeof crc);
    std::memcpy(file.data() + at + page - sizeof crc, &crc, sizeof crc);
  }
}

}  // namespace
}  // namespace headwise

/// Three bytes an edit: place, place, value. An odd size cuts the file behind the last edit instead.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwise;
  static Scene scene;
  std::string file = scene.good;
  std::size_t last = file.size();
  for (std::size_t i = 0; i + 3 <= size; i += 3) {
    last = (data[i] * std::size_t{256} + data[i + 1]) % file.size();
    file[last] = static_cast<char>(data[i + 2]);
  }
  mend(file);
  if (size % 2 == 1) file.resize(last);
  std::ofstream(scene.path, std::ios::binary | std::ios::trunc) << file;
  try {
    const SequenceId id = load_kv(scene.cache, scene.model, scene.path);
    if (id >= 0) {
      for (const std::int32_t t : scene.cache.tokens(id))
        if (t < 0 || t >= scene.model.config().vocabulary) std::abort();
      scene.cache.check();
      scene.cache.close(id);
    }
  } catch (const Error&) {
  }
  scene.cache.check();
  if (scene.cache.stats().sequences != 0) std::abort();
  return 0;
}
