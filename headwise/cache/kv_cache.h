// KvCache: keys and values of many texts in pages: append, fork, cut back, share equal beginnings.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headwise/base/buffer.h"
#include "headwise/base/view.h"
#include "headwise/cache/head_policy.h"
#include "headwise/spec/key_share.h"
#include "headwise/spec/pages.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

struct KvShape {
  Index layers = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
};

struct KvOptions {
  Index bytes = Index{256} << 20;      // of all pools together; memory is taken as pages are first written
  Index page_tokens = 16;              // one of kPageSizes
  DType dtype = DType::f32;            // f32, bf16, f16, i8 or e4m3
  Index window = 0, first = 0;         // of all heads, as in HeadPolicy; such a cache shares no beginnings
  std::vector<HeadPolicy> heads = {};  // [layers kv_heads]; empty: all heads alike
  bool drop = true;  // heads with a window give pages back; else they keep them, closed by the mask
  /// Ranks that share out the keys of every text: this one keeps the pages of its splits alone. All decide
  /// alike what has room. Such a cache shares no beginnings either.
  KeyShare share = {};
};

/// Never used twice.
using SequenceId = std::int64_t;

struct KvStats {
  Index pages = 0, free = 0, in_tree = 0, held = 0;  // held: by open sequences
  Index sequences = 0, bytes = 0, held_bytes = 0;
  Index hit_tokens = 0, evictions = 0, copies = 0;  // since the cache was made
};

/// What attention takes for some sequences of a layer; it stands until the cache changes.
struct KvTable {
  std::vector<std::int32_t> pages;  // [sequences pages_each]
  std::vector<Index> lengths;
  PageTable view();
  Index pages_each = 0;
};

/// Owns the pools; used by one thread at a time, as a Context. Token t of a sequence lies in its page t /
/// page_tokens, always. A page is written only while one sequence has it and the tree does not.
class KvCache {
 public:
  KvCache(const KvShape& shape, const KvOptions& options);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;
  ~KvCache();

  const KvShape& shape() const { return shape_; }
  DType dtype() const { return options_.dtype; }
  Index page_tokens() const { return options_.page_tokens; }
  /// That the longest text may take.
  Index pages() const {
    return split() ? nominal_pages_ : options_.window > 0 ? Index{1} << 30 : longest_pages();
  }
  /// Heads have policies of their own: they lie in caches of their own, one for each policy.
  bool split() const { return !classes_.empty(); }
  struct Head {
    const KvCache* cache;
    Index slot;  // its layer there, which has one kv head
    const HeadPolicy* policy;
  };
  Head head(Index layer, Index kv_head) const;

  /// Empty. Only sequences of one tenant share pages.
  SequenceId open(const std::string& tenant = {});
  /// Has the tokens of the other and shares all its pages.
  SequenceId fork(SequenceId other);
  /// For an empty sequence: takes over the longest beginning of `prompt` that is in the tree, at most all but
  /// its last token. Gives its length.
  Index adopt(SequenceId id, std::span<const std::int32_t> prompt);
  /// Room for so many more tokens. False: there are too few pages, and nothing was taken.
  bool reserve(SequenceId id, Index tokens);
  /// Keys and values [tokens kv_heads dim], f32, behind length(); room was reserved.
  void write(SequenceId id, Index layer, const InputView& k, const InputView& v, Context& ctx);
  /// All layers were written: the length grows, and full pages go to the tree.
  void commit(SequenceId id, std::span<const std::int32_t> tokens);
  /// Keeps the first tokens alone.
  void truncate(SequenceId id, Index tokens);
  /// Heads whose policy weighs tokens decide at the end of each page, and snap at the end of the prompt: so
  /// many rows may be computed before the next such place. Others set no bound.
  Index most_rows(SequenceId id) const;
  /// Where the prompt of an empty sequence ends, for snap; unknown: such heads keep all.
  void set_prompt(SequenceId id, Index tokens);
  /// Of a head whose policy weighs: weights [rows queries kv_tokens] that the queries of its group gave the
  /// keys, for each row that was written behind length(). They count when the rows are committed.
  struct Weighed {
    Index rows, queries, kv_tokens;
    const float* weights;
  };
  void weigh(SequenceId id, Index layer, Index kv_head, const Weighed& w);
  /// Pages of such a head that nobody looks at any more, in a cache of Head::cache.
  const std::vector<bool>& closed_pages(SequenceId id) const { return find(id).closed; }
  /// Exactly once. Full pages stay in the tree until room is needed.
  void close(SequenceId id);

  Index length(SequenceId id) const { return find(id).length; }
  std::span<const std::int32_t> tokens(SequenceId id) const { return find(id).tokens; }
  /// The tables of sequences with `lengths` tokens each: those committed and those written since.
  KvTable table(std::span<const SequenceId> ids, std::span<const Index> lengths) const;
  /// Pools [pages page_tokens kv_heads dim], and [pages page_tokens kv_heads] scales of 8-bit dtypes.
  AnyView k(Index layer) const { return pool(layer, Part::k); }
  AnyView v(Index layer) const { return pool(layer, Part::v); }
  AnyView k_scale(Index layer) const { return pool(layer, Part::k_scale); }
  AnyView v_scale(Index layer) const { return pool(layer, Part::v_scale); }

  KvStats stats() const;
  /// Throws with a sentence when anything the cache promises of itself does not hold.
  void check() const;

 private:
  enum class Part : std::uint8_t { k, v, k_scale, v_scale };
  struct Record {
    Index references = 0;  // appearances in open sequences, + 1 in the tree
    int node = -1;         // in the tree; -1: not there
    std::string tenant;    // who wrote it last
    bool written = false;
  };
  struct Sequence {
    std::string tenant;
    std::vector<std::int32_t> tokens, pages;
    Index length = 0;
    Index dropped = 0;     // tokens before it may be gone
    int node = -1;         // of the last full page that is in the tree with all before it; the root at first
    Index node_pages = 0;  // how many pages that is
    // Of a head whose policy weighs.
    Index prompt = 0;
    std::vector<double> sums;                  // weight that each page got, by rows that are committed
    std::vector<std::vector<double>> waiting;  // of rows that are not
    std::vector<bool> closed;
  };
  Sequence& find(SequenceId id);
  const Sequence& find(SequenceId id) const;
  AnyView pool(Index layer, Part part) const;
  Index numbers_of(Part part) const;
  bool eight_bit() const { return options_.dtype == DType::i8 || options_.dtype == DType::e4m3; }
  bool writable(std::int32_t page) const;
  /// Of a text's first pages, those that a rank keeps; the most pages of a text that fit.
  Index kept_pages(Index pages, int rank) const;
  Index longest_pages() const;
  bool fits_all_ranks(const Sequence& s, Index pages) const;
  std::int32_t take_page(const std::string& tenant);
  void give_page(std::int32_t page);
  void copy_page(std::int32_t from, std::int32_t to);
  void share(Sequence& s, std::int32_t page);
  void to_tree(Sequence& s);
  void drop_pages(Sequence& s);
  void count_weights(Sequence& s, Index rows);
  void choose_pages(Sequence& s);
  void make_classes();
  bool drops(const HeadPolicy& p) const { return (p.window > 0 || p.heavy > 0) && options_.drop; }
  SequenceId open_classes(const std::string& tenant);
  SequenceId fork_classes(SequenceId other);
  Index adopt_classes(SequenceId id, std::span<const std::int32_t> prompt);
  bool reserve_classes(SequenceId id, Index tokens);
  void write_classes(SequenceId id, Index layer, const AnyView& k, const AnyView& v, Context& ctx);
  KvStats class_stats() const;

  KvShape shape_;
  KvOptions options_;
  std::vector<Buffer> memory_;
  std::vector<AnyView> pools_;  // [layers 4]
  std::vector<Record> records_;
  std::vector<std::int32_t> free_;  // the last one is taken next
  std::map<SequenceId, Sequence> sequences_;
  std::unique_ptr<class PrefixTree> tree_;
  SequenceId next_ = 0;
  std::int64_t now_ = 0;
  struct Place {
    int kind;    // of classes_
    Index slot;  // its layer there
  };
  std::vector<std::unique_ptr<KvCache>> classes_;  // of a split cache, which has no pools itself
  std::vector<Place> places_;                      // [layers kv_heads]
  HeadPolicy own_;                                 // of a class
  Index nominal_pages_ = 0;
  Index hit_tokens_ = 0, evictions_ = 0, copies_ = 0;
};

}  // namespace headwise
#pragma GCC visibility pop
