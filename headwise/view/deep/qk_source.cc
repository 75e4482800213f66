#include "headwise/view/deep/qk_source.h"

#include <cmath>
#include <cstring>
#include <filesystem>

#include "headwise/base/error.h"
#include "headwise/base/half.h"
#include "headwise/view/deep/atnv.h"

namespace headwise {
namespace {

constexpr Index kMostTokens = Index{1} << 24, kMostDim = 4096;

template <class... Words>
[[noreturn]] void refuse(const std::string& where, const Words&... words) {
  throw Error(ErrorKind::bad_argument, text(where, ": ", words...));
}

std::string sizes_text(const FileArray& a) {
  std::string out;
  for (const Index s : a.sizes) out += (out.empty() ? "" : " ") + std::to_string(s);
  return "[" + out + "]";
}

/// Layer `layer` of an array [layers ...] or [...] of `rank` axes.
FileArray layer_of(const FileArray& a, Index layer, std::size_t rank) {
  FileArray one = a;
  if (a.sizes.size() == rank) return one;
  one.sizes.erase(one.sizes.begin());
  one.data = a.data + layer * one.count() * a.element_bytes;
  return one;
}

std::function<std::string(Index)> tokens_of(const ArrayFile& file, std::initializer_list<const char*> names,
                                            Index count, const std::string& where) {
  for (const char* name : names)
    if (const FileArray* a = file.find(name); a != nullptr && a->is_text()) {
      if (a->count() != count)
        refuse(where, name, " has ", a->count(), " tokens and the arrays have ", count,
               " places; give one for each");
      return [a](Index i) { return a->word(i); };
    }
  return {};
}

std::optional<QkSource> open_arrays(const std::string& path, const QkTerms& terms) {
  const auto file = std::make_shared<const ArrayFile>(path, "view");
  const FileArray *q = file->find("q"), *k = file->find("k"), *lse = file->find("lse");
  if (q == nullptr && k == nullptr) return std::nullopt;
  const std::string where = "view: " + path;
  if (q == nullptr || k == nullptr) refuse(where, "q and k belong together; give both");
  if (q->is_text() || k->is_text() || q->sizes.size() < 3 || q->sizes.size() > 4 ||
      k->sizes.size() != q->sizes.size())
    refuse(where, "q is ", sizes_text(*q), " and k is ", sizes_text(*k),
           "; give [layers heads tokens head_dim] or [heads tokens head_dim]");
  const bool many = q->sizes.size() == 4;
  const Index layers = many ? q->sizes[0] : 1;
  if (many && k->sizes[0] != layers)
    refuse(where, "q has ", layers, " layers and k has ", k->sizes[0], "; give as many of each");
  if (lse != nullptr && (lse->is_text() || lse->sizes.size() != q->sizes.size() - 1 ||
                         !std::equal(lse->sizes.begin(), lse->sizes.end(), q->sizes.begin())))
    refuse(where, "lse is ", sizes_text(*lse), " and q is ", sizes_text(*q),
           "; lse is as q without head_dim");
  QkSource s;
  s.file = file, s.terms = terms;
  for (Index l = 0; l < layers; ++l) {
    QkLayer layer{.number = l, .q = layer_of(*q, l, 3), .k = layer_of(*k, l, 3), .lse = {}};
    if (lse != nullptr) layer.lse = layer_of(*lse, l, 2);
    s.layers.push_back(std::move(layer));
  }
  check_qk(s, where);
  s.query_token = tokens_of(*file, {"query_tokens", "tokens"}, s.q_tokens, where);
  s.key_token = tokens_of(*file, {"key_tokens", "tokens"}, s.kv_tokens, where);
  return s;
}

}  // namespace

void read_vector(const FileArray& a, Index row, std::span<float> to) {
  const Index from = row * static_cast<Index>(to.size());
  if (a.kind == ElementKind::f32) {
    std::memcpy(to.data(), a.data + from * 4, to.size() * 4);
    return;
  }
  for (std::size_t d = 0; d < to.size(); ++d) to[d] = a.number(from + static_cast<Index>(d));
}

void check_qk(QkSource& s, const std::string& where) {
  if (s.layers.empty()) refuse(where, "holds no queries and keys; give at least one layer of both");
  const FileArray &q = s.layers[0].q, &k = s.layers[0].k;
  if (q.sizes.size() != 3 || k.sizes.size() != 3)
    refuse(where, "q is ", sizes_text(q), " and k is ", sizes_text(k), "; give [heads tokens head_dim]");
  s.heads = q.sizes[0], s.q_tokens = q.sizes[1], s.head_dim = q.sizes[2];
  s.kv_heads = k.sizes[0], s.kv_tokens = k.sizes[1];
  if (s.heads < 1 || s.kv_heads < 1 || s.heads % s.kv_heads != 0)
    refuse(where, s.heads, " heads do not share ", s.kv_heads, " heads of keys evenly");
  if (k.sizes[2] != s.head_dim || s.head_dim < 1 || s.head_dim > kMostDim)
    refuse(where, "queries are ", s.head_dim, " wide and keys ", k.sizes[2], "; give the same width, 1 to ",
           kMostDim);
  if (s.q_tokens < 1 || s.kv_tokens < 1 || s.q_tokens > kMostTokens || s.kv_tokens > kMostTokens)
    refuse(where, s.q_tokens, " queries and ", s.kv_tokens, " keys; give 1 to ", kMostTokens, " of each");
  for (const QkLayer& l : s.layers) {
    if (l.q.sizes != q.sizes || l.k.sizes != k.sizes)
      refuse(where, "layer ", l.number, " has q ", sizes_text(l.q), " and k ", sizes_text(l.k),
             "; the first layer has ", sizes_text(q), " and ", sizes_text(k));
    if (l.lse && l.lse->count() != s.heads * s.q_tokens)
      refuse(where, "lse of layer ", l.number, " is ", sizes_text(*l.lse), "; give [", s.heads, " ",
             s.q_tokens, "]");
  }
  if (!std::isfinite(s.terms.scale) || !std::isfinite(s.terms.softcap) || s.terms.softcap < 0)
    refuse(where, "scale ", s.terms.scale, " and softcap ", s.terms.softcap, "; give finite numbers");
  if (s.terms.scale == 0) s.terms.scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
  s.terms.mask.check(1, s.heads, s.q_tokens, s.kv_tokens);
}

std::optional<QkSource> open_qk(const std::string& path, const QkTerms& terms) {
  std::optional<QkSource> s;
  if (path.ends_with(".atnv"))
    s = AtnvFile::open_qk(path);
  else if (path.ends_with(".npz") || path.ends_with(".safetensors"))
    s = open_arrays(path, terms);
  if (s && s->name.empty()) s->name = std::filesystem::path(path).filename().string();
  return s;
}

}  // namespace headwise
