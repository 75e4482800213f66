#include "headwise/view/array_maps.h"

#include <cmath>

#include "headwise/base/error.h"

namespace headwise {
namespace {

constexpr Index kHeld = 4 << 20;  // bytes of a head's rows that stay in memory behind the one that is read

template <class... Words>
[[noreturn]] void refuse(const ArrayFile& file, const Words&... words) {
  throw Error(ErrorKind::bad_argument, text("view: ", file.path(), ": ", words...));
}

std::string sizes_text(const FileArray& a) {
  std::string out;
  for (const Index s : a.sizes) out += (out.empty() ? "" : " ") + std::to_string(s);
  return "[" + out + "]";
}

/// Leading sizes of 1 (a batch of one text) fall off; missing ones (one layer) are added.
std::vector<Index> four_sizes(const ArrayFile& file, const FileArray& a) {
  std::vector<Index> s = a.sizes;
  while (s.size() > 4 && s[s.size() - 4] == 1 && s.size() == 5) s.erase(s.begin() + 1);
  while (s.size() < 4) s.insert(s.begin(), 1);
  if (s.size() != 4 || a.is_text())
    refuse(file, a.name, " is ", sizes_text(a),
           "; weights are [layers heads queries keys], [heads queries keys] or [queries keys]");
  return s;
}

ViewTokens tokens_of(const ArrayFile& file, const std::vector<const char*>& names,
                     const std::vector<std::string>& given, Index count) {
  ViewTokens t;
  for (const char* name : names)
    if (const FileArray* a = file.find(name); a && a->is_text()) {
      for (Index i = 0; i < a->count(); ++i) t.texts.push_back(a->word(i));
      break;
    }
  if (t.texts.empty()) t.texts = given;
  if (t.texts.empty())
    for (Index i = 0; i < count; ++i) t.texts.push_back(std::to_string(i));
  if (t.count() != count)
    refuse(file, t.count(), " tokens are given and the arrays have ", count,
           " places; give one token for each");
  return t;
}

AttentionMaps weights_of(const ArrayFile& file, const FileArray& a, const std::vector<std::string>& given) {
  const std::vector<Index> s = four_sizes(file, a);
  AttentionMaps m;
  m.name = a.name == "attention" || a.name == "attentions" ? "self" : a.name;
  const bool cross = m.name.starts_with("cross");
  m.queries = tokens_of(file, {cross ? "decoder_tokens" : "tokens", "query_tokens"}, given, s[2]);
  m.keys = s[2] == s[3] && !cross
               ? m.queries
               : tokens_of(file, {cross ? "encoder_tokens" : "key_tokens", "source_tokens"}, given, s[3]);
  m.heads.assign(static_cast<std::size_t>(s[0]), s[1]);
  m.row = [&a, s](Index layer, Index head, Index query, std::span<float> row) {
    const Index from = ((layer * s[1] + head) * s[2] + query) * s[3];
    for (Index j = 0; j < s[3]; ++j) row[static_cast<std::size_t>(j)] = a.number(from + j);
    // Rows are read in order: those behind by some megabytes are done with.
    const Index rows = kHeld / max_of(1, s[3] * a.element_bytes) + 1;
    if (query % rows == rows - 1 || query == s[2] - 1)
      a.release(from - query % rows * s[3], (query % rows + 1) * s[3]);
  };
  return m;
}

}  // namespace

std::vector<AttentionMaps> maps_of_arrays(const ArrayFile& file, const std::vector<std::string>& tokens) {
  std::vector<AttentionMaps> all;
  for (const FileArray& a : file.arrays())
    if (!a.is_text() && a.sizes.size() >= 2 && a.sizes.size() <= 5)
      all.push_back(weights_of(file, a, tokens));
  if (all.empty()) {
    std::string names;
    for (const FileArray& a : file.arrays())
      names += (names.empty() ? "" : ", ") + a.name + " " + sizes_text(a);
    refuse(file, "holds no weights (", names.empty() ? "no arrays of floats" : names,
           "); save them as attention=[layers heads queries keys]");
  }
  return all;
}

}  // namespace headwise
