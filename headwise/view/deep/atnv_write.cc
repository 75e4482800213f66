#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "headwise/base/error.h"
#include "headwise/base/words.h"
#include "headwise/model/file.h"
#include "headwise/model/json_reader.h"
#include "headwise/view/deep/atnv.h"

namespace headwise {
namespace {

constexpr std::size_t kAlign = 64;

std::string list_of(const std::vector<Index>& numbers) {
  std::string out;
  for (const Index n : numbers) out += (out.empty() ? "" : ",") + std::to_string(n);
  return "[" + out + "]";
}

std::vector<Index> first(Index n) {
  std::vector<Index> all;
  for (Index i = 0; i < n; ++i) all.push_back(i);
  return all;
}

std::string number(float x) {
  char to[48];
  const auto end = std::to_chars(to, to + sizeof to, x).ptr;
  return {to, end};
}

/// Blobs in the order of the file, and their entries of the manifest.
struct Blobs {
  std::vector<std::span<const std::byte>> bytes;
  std::string entries;
  std::size_t at = 0;

  std::string add(std::span<const std::byte> data, std::string_view dtype, const std::vector<Index>& sizes) {
    char crc[9];
    std::snprintf(crc, sizeof crc, "%08x", crc32c(data));
    const std::string name = "b" + std::to_string(bytes.size());
    entries += text(entries.empty() ? "" : ",", "\"", name, "\":{\"off\":", at, ",\"len\":", data.size(),
                    ",\"dtype\":\"", dtype, "\",\"shape\":", list_of(sizes),
                    ",\"codec\":\"raw\",\"crc32c\":\"", crc, "\"}");
    bytes.push_back(data);
    at += (data.size() + kAlign - 1) / kAlign * kAlign;
    return "\"" + name + "\"";
  }
  std::string add(const FileArray& a) {
    const char* dtype = a.kind == ElementKind::f16 ? "f16" : a.kind == ElementKind::bf16 ? "bf16" : "f32";
    require(a.kind == ElementKind::f16 || a.kind == ElementKind::bf16 || a.kind == ElementKind::f32,
            ErrorKind::bad_argument, "atnv", "arrays are f16, bf16 or f32; cast the others");
    return add({a.data, static_cast<std::size_t>(a.count() * a.element_bytes)}, dtype, a.sizes);
  }
};

/// One text and where each token begins.
struct TokenBlobs {
  std::string text;
  std::vector<std::uint32_t> offsets = {0};

  explicit TokenBlobs(const std::vector<std::string>& tokens) {
    for (const std::string& t : tokens) {
      require(first_bad_utf8(t) < 0, ErrorKind::bad_argument, "atnv", "token ", offsets.size() - 1,
              " is no UTF-8 text");
      text += t;
      require(text.size() < (std::size_t{1} << 31), ErrorKind::bad_argument, "atnv",
              "the tokens have more than 2 GiB of text");
      offsets.push_back(static_cast<std::uint32_t>(text.size()));
    }
  }
  std::string add_to(Blobs& blobs) const {
    const std::string t = blobs.add(std::as_bytes(std::span(text)), "u8", {static_cast<Index>(text.size())});
    return text_of(t,
                   blobs.add(std::as_bytes(std::span(offsets)), "u32", {static_cast<Index>(offsets.size())}));
  }
  static std::string text_of(const std::string& t, const std::string& o) {
    return "{\"text\":" + t + ",\"offsets\":" + o + "}";
  }
};

std::string mask_json(const AtnvContent& c) {
  require(c.mask == "full" || c.mask == "causal" || c.mask == "window" || c.mask == "prefix",
          ErrorKind::bad_argument, "atnv", "the mask \"", c.mask,
          "\" cannot be kept; give full, causal, window or prefix");
  require(c.mask != "window" || c.window >= 1, ErrorKind::bad_argument, "atnv", "a window of ", c.window,
          " keys; give at least 1");
  const char* key = c.mask == "prefix" ? "prefix" : "window";
  const bool sized = c.mask == "window" || c.mask == "prefix";
  return text("{\"type\":\"", c.mask, "\",\"", key, "\":", sized ? std::to_string(c.window) : "null", "}");
}

void check_tokens(std::size_t given, Index needed, const char* name) {
  require(given == 0 || static_cast<Index>(given) == needed, ErrorKind::bad_argument, "atnv", name, " has ",
          given, " tokens and the arrays have ", needed, " places; give one for each");
}

}  // namespace

void write_atnv(const std::string& path, const AtnvContent& c) {
  QkSource s;
  s.layers = c.layers, s.terms.scale = c.scale, s.terms.softcap = c.softcap;
  check_qk(s, "atnv");
  check_tokens(c.tokens.size(), s.q_tokens, "tokens");
  check_tokens(c.key_tokens.size(), s.kv_tokens, "key_tokens");
  Blobs blobs;
  std::string qk, rows, tokens;
  for (const QkLayer& l : c.layers) {
    qk += text(qk.empty() ? "" : ",", "{\"layer\":", l.number, ",\"q\":", blobs.add(l.q));
    qk += text(",\"k\":", blobs.add(l.k), ",\"post_rope\":true,\"heads\":", list_of(first(s.heads)), "}");
    if (l.lse)
      rows += text(rows.empty() ? "" : ",", "{\"layer\":", l.number, ",\"heads\":", list_of(first(s.heads)),
                   ",\"lse\":", blobs.add(*l.lse), "}");
  }
  const TokenBlobs query(c.tokens), key(c.key_tokens);
  if (!c.tokens.empty()) tokens += ",\"tokens\":" + query.add_to(blobs);
  if (!c.key_tokens.empty()) tokens += ",\"tokens_k\":" + key.add_to(blobs);
  const std::string manifest =
      text("{\"format\":\"atnview\",\"version\":[1,0],\"model\":{\"name\":", json_string(c.name),
           ",\"layers\":", c.layers.size(), ",\"heads\":", s.heads, ",\"kv_heads\":", s.kv_heads,
           ",\"d_head\":", s.head_dim, ",\"scale\":", number(s.terms.scale),
           ",\"softcap\":", c.softcap > 0 ? number(c.softcap) : "null",
           ",\"pos\":\"none\",\"mask\":", mask_json(c), "},\"run\":{\"n_q\":", s.q_tokens,
           ",\"n_k\":", s.kv_tokens, ",\"q_offset\":", c.q_start, "}", tokens, ",\"rows\":[", rows,
           "],\"qk\":[", qk, "],\"blobs\":{", blobs.entries, "}}");
  Replacement out(path, "atnv");
  std::uint64_t length = manifest.size();
  out.file().write("ATNVIEW1");
  out.file().write(std::as_bytes(std::span(&length, 1)));
  const std::size_t end = 16 + manifest.size();
  out.file().write(manifest + std::string((kAlign - end % kAlign) % kAlign, ' '));
  const std::string zeros(kAlign, '\0');
  for (const auto& b : blobs.bytes) {
    out.file().write(b);
    out.file().write(std::string_view(zeros).substr(0, (kAlign - b.size() % kAlign) % kAlign));
  }
  out.commit();
}

}  // namespace headwise
