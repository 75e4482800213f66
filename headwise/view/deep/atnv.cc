#include "headwise/view/deep/atnv.h"

#include <array>
#include <charconv>
#include <cstring>

#include "headwise/base/error.h"
#include "headwise/model/json_object.h"
#include "headwise/model/json_reader.h"
#include "headwise/model/mapping.h"

namespace headwise {
namespace {

constexpr std::string_view kMagic = "ATNVIEW1";
constexpr Index kMostManifest = Index{16} << 20, kMostBlobs = 8192, kChecked = Index{1} << 20;
constexpr Index kAlign = 64;

struct DTypeName {
  std::string_view name;
  Index bytes;
  std::optional<ElementKind> kind;  // of those that hold numbers to look at
};
constexpr DTypeName kDTypes[] = {{"u8", 1, {}},
                                 {"u16", 2, {}},
                                 {"u32", 4, {}},
                                 {"i32", 4, {}},
                                 {"f16", 2, ElementKind::f16},
                                 {"bf16", 2, ElementKind::bf16},
                                 {"f32", 4, ElementKind::f32}};

const DTypeName* dtype_of(std::string_view name) {
  for (const DTypeName& d : kDTypes)
    if (d.name == name) return &d;
  return nullptr;
}

std::uint64_t u64_at(const std::byte* p) {
  std::uint64_t x = 0;
  std::memcpy(&x, p, sizeof x);
  return x;
}

template <class... Words>
[[noreturn]] void refuse(const std::string& where, const Words&... words) {
  throw Error(ErrorKind::bad_argument, text(where, ": ", words...));
}

/// One blob's entry; `data` is all that follows the manifest.
AtnvBlob blob_of(const std::string& name, const JsonObject& o, std::span<const std::byte> data,
                 const std::string& where) {
  const std::string whose = where + ": blob " + quoted(name);
  AtnvBlob b{.name = name, .dtype = o.word("dtype"), .sizes = o.integers("shape"), .bytes = {}, .crc = {}};
  const DTypeName* dtype = dtype_of(b.dtype);
  if (dtype == nullptr)
    refuse(whose, "the dtype ", quoted(b.dtype), " is not known; u8, u16, u32, i32, f16, bf16, f32 are");
  const std::string codec = o.word("codec", "raw");
  if (codec != "raw") refuse(whose, "the codec ", quoted(codec), " is not read here; write it raw");
  const Index most = static_cast<Index>(data.size());
  const Index from = o.integer("off", 0, Index{1} << 52), length = o.integer("len", 0, Index{1} << 52);
  if (from % kAlign != 0) refuse(whose, "begins at ", from, ", which is no multiple of 64");
  if (from > most || length > most - from)
    refuse(whose, "ends at ", from + length, " and the data has ", most, " bytes; is the file cut short?");
  Index count = 1;
  for (const Index s : b.sizes) {
    if (s < 0 || (s > 0 && count > length / s))
      refuse(whose, "its shape needs more than its ", length, " bytes");
    count *= s;
  }
  if (count * dtype->bytes != length)
    refuse(whose, count, " numbers of ", b.dtype, " take ", count * dtype->bytes, " bytes and ", length,
           " are there");
  b.bytes = data.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(length));
  if (o.has("crc32c")) {
    const std::string hex = o.word("crc32c");
    std::uint32_t crc = 0;
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), crc, 16);
    if (error != std::errc() || end != hex.data() + hex.size() || hex.size() != 8)
      refuse(whose, "crc32c is ", quoted(hex), "; eight hexadecimal digits are needed");
    b.crc = crc;
  }
  return b;
}

void check_sum(const AtnvBlob& b, const std::string& where) {
  if (b.crc && crc32c(b.bytes) != *b.crc)
    refuse(where, "blob ", quoted(b.name), " does not fit its checksum; the file is damaged");
}

FileArray array_of(const AtnvBlob& b, const std::string& where) {
  const DTypeName* d = dtype_of(b.dtype);
  if (!d->kind) refuse(where, "blob ", quoted(b.name), " is ", b.dtype, "; f16, bf16 or f32 is needed");
  return {
      .name = b.name, .kind = *d->kind, .sizes = b.sizes, .element_bytes = d->bytes, .data = b.bytes.data()};
}

Mask mask_of(const JsonObject& o, const std::string& where) {
  const std::string type = o.word("type", "full");
  constexpr Index kMost = Index{1} << 40;
  if (type == "full") return Mask::all();
  if (type == "causal") return Mask::causal();
  if (type == "window") return Mask::sliding(o.integer("window", 1, kMost));
  if (type == "prefix") return Mask::causal() | Mask::prefix(o.integer("prefix", 0, kMost));
  refuse(where, "the mask ", quoted(type), " is not known; full, causal, window and prefix are");
}

std::function<std::string(Index)> tokens_of(const AtnvFile& file, const JsonObject& o, Index count,
                                            const std::string& where) {
  if (!o.has("text") || !o.has("offsets")) return {};
  const AtnvBlob &words = file.blob(o.word("text"), "tokens"), &at = file.blob(o.word("offsets"), "tokens");
  if (words.dtype != "u8" || at.dtype != "u32" || static_cast<Index>(at.bytes.size()) != 4 * (count + 1))
    refuse(where, "tokens are ", words.dtype, " text with ", at.bytes.size() / 4, " ", at.dtype,
           " offsets; give u8 text and ", count + 1, " u32 offsets");
  const auto* text = reinterpret_cast<const char*>(words.bytes.data());
  const std::size_t most = words.bytes.size();
  return [text, most, at = at.bytes](Index i) -> std::string {
    std::uint32_t from = 0, to = 0;
    std::memcpy(&from, at.data() + 4 * i, 4), std::memcpy(&to, at.data() + 4 * i + 4, 4);
    return from > to || to > most ? std::string() : std::string(text + from, to - from);
  };
}

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  static const auto table = [] {
    std::array<std::array<std::uint32_t, 256>, 8> t{};
    for (std::uint32_t n = 0; n < 256; ++n) {
      std::uint32_t c = n;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1u) != 0 ? (c >> 1u) ^ 0x82f63b78u : c >> 1u;
      t[0][n] = c;
    }
    for (std::size_t k = 1; k < 8; ++k)
      for (std::size_t n = 0; n < 256; ++n) t[k][n] = (t[k - 1][n] >> 8u) ^ t[0][t[k - 1][n] & 255u];
    return t;
  }();
  std::uint32_t c = ~before;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t w = u64_at(bytes.data() + i) ^ c;
    c = 0;
    for (std::size_t k = 0; k < 8; ++k) c ^= table[7 - k][(w >> (8 * k)) & 255u];
  }
  for (; i < bytes.size(); ++i) c = (c >> 8u) ^ table[0][(c ^ static_cast<std::uint32_t>(bytes[i])) & 255u];
  return ~c;
}

struct AtnvFile::State {
  std::string where, manifest;
  std::optional<File> file;
  std::optional<Mapping> mapping;
  std::vector<AtnvBlob> blobs;
};

AtnvFile::AtnvFile(const std::string& path) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.where = "atnv: " + path;
  s.file.emplace(File::open_to_read(path, "atnv", Links::follow));
  const Index size = s.file->bytes();
  if (size < 16) refuse(s.where, "has ", size, " bytes; a file of this kind begins with 16");
  s.mapping.emplace(*s.file, size, "atnv", path);
  const auto bytes = s.mapping->bytes();
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    refuse(s.where, "does not begin with ATNVIEW1; is it a .atnv file?");
  const std::uint64_t length = u64_at(bytes.data() + 8);
  if (length > static_cast<std::uint64_t>(kMostManifest))
    refuse(s.where, "the manifest would have ", length, " bytes; at most ", kMostManifest, " are read");
  const Index end = 16 + static_cast<Index>(length), data = (end + kAlign - 1) / kAlign * kAlign;
  if (end > size) refuse(s.where, "the manifest ends at ", end, " and the file has ", size, " bytes");
  s.manifest.assign(reinterpret_cast<const char*>(bytes.data()) + 16, static_cast<std::size_t>(length));
  const JsonObject all(s.manifest, s.where);
  if (all.word("format") != "atnview") all.refuse("format", "atnview is needed");
  const std::vector<Index> version = all.integers("version");
  if (version.empty() || version[0] != 1) all.refuse("version", "1 is read here");
  const JsonObject blobs = all.object("blobs");
  const std::vector<std::string> names = blobs.keys();
  if (static_cast<Index>(names.size()) > kMostBlobs)
    refuse(s.where, names.size(), " blobs; at most ", kMostBlobs, " are read");
  const auto rest = data < size ? bytes.subspan(static_cast<std::size_t>(data)) : bytes.subspan(0, 0);
  for (const std::string& name : names) {
    s.blobs.push_back(blob_of(name, blobs.object(name), rest, s.where));
    if (static_cast<Index>(s.blobs.back().bytes.size()) <= kChecked) check_sum(s.blobs.back(), s.where);
  }
}
AtnvFile::AtnvFile(AtnvFile&&) noexcept = default;
AtnvFile::~AtnvFile() = default;

const std::string& AtnvFile::manifest() const { return state_->manifest; }
const std::vector<AtnvBlob>& AtnvFile::blobs() const { return state_->blobs; }

const AtnvBlob& AtnvFile::blob(std::string_view name, std::string_view whose) const {
  for (const AtnvBlob& b : state_->blobs)
    if (b.name == name) return b;
  refuse(state_->where, whose, " names the blob ", quoted(name), ", which is not in the file");
}

void AtnvFile::verify() const {
  for (const AtnvBlob& b : state_->blobs) check_sum(b, state_->where);
}

QkSource AtnvFile::open_qk(const std::string& path) {
  const auto file = std::make_shared<const AtnvFile>(path);
  const std::string& where = file->state_->where;
  const JsonObject all(file->manifest(), where), model = all.object("model"), run = all.object("run");
  QkSource s;
  s.file = file, s.name = model.word("name", "");
  s.terms.scale = static_cast<float>(model.number("scale", -1e6, 1e6, 0.0));
  s.terms.softcap = static_cast<float>(model.number("softcap", 0, 1e9, 0.0));
  s.terms.q_start = run.integer("q_offset", 0, Index{1} << 40, 0);
  s.terms.mask = mask_of(model.object("mask"), where);
  if (model.word("pos", "none") == "alibi")
    refuse(where, "its scores have ALiBi, which q and k do not hold; write the file without it");
  for (const JsonObject& o : all.objects("qk")) {
    const Index number = o.integer("layer", 0, Index{1} << 20);
    if (!o.boolean("post_rope", true))
      refuse(where, "q and k of layer ", number,
             " are kept before RoPE; write them as they meet in the scores");
    s.layers.push_back({.number = number,
                        .q = array_of(file->blob(o.word("q"), "qk"), where),
                        .k = array_of(file->blob(o.word("k"), "qk"), where),
                        .lse = {}});
  }
  for (const JsonObject& o : all.objects("rows"))
    for (QkLayer& l : s.layers)
      if (o.has("lse") && o.has("heads") && l.number == o.integer("layer", 0, Index{1} << 20))
        l.lse = array_of(file->blob(o.word("lse"), "rows"), where);
  check_qk(s, where);
  const JsonObject tokens = all.object("tokens");
  s.query_token = tokens_of(*file, tokens, s.q_tokens, where);
  s.key_token = all.is_object("tokens_k") || s.q_tokens != s.kv_tokens
                    ? tokens_of(*file, all.object("tokens_k"), s.kv_tokens, where)
                    : s.query_token;
  return s;
}

}  // namespace headwise
