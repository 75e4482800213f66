#include "headwise/cache/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "headwise/cache/prefix_tree.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "kv cache";
constexpr Index kMostPages = Index{1} << 30;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

}  // namespace

PageTable KvTable::view() {
  const auto rows = static_cast<Index>(lengths.size());
  return {.table = AnyView::packed(pages.data(), DType::i32, {rows, pages_each}),
          .lengths = AnyView::packed(lengths.data(), DType::i64, {rows})};
}

KvCache::KvCache(const KvShape& shape, const KvOptions& options)
    : shape_(shape), options_(options), tree_(std::make_unique<PrefixTree>()) {
  const DType t = options.dtype;
  require(t == DType::f32 || t == DType::bf16 || t == DType::f16 || eight_bit(), ErrorKind::bad_dtype, kOp,
          "got ", t, "; pages hold f32, bf16, f16, i8 or e4m3");
  require(is_page_size(options.page_tokens), ErrorKind::bad_shape, kOp, "a page has ", options.page_tokens,
          " tokens; it may have 8, 16, 32, 64, 128 or 256");
  require(shape.layers > 0 && shape.kv_heads > 0 && shape.head_dim > 0 && shape.value_dim > 0,
          ErrorKind::bad_shape, kOp, "got ", shape.layers, " layers, ", shape.kv_heads,
          " kv heads, head_dim ", shape.head_dim, ", value_dim ", shape.value_dim, "; all are 1 or more");
  require(options.window >= 0 && options.first >= 0, ErrorKind::bad_argument, kOp, "got a window of ",
          options.window, " and ", options.first, " first tokens; both are 0 or more");
  const KeyShare& share = options.share;
  require(share.ranks >= 1 && share.rank >= 0 && share.rank < share.ranks, ErrorKind::bad_argument, kOp,
          "got rank ", share.rank, " of ", share.ranks, "; ranks are numbered from 0");
  require(share.ranks == 1 || (options.heads.empty() && options.window == 0), ErrorKind::unsupported, kOp,
          "keys are shared out over ", share.ranks,
          " ranks, where heads have no windows and policies yet; use one rank");
  if (!options.heads.empty()) {
    make_classes();
    return;
  }
  Index page_bytes = 0;
  for (const Part part : {Part::k, Part::v}) page_bytes += numbers_of(part) * size_of(t);
  if (eight_bit()) page_bytes += 2 * numbers_of(Part::k_scale) * size_of(DType::f32);
  page_bytes *= shape.layers;
  const Index pages = std::min(options.bytes / page_bytes, kMostPages);
  require(pages > 0, ErrorKind::bad_argument, kOp, "got ", options.bytes, " bytes; one page of ",
          options.page_tokens, " tokens takes ", page_bytes, ": give as many or more");
  for (Index layer = 0; layer < shape.layers; ++layer)
    for (const Part part : {Part::k, Part::v, Part::k_scale, Part::v_scale}) {
      const bool scale = part == Part::k_scale || part == Part::v_scale;
      if (scale && !eight_bit()) {
        pools_.emplace_back();
        continue;
      }
      const DType held = scale ? DType::f32 : t;
      const Index dim = part == Part::k ? shape.head_dim : shape.value_dim;
      memory_.emplace_back(at(pages * numbers_of(part) * size_of(held)));
      void* data = memory_.back().data();
      pools_.push_back(scale
                           ? AnyView::packed(data, held, {pages, options.page_tokens, shape.kv_heads})
                           : AnyView::packed(data, held, {pages, options.page_tokens, shape.kv_heads, dim}));
    }
  records_.resize(at(pages));
  for (Index page = pages - 1; page >= 0; --page) free_.push_back(static_cast<std::int32_t>(page));
}

KvCache::~KvCache() = default;

Index KvCache::numbers_of(Part part) const {
  const Index heads = options_.page_tokens * shape_.kv_heads;
  return part == Part::k ? heads * shape_.head_dim : part == Part::v ? heads * shape_.value_dim : heads;
}
AnyView KvCache::pool(Index layer, Part part) const {
  require(!split(), ErrorKind::unsupported, kOp,
          "heads have policies of their own, so there is no single pool of a layer; ask for one head");
  require(layer >= 0 && layer < shape_.layers, ErrorKind::bad_argument, kOp, "got layer ", layer,
          "; they are numbered from 0 to ", shape_.layers - 1);
  return pools_[at(layer * 4 + static_cast<Index>(part))];
}
KvCache::Sequence& KvCache::find(SequenceId id) {
  if (split()) return classes_[0]->find(id);
  const auto found = sequences_.find(id);
  require(found != sequences_.end(), ErrorKind::bad_argument, kOp, "there is no open sequence ", id,
          "; it was closed, or never opened");
  return found->second;
}
const KvCache::Sequence& KvCache::find(SequenceId id) const { return const_cast<KvCache*>(this)->find(id); }

Index KvCache::kept_pages(Index pages, int rank) const {
  const Index each = kSplitKeys / page_tokens(), round = each * options_.share.ranks;
  return pages / round * each + min_of(each, max_of(0, pages % round - rank * each));
}

/// Rank 0 keeps the most of every text.
Index KvCache::longest_pages() const {
  const auto all = static_cast<Index>(records_.size());
  if (options_.share.ranks == 1) return all;
  const Index each = kSplitKeys / page_tokens();
  return min_of(all / each * each * options_.share.ranks + all % each, kMostPages);
}

/// Has every rank room when `s` has so many pages? All ranks count for all of them.
bool KvCache::fits_all_ranks(const Sequence& s, Index pages) const {
  for (int rank = 0; rank < options_.share.ranks; ++rank) {
    Index kept = kept_pages(pages, rank);
    for (const auto& [id, other] : sequences_)
      if (&other != &s) kept += kept_pages(static_cast<Index>(other.pages.size()), rank);
    if (kept > static_cast<Index>(records_.size())) return false;
  }
  return true;
}

bool KvCache::writable(std::int32_t page) const {
  const Record& r = records_[at(page)];
  return r.references == 1 && r.node < 0;
}

/// A free page, or that of a leaf of the tree; the caller has made sure there is one.
std::int32_t KvCache::take_page(const std::string& tenant) {
  if (free_.empty()) {
    const std::int32_t page = tree_->evict();
    require(page >= 0, ErrorKind::bad_argument, kOp, "there is no free page; reserve first");
    ++evictions_;
    Record& r = records_[at(page)];
    r.node = -1, r.references = 0;
    free_.push_back(page);
  }
  const std::int32_t page = free_.back();
  free_.pop_back();
  Record& r = records_[at(page)];
  // What one tenant wrote is gone before another has the page.
  if (r.written && r.tenant != tenant)
    for (const AnyView& pool : pools_)
      if (pool.given()) {
        const Index bytes = pool.step[0] * size_of(pool.dtype);
        std::memset(static_cast<std::byte*>(pool.data) + page * bytes, 0, at(bytes));
      }
  r.references = 1, r.tenant = tenant, r.written = true;
  return page;
}

void KvCache::give_page(std::int32_t page) {
  Record& r = records_[at(page)];
  --r.references;
  if (r.node >= 0) tree_->release(r.node, now_);
  if (r.references == 0) free_.push_back(page);
}

void KvCache::share(Sequence& s, std::int32_t page) {
  Record& r = records_[at(page)];
  ++r.references;
  if (r.node >= 0) tree_->hold(r.node);
  s.pages.push_back(page);
}

void KvCache::copy_page(std::int32_t from, std::int32_t to) {
  for (const AnyView& pool : pools_)
    if (pool.given()) {
      const Index bytes = pool.step[0] * size_of(pool.dtype);
      auto* data = static_cast<std::byte*>(pool.data);
      std::memcpy(data + to * bytes, data + from * bytes, at(bytes));
    }
  ++copies_;
}

SequenceId KvCache::open(const std::string& tenant) {
  if (split()) return open_classes(tenant);
  Sequence s;
  s.tenant = tenant, s.node = tree_->root(tenant);
  sequences_.emplace(next_, std::move(s));
  return next_++;
}

SequenceId KvCache::fork(SequenceId other) {
  if (split()) return fork_classes(other);
  require(options_.share.ranks == 1, ErrorKind::unsupported, kOp, "keys are shared out over ",
          options_.share.ranks, " ranks, where texts have no forks yet; open another sequence");
  const Sequence& from = find(other);
  Sequence s;
  s.tenant = from.tenant, s.tokens = from.tokens, s.length = from.length;
  s.node = from.node, s.node_pages = from.node_pages, s.dropped = from.dropped;
  s.prompt = from.prompt, s.sums = from.sums, s.closed = from.closed;
  const Index used = ceil_div(from.length, page_tokens());
  for (Index i = 0; i < used; ++i)
    if (from.pages[at(i)] >= 0)
      share(s, from.pages[at(i)]);
    else
      s.pages.push_back(-1);
  sequences_.emplace(next_, std::move(s));
  return next_++;
}

Index KvCache::adopt(SequenceId id, std::span<const std::int32_t> prompt) {
  if (split()) return adopt_classes(id, prompt);
  Sequence& s = find(id);
  require(s.length == 0, ErrorKind::bad_argument, kOp, "sequence ", id, " has ", s.length,
          " tokens; only an empty one adopts a beginning");
  const Index most = std::max<Index>(static_cast<Index>(prompt.size()) - 1, 0), each = page_tokens();
  for (const std::int32_t page : s.pages)
    if (page >= 0) give_page(page);
  s.pages.clear();
  if (options_.window > 0 || own_.weighs() || options_.share.ranks > 1) return 0;
  ++now_;
  while (s.length + each <= most) {
    const int child = tree_->find(s.node, prompt.subspan(at(s.length), at(each)));
    if (child < 0) break;
    share(s, tree_->page(child));
    s.node = child, ++s.node_pages, s.length += each;
  }
  // Part of one more page is copied: two texts cannot append to one page.
  const Index wanted = std::min(each, most - s.length);
  const auto [child, shared] = tree_->nearest(s.node, prompt.subspan(at(s.length), at(wanted)));
  if (child >= 0) {
    tree_->hold(child);  // it must not be evicted to make room for its own copy
    if (!free_.empty() || tree_->free_to_go() > 0) {
      const std::int32_t page = take_page(s.tenant);
      copy_page(tree_->page(child), page);
      s.pages.push_back(page);
      s.length += shared;
    }
    tree_->release(child, now_);
  }
  s.tokens.assign(prompt.begin(), prompt.begin() + s.length);
  hit_tokens_ += s.length;
  return s.length;
}

bool KvCache::reserve(SequenceId id, Index tokens) {
  if (split()) return reserve_classes(id, tokens);
  Sequence& s = find(id);
  require(tokens >= 0, ErrorKind::bad_argument, kOp, "got ", tokens, " tokens to reserve; give 0 or more");
  const Index each = page_tokens(),
              needed = ceil_div(s.length + tokens, each) - static_cast<Index>(s.pages.size());
  if (options_.share.ranks > 1) {
    if (!fits_all_ranks(s, static_cast<Index>(s.pages.size()) + max_of(0, needed))) return false;
    for (Index i = 0; i < needed; ++i) {
      const Index key = static_cast<Index>(s.pages.size()) * each;
      s.pages.push_back(options_.share.has(key) ? take_page(s.tenant) : -1);
    }
    return true;
  }
  const Index tail = s.length / each;  // the first page that will be written
  const bool copied = tokens > 0 && s.length % each != 0 && !writable(s.pages[at(tail)]);
  if (std::max<Index>(needed, 0) + (copied ? 1 : 0) > static_cast<Index>(free_.size()) + tree_->free_to_go())
    return false;
  ++now_;
  if (copied) {
    const std::int32_t page = take_page(s.tenant), old = s.pages[at(tail)];
    copy_page(old, page);
    s.pages[at(tail)] = page;
    give_page(old);
  }
  for (Index i = 0; i < needed; ++i) s.pages.push_back(take_page(s.tenant));
  return true;
}

void KvCache::truncate(SequenceId id, Index tokens) {
  Sequence& s = find(id);
  for (const auto& c : classes_) {
    const Sequence& held = c->find(id);
    require(tokens >= held.dropped || tokens == held.length, ErrorKind::bad_argument, kOp, "sequence ", id,
            " gave tokens before ", held.dropped, " back; it cannot be cut to ", tokens);
    require(!c->own_.weighs() || tokens == held.length, ErrorKind::bad_argument, kOp, "sequence ", id,
            " has heads that weigh their tokens, which cannot be undone; it keeps all ", held.length);
  }
  if (split()) {
    for (const auto& c : classes_) c->truncate(id, tokens);
    return;
  }
  require(tokens >= 0 && tokens <= s.length, ErrorKind::bad_argument, kOp, "sequence ", id, " has ", s.length,
          " tokens and ", tokens, " were to be kept; keep 0 to ", s.length);
  ++now_;
  const Index keep = ceil_div(tokens, page_tokens());
  require(tokens >= s.dropped || tokens == s.length, ErrorKind::bad_argument, kOp, "sequence ", id,
          " gave tokens before ", s.dropped, " back; it cannot be cut to ", tokens);
  for (; static_cast<Index>(s.pages.size()) > keep; s.pages.pop_back())
    if (s.pages.back() >= 0) give_page(s.pages.back());
  s.length = tokens;
  s.tokens.resize(at(tokens));
  s.waiting.clear();
  for (; s.node_pages > tokens / page_tokens(); --s.node_pages) s.node = tree_->parent(s.node);
}

void KvCache::close(SequenceId id) {
  Sequence& s = find(id);
  if (split()) {
    for (const auto& c : classes_) c->close(id);
    return;
  }
  ++now_;
  for (auto page = s.pages.rbegin(); page != s.pages.rend(); ++page)
    if (*page >= 0) give_page(*page);
  sequences_.erase(id);
}

/// Full pages behind those that are in the tree already. Where the tree has these tokens, its page is taken:
/// equal tokens have equal keys and values, whoever computed them.
void KvCache::to_tree(Sequence& s) {
  const Index each = page_tokens();
  while ((s.node_pages + 1) * each <= s.length) {
    const std::span<const std::int32_t> ids(s.tokens.data() + s.node_pages * each, at(each));
    const std::int32_t mine = s.pages[at(s.node_pages)];
    int node = tree_->find(s.node, ids);
    if (node < 0 && records_[at(mine)].node < 0) {
      node = tree_->insert(s.node, ids, mine, now_);
      Record& r = records_[at(mine)];
      r.node = node;
      for (Index holders = r.references++; holders > 0; --holders) tree_->hold(node);
    } else if (node >= 0 && tree_->page(node) != mine) {
      const std::int32_t theirs = tree_->page(node);
      ++records_[at(theirs)].references;
      tree_->hold(node);
      s.pages[at(s.node_pages)] = theirs;
      give_page(mine);
    }
    s.node = node, ++s.node_pages;
  }
}

void KvCache::commit(SequenceId id, std::span<const std::int32_t> tokens) {
  if (split()) {
    for (const auto& c : classes_) c->commit(id, tokens);
    return;
  }
  Sequence& s = find(id);
  const auto n = static_cast<Index>(tokens.size());
  require(s.length + n <= static_cast<Index>(s.pages.size()) * page_tokens(), ErrorKind::bad_argument, kOp,
          "sequence ", id, " has room for ", static_cast<Index>(s.pages.size()) * page_tokens() - s.length,
          " more tokens, not for ", n, "; reserve first");
  s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
  s.length += n;
  ++now_;
  if (options_.window > 0)
    drop_pages(s);
  else if (own_.weighs())
    count_weights(s, n);
  else if (options_.share.ranks == 1)
    to_tree(s);
}

KvTable KvCache::table(std::span<const SequenceId> ids, std::span<const Index> lengths) const {
  KvTable t;
  t.lengths.assign(lengths.begin(), lengths.end());
  for (const Index length : lengths) t.pages_each = std::max(t.pages_each, ceil_div(length, page_tokens()));
  t.pages.assign(ids.size() * at(t.pages_each), 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::vector<std::int32_t>& pages = find(ids[i]).pages;
    const Index used = ceil_div(lengths[i], page_tokens());
    require(used <= static_cast<Index>(pages.size()), ErrorKind::bad_argument, kOp, "sequence ", ids[i],
            " has no room for ", lengths[i], " tokens; reserve first");
    // Pages that are gone are -1: a mask closes them, which attention checks.
    std::copy_n(pages.begin(), used, t.pages.begin() + static_cast<Index>(i) * t.pages_each);
  }
  return t;
}

}  // namespace headwise
