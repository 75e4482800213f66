// A cache whose heads keep different tokens: heads of one policy form a class, a KvCache of its own.
#include <algorithm>

#include "headwise/base/context.h"
#include "headwise/cache/kv_cache.h"
#include "headwise/cache/prefix_tree.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "kv cache";
/// Windows have pages for so many texts with chunks of so many tokens.
constexpr Index kTexts = 16, kChunk = 256;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

Index token_bytes(const KvShape& shape, DType dtype) {
  const Index scales = size_of(dtype) == 1 ? 2 * size_of(DType::f32) : 0;
  return (shape.head_dim + shape.value_dim) * size_of(dtype) + scales;
}

AnyView one_head(const AnyView& x, Index head) {
  AnyView v = x;
  v.data = static_cast<std::byte*>(x.data) + head * x.step[1] * size_of(x.dtype);
  v.size[1] = 1;
  return v;
}

}  // namespace

/// Windowed classes have what kTexts texts need at most; the rest of the bytes is for heads that keep all.
void KvCache::make_classes() {
  const std::vector<HeadPolicy>& heads = options_.heads;
  require(static_cast<Index>(heads.size()) == shape_.layers * shape_.kv_heads, ErrorKind::bad_shape, kOp,
          "got ", heads.size(), " head policies for ", shape_.layers, " layers of ", shape_.kv_heads,
          " kv heads; give one for each kv head of each layer");
  std::vector<HeadPolicy> kinds;
  std::vector<Index> members;
  for (const HeadPolicy& p : heads) {
    // Heads that weigh tokens keep different ones each.
    const auto found = p.weighs() ? kinds.end() : std::find(kinds.begin(), kinds.end(), p);
    const auto kind = static_cast<std::size_t>(found - kinds.begin());
    if (found == kinds.end()) kinds.push_back(p), members.push_back(0);
    places_.push_back({static_cast<int>(kind), members[kind]++});
  }
  const Index each = options_.page_tokens;
  std::vector<Index> page_bytes, pages(kinds.size(), 0);
  Index all = 0, wide = 0;  // bytes of one page of every class; of those that keep all
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    page_bytes.push_back(members[i] * each * token_bytes(shape_, kinds[i].dtype.value_or(options_.dtype)));
    all += page_bytes[i];
    if (!drops(kinds[i])) wide += page_bytes[i];
  }
  const Index even = options_.bytes / all;
  require(even > 0, ErrorKind::bad_argument, kOp, "got ", options_.bytes, " bytes; one page of ", each,
          " tokens takes ", all, ": give as many or more");
  Index left = options_.bytes;
  for (std::size_t i = 0; i < kinds.size(); ++i)
    if (drops(kinds[i])) {
      const HeadPolicy& p = kinds[i];
      const Index tokens = p.heavy > 0 ? p.recent + each : p.window + kChunk;
      const Index wanted =
          kTexts * (ceil_div(tokens, each) + ceil_div(p.first, each) + ceil_div(p.heavy, each) + 2);
      pages[i] = std::min(even, wanted);
      left -= pages[i] * page_bytes[i];
    }
  nominal_pages_ = wide > 0 ? left / wide : Index{1} << 30;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    KvOptions o;
    o.page_tokens = each, o.dtype = kinds[i].dtype.value_or(options_.dtype);
    o.bytes = (drops(kinds[i]) ? pages[i] : nominal_pages_) * page_bytes[i];
    if (drops(kinds[i])) o.window = kinds[i].window, o.first = kinds[i].first;
    o.drop = options_.drop;
    classes_.push_back(std::make_unique<KvCache>(
        KvShape{
            .layers = members[i], .kv_heads = 1, .head_dim = shape_.head_dim, .value_dim = shape_.value_dim},
        o));
    classes_.back()->own_ = kinds[i];
  }
}

KvCache::Head KvCache::head(Index layer, Index kv_head) const {
  require(split() && layer >= 0 && layer < shape_.layers && kv_head >= 0 && kv_head < shape_.kv_heads,
          ErrorKind::bad_argument, kOp, "got head ", kv_head, " of layer ", layer,
          "; the cache keeps no single heads there");
  const Index i = layer * shape_.kv_heads + kv_head;
  return {classes_[at(places_[at(i)].kind)].get(), places_[at(i)].slot, &options_.heads[at(i)]};
}

SequenceId KvCache::open_classes(const std::string& tenant) {
  SequenceId id = 0;
  for (const auto& c : classes_) id = c->open(tenant);
  return id;
}
SequenceId KvCache::fork_classes(SequenceId other) {
  SequenceId id = 0;
  for (const auto& c : classes_) id = c->fork(other);
  return id;
}
/// The beginning that all of them have. Windows keep none for others.
Index KvCache::adopt_classes(SequenceId id, std::span<const std::int32_t> prompt) {
  for (const auto& c : classes_)
    if (c->options_.window > 0 || c->own_.weighs()) return 0;
  Index length = static_cast<Index>(prompt.size());
  for (const auto& c : classes_) length = std::min(length, c->adopt(id, prompt));
  for (const auto& c : classes_) c->truncate(id, length);
  return length;
}
bool KvCache::reserve_classes(SequenceId id, Index tokens) {
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    if (classes_[i]->reserve(id, tokens)) continue;
    for (std::size_t j = 0; j < i; ++j) classes_[j]->truncate(id, classes_[j]->length(id));
    return false;
  }
  return true;
}
void KvCache::write_classes(SequenceId id, Index layer, const AnyView& k, const AnyView& v, Context& ctx) {
  for (Index h = 0; h < shape_.kv_heads; ++h) {
    const Place& p = places_[at(layer * shape_.kv_heads + h)];
    classes_[at(p.kind)]->write(id, p.slot, one_head(k, h), one_head(v, h), ctx);
  }
}

/// Pages whose tokens are behind the first ones and before the window of the next token.
void KvCache::drop_pages(Sequence& s) {
  const Index each = page_tokens();
  for (Index page = ceil_div(options_.first, each); (page + 1) * each <= s.length + 1 - options_.window;
       ++page) {
    std::int32_t& held = s.pages[at(page)];
    if (held >= 0) give_page(held);
    held = -1;
    s.dropped = std::max(s.dropped, (page + 1) * each);
  }
}

KvStats KvCache::class_stats() const {
  KvStats all;
  for (const auto& c : classes_) {
    const KvStats s = c->stats();
    all.pages += s.pages, all.free += s.free, all.in_tree += s.in_tree, all.held += s.held;
    all.sequences = s.sequences, all.bytes += s.bytes, all.held_bytes += s.held_bytes;
    all.hit_tokens = std::max(all.hit_tokens, s.hit_tokens);
    all.evictions += s.evictions, all.copies += s.copies;
  }
  return all;
}

}  // namespace headwise
