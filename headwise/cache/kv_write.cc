// Writing into pages, and what the cache knows about itself.
#include <algorithm>
#include <cstring>
#include <set>

#include "headwise/base/context.h"
#include "headwise/cache/kv_cache.h"
#include "headwise/cache/prefix_tree.h"
#include "headwise/ops/keys/quantize_kv.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "kv cache";

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// Token `token` of a page: [1 1 kv_heads dim] of a pool, without dim of scales.
AnyView token_of(const AnyView& pool, Index page, Index token) {
  AnyView v = pool;
  v.data =
      static_cast<std::byte*>(pool.data) + (page * pool.step[0] + token * pool.step[1]) * size_of(pool.dtype);
  v.size[0] = v.size[1] = 1;
  return v;
}
AnyView row_of(const AnyView& x, Index row) {
  AnyView v;
  v.data = static_cast<std::byte*>(x.data) + row * x.step[0] * size_of(x.dtype);
  v.dtype = x.dtype, v.rank = 4;
  v.size[0] = v.size[1] = 1, v.size[2] = x.size[1], v.size[3] = x.size[2];
  v.step[2] = x.step[1], v.step[3] = x.step[2];
  return v;
}
template <class T>
void store_as(const AnyView& from, const AnyView& to) noexcept {
  for (Index h = 0; h < from.size[2]; ++h) {
    const float* x = static_cast<const float*>(from.data) + h * from.step[2];
    T* y = static_cast<T*>(to.data) + h * to.step[2];
    if (from.step[3] == 1 && to.step[3] == 1)
      for (Index d = 0; d < from.size[3]; ++d) y[d] = static_cast<T>(x[d]);
    else
      for (Index d = 0; d < from.size[3]; ++d) y[d * to.step[3]] = static_cast<T>(x[d * from.step[3]]);
  }
}
void store(const AnyView& from, const AnyView& to) noexcept {
  if (to.dtype == DType::f32) return store_as<float>(from, to);
  if (to.dtype == DType::bf16) return store_as<bf16>(from, to);
  store_as<f16>(from, to);
}

}  // namespace

void KvCache::write(SequenceId id, Index layer, const InputView& k, const InputView& v, Context& ctx) {
  if (split()) return write_classes(id, layer, k, v, ctx);
  const Sequence& s = find(id);
  const auto fits = [&](const AnyView& x, Index dim) {
    return x.rank == 3 && x.dtype == DType::f32 && x.size[1] == shape_.kv_heads && x.size[2] == dim;
  };
  require(fits(k, shape_.head_dim) && fits(v, shape_.value_dim) && k.size[0] == v.size[0],
          ErrorKind::bad_shape, kOp, "k is ", k, " and v is ", v, "; give f32 [tokens ", shape_.kv_heads, " ",
          shape_.head_dim, "] and [tokens ", shape_.kv_heads, " ", shape_.value_dim, "]");
  const Index each = page_tokens(), room = static_cast<Index>(s.pages.size()) * each - s.length;
  require(k.size[0] <= room, ErrorKind::bad_argument, kOp, "sequence ", id, " has room for ", room,
          " more tokens, not for ", k.size[0], "; reserve first");
  const auto page_of = [&](Index row) { return s.pages[at((s.length + row) / each)]; };
  const auto elsewhere = [&](Index row) { return page_of(row) < 0 && options_.share.ranks > 1; };
  for (Index row = 0; row < k.size[0]; ++row)
    require(elsewhere(row) || writable(page_of(row)), ErrorKind::bad_argument, kOp, "page ", page_of(row),
            " of sequence ", id, " is shared; reserve first");
  const AnyView keys = this->k(layer), values = this->v(layer);
  const auto write_row = [&](Index row) {
    if (elsewhere(row)) return;
    const Index token = (s.length + row) % each;
    for (const bool key : {true, false}) {
      const AnyView to = token_of(key ? keys : values, page_of(row), token), from = row_of(key ? k : v, row);
      if (eight_bit())
        quantize_kv(from, to, token_of(key ? k_scale(layer) : v_scale(layer), page_of(row), token), ctx);
      else
        store(from, to);
    }
  };
  constexpr Index kRows = 16;  // of a task
  if (eight_bit() || k.size[0] <= kRows) {
    for (Index row = 0; row < k.size[0]; ++row) write_row(row);
    return;
  }
  ctx.pool().parallel_for(ceil_div(k.size[0], kRows), [&](Index task, int) noexcept {
    for (Index row = task * kRows; row < min_of(k.size[0], (task + 1) * kRows); ++row) write_row(row);
  });
}

KvStats KvCache::stats() const {
  if (split()) return class_stats();
  KvStats s;
  s.pages = static_cast<Index>(records_.size()), s.free = static_cast<Index>(free_.size()),
  s.in_tree = tree_->size();
  s.held = s.pages - s.free - tree_->free_to_go();
  s.sequences = static_cast<Index>(sequences_.size());
  for (const Buffer& b : memory_) s.bytes += static_cast<Index>(b.size());
  s.held_bytes = s.pages > 0 ? s.bytes / s.pages * s.held : 0;
  s.hit_tokens = hit_tokens_, s.evictions = evictions_, s.copies = copies_;
  return s;
}

void KvCache::check() const {
  for (const auto& c : classes_) c->check();
  if (split()) return;
  const auto hold = [](bool ok, const auto&... parts) {
    require(ok, ErrorKind::bad_argument, "kv cache check", parts...);
  };
  std::vector<Index> seen(records_.size(), 0), tree_seen(records_.size(), 0);
  for (const auto& [id, s] : sequences_) {
    hold(static_cast<Index>(s.tokens.size()) == s.length, "sequence ", id, " has ", s.tokens.size(),
         " ids for ", s.length, " tokens");
    hold(ceil_div(s.length, page_tokens()) <= static_cast<Index>(s.pages.size()), "sequence ", id,
         " has tokens past its pages");
    for (std::size_t i = 0; i < s.pages.size(); ++i) {
      const bool gone = s.pages[i] < 0;
      const bool elsewhere = !options_.share.has(static_cast<Index>(i) * page_tokens());
      hold(gone == elsewhere || static_cast<Index>(i + 1) * page_tokens() <= s.dropped, "page ", i,
           " of sequence ", id, " is ", gone ? "gone" : "another rank's");
      if (!gone) ++seen[at(s.pages[i])];
    }
    int node = s.node;
    for (Index i = s.node_pages - 1; i >= 0; --i, node = tree_->parent(node)) {
      hold(tree_->page(node) == s.pages[at(i)], "page ", i, " of sequence ", id, " is not its node's");
      hold(std::equal(tree_->ids(node).begin(), tree_->ids(node).end(), s.tokens.begin() + i * page_tokens()),
           "node ", node, " has other ids than sequence ", id);
    }
    hold(node == tree_->root(s.tenant), "sequence ", id, " does not begin at its tenant's root");
  }
  for (const int node : tree_->all()) {
    const std::int32_t page = tree_->page(node);
    ++tree_seen[at(page)];
    hold(records_[at(page)].node == node, "page ", page, " does not know its node ", node);
    hold(tree_->holders(node) == seen[at(page)], "node ", node, " counts ", tree_->holders(node),
         " holders; sequences have ", seen[at(page)]);
  }
  std::set<std::int32_t> free(free_.begin(), free_.end());
  hold(free.size() == free_.size(), "a page is free twice");
  for (std::size_t page = 0; page < records_.size(); ++page) {
    const Record& r = records_[page];
    hold(r.references == seen[page] + tree_seen[page], "page ", page, " counts ", r.references,
         " references; there are ", seen[page] + tree_seen[page]);
    hold((r.references == 0) == free.contains(static_cast<std::int32_t>(page)), "page ", page, " has ",
         r.references, " references and is ", free.contains(static_cast<std::int32_t>(page)) ? "" : "not ",
         "free");
    hold((r.node >= 0) == (tree_seen[page] == 1), "page ", page, " is in the tree ", tree_seen[page],
         " times");
  }
}

}  // namespace headwise
