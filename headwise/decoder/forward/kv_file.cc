#include "headwise/decoder/forward/kv_file.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "headwise/model/file.h"
#include "headwise/train/checkpoints/crc32c.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "kv file";
constexpr char kMagic[8] = {'H', 'W', 'K', 'V', '0', '0', '0', '1'};
constexpr Index kMostTokens = Index{1} << 26;

/// What stands before tokens and pages; little-endian, as all of the file.
struct Head {
  char magic[8] = {};
  std::uint64_t model = 0;
  std::int64_t layers = 0, kv_heads = 0, head_dim = 0, value_dim = 0, page_tokens = 0, length = 0;
  std::uint32_t dtype = 0, crc = 0;  // crc: of the head with crc 0, the tokens and the class
  char numerics[128] = {};
};
static_assert(sizeof(Head) == 8 + 8 + 6 * 8 + 8 + 128);

std::uint32_t crc_of(std::span<const std::byte> bytes) {
  Crc32c crc;
  crc.add(bytes);
  return crc.value();
}
std::uint32_t crc_of(Head head, std::span<const std::int32_t> tokens) {
  head.crc = 0;
  Crc32c crc;
  crc.add(std::as_bytes(std::span(&head, 1)));
  crc.add(std::as_bytes(tokens));
  return crc.value();
}

Head head_of(const KvCache& cache, const Decoder& model, Index length) {
  Head h;
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  const KvShape s = cache.shape();
  h.model = model.fingerprint();
  h.layers = s.layers, h.kv_heads = s.kv_heads, h.head_dim = s.head_dim, h.value_dim = s.value_dim;
  h.page_tokens = cache.page_tokens(), h.length = length;
  h.dtype = static_cast<std::uint32_t>(cache.dtype());
  const std::string numerics = model.numerics();
  std::memcpy(h.numerics, numerics.data(), std::min(numerics.size(), sizeof h.numerics - 1));
  return h;
}

/// The bytes of one page in every pool, one after the other: keys, values and scales of each layer.
template <class Each>
void each_piece(const KvCache& cache, std::int32_t page, Each&& each) {
  for (Index layer = 0; layer < cache.shape().layers; ++layer)
    for (const AnyView& pool : {cache.k(layer), cache.v(layer), cache.k_scale(layer), cache.v_scale(layer)}) {
      if (!pool.given()) continue;
      const Index bytes = pool.step[0] * size_of(pool.dtype);
      each(std::span(static_cast<std::byte*>(pool.data) + page * bytes, static_cast<std::size_t>(bytes)));
    }
}
Index page_bytes(const KvCache& cache) {
  Index all = 0;
  each_piece(cache, 0, [&](std::span<std::byte> piece) { all += static_cast<Index>(piece.size()); });
  return all;
}

/// Numbers behind the text's end in its last page are nobody's: they are saved as 0.
void clear_behind(const KvCache& cache, Index used, std::span<std::byte> page) {
  std::size_t at = 0;
  each_piece(cache, 0, [&](std::span<std::byte> piece) {
    const std::size_t each = piece.size() / static_cast<std::size_t>(cache.page_tokens());
    const std::size_t kept = each * static_cast<std::size_t>(used);
    std::memset(page.data() + at + kept, 0, piece.size() - kept);
    at += piece.size();
  });
}

/// Every page of the sequence lies here: none on another rank, and none was dropped behind a window.
void require_whole(const KvTable& table) {
  require(std::none_of(table.pages.begin(), table.pages.end(), [](std::int32_t page) { return page < 0; }),
          ErrorKind::unsupported, kOp,
          "some pages of the sequence lie on other ranks or were dropped behind a window; a file holds whole "
          "sequences, so use one rank and a cache without a window");
}

[[noreturn]] void refuse(const std::string& path, std::string_view why) {
  throw Error(ErrorKind::bad_argument, text(kOp, ": ", path, ": ", why));
}

/// The head and the tokens of a file, or a sentence.
std::vector<std::int32_t> read_head(const File& file, const KvCache& cache, const Decoder& model,
                                    const std::string& path) {
  Head h;
  if (file.bytes() < Index{sizeof h})
    refuse(path, text("has ", file.bytes(), " bytes, fewer than its head; it was cut short"));
  file.read_at(0, std::as_writable_bytes(std::span(&h, 1)));
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) refuse(path, "is no file of keys and values");
  if (h.length < 1 || h.length > kMostTokens) refuse(path, text("says it has ", h.length, " tokens"));
  const Head own = head_of(cache, model, h.length);
  if (h.layers != own.layers || h.kv_heads != own.kv_heads || h.head_dim != own.head_dim ||
      h.value_dim != own.value_dim)
    refuse(path, "has keys and values of other sizes; it belongs to another model");
  if (h.page_tokens != own.page_tokens || h.dtype != own.dtype)
    refuse(path, text("has pages of ", h.page_tokens, " tokens or of another dtype; the cache has pages of ",
                      own.page_tokens, " of ", cache.dtype()));
  const Index pages = ceil_div(h.length, own.page_tokens);
  const Index wanted = Index{sizeof h} + 4 * h.length + pages * (page_bytes(cache) + 4);
  if (file.bytes() != wanted)
    refuse(path,
           text("has ", file.bytes(), " bytes; its head asks for ", wanted, "; it was cut short or changed"));
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(h.length));
  file.read_at(sizeof h, std::as_writable_bytes(std::span(tokens)));
  if (crc_of(h, tokens) != h.crc) refuse(path, "its head or its tokens were changed; it is damaged");
  if (h.model != own.model) refuse(path, "was written by another model");
  if (std::memcmp(h.numerics, own.numerics, sizeof h.numerics) != 0)
    refuse(path, "was written by the same model with other numerics; use the same dtype and rows");
  for (const std::int32_t t : tokens)
    if (t < 0 || t >= model.config().vocabulary)
      refuse(path, text("has token ", t, ", which the model has not; it belongs to another model"));
  return tokens;
}

}  // namespace

void save_kv(const KvCache& cache, SequenceId id, const Decoder& model, const std::string& path) {
  const std::span<const std::int32_t> tokens = cache.tokens(id);
  const Index length = cache.length(id);
  require(
      !model.config().cross, ErrorKind::unsupported, kOp,
      "keys of a model with cross-attention depend on its memory, which no file names; compute them anew");
  require(length > 0, ErrorKind::bad_argument, kOp, "the sequence has no token; there is nothing to save");
  Head head = head_of(cache, model, length);
  head.crc = crc_of(head, tokens);
  const KvTable table = cache.table(std::span(&id, 1), std::span(&length, 1));
  require_whole(table);
  Replacement out(path, kOp);
  out.file().write(std::as_bytes(std::span(&head, 1)));
  out.file().write(std::as_bytes(tokens));
  std::vector<std::byte> page;
  for (std::size_t i = 0; i < table.pages.size(); ++i) {
    page.clear();
    each_piece(cache, table.pages[i],
               [&](std::span<std::byte> piece) { page.insert(page.end(), piece.begin(), piece.end()); });
    const Index used = std::min(cache.page_tokens(), length - static_cast<Index>(i) * cache.page_tokens());
    clear_behind(cache, used, page);
    const std::uint32_t crc = crc_of(page);
    out.file().write(page);
    out.file().write(std::as_bytes(std::span(&crc, 1)));
  }
  out.commit();
}

SequenceId load_kv(KvCache& cache, const Decoder& model, const std::string& path, const std::string& tenant) {
  const File file = File::open_to_read(path, kOp);
  const std::vector<std::int32_t> tokens = read_head(file, cache, model, path);
  const auto length = static_cast<Index>(tokens.size());
  const Index bytes = page_bytes(cache), first = Index{sizeof(Head)} + 4 * length;
  const Index pages = ceil_div(length, cache.page_tokens());
  std::vector<std::byte> page(static_cast<std::size_t>(bytes));
  const auto read = [&](Index i) {  // page i, checked
    std::uint32_t crc = 0;
    file.read_at(first + i * (bytes + 4), page);
    file.read_at(first + i * (bytes + 4) + bytes, std::as_writable_bytes(std::span(&crc, 1)));
    if (crc_of(page) != crc) refuse(path, text("page ", i, " was changed; the file is damaged"));
  };
  for (Index i = 0; i < pages; ++i) read(i);  // before anything of the cache changes
  const SequenceId id = cache.open(tenant);
  try {
    if (!cache.reserve(id, length)) {
      cache.close(id);
      return -1;
    }
    const KvTable table = cache.table(std::span(&id, 1), std::span(&length, 1));
    require_whole(table);
    for (Index i = 0; i < pages; ++i) {
      read(i);
      std::size_t at = 0;
      each_piece(cache, table.pages[static_cast<std::size_t>(i)], [&](std::span<std::byte> piece) {
        std::memcpy(piece.data(), page.data() + at, piece.size());
        at += piece.size();
      });
    }
    cache.commit(id, tokens);
  } catch (...) {
    cache.close(id);
    throw;
  }
  return id;
}

}  // namespace headwise
