// Mask: what users hold: an immutable expression with & and |, owning its small arrays. True means "may
// attend".
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/base/view.h"
#include "headwise/spec/mask.h"

#pragma GCC visibility push(default)

namespace headwise {

class Mask {
 public:
  Mask() = default;  // all
  Mask(const Mask& other);
  Mask(Mask&& other) noexcept = default;
  Mask& operator=(const Mask& other);
  Mask& operator=(Mask&& other) noexcept = default;
  ~Mask() = default;

  static Mask all();
  static Mask causal();
  /// Keys from q - back to q + ahead: besides itself. Negative: refused.
  static Mask window(Index back, Index ahead);
  /// The last `width` keys, itself included: window(width - 1, 0).
  static Mask sliding(Index width);
  /// The first `keys` keys, for every query; causal() | prefix(n) is a prefix language model.
  static Mask prefix(Index keys);
  /// Sequence b may look at keys 0..lengths[b]-1.
  static Mask lengths(std::span<const Index> lengths);
  /// Tokens offsets[i]..offsets[i+1]-1 form document i; a query sees keys of its own document only.
  static Mask documents(std::span<const Index> offsets);
  /// Query block r may look at the kv blocks columns[rows[r]..rows[r+1]) (CSR; ascending inside a row).
  static Mask blocks(Index q_block, Index kv_block, std::span<const Index> rows,
                     std::span<const Index> columns);
  /// Keys whose distance to the query is a multiple of `stride`, or below `width` from one: |q - k| % stride
  /// < width.
  static Mask strided(Index stride, Index width = 1);
  /// Pairs in which the query or the key is one of `positions`, given in any order.
  static Mask global(std::span<const Index> positions);
  /// u8 tensor, non-zero = may attend, sizes [q kv], [heads q kv] or [batch heads q kv] (1 repeats); packed
  /// to bits inside. The merged form [batch*heads q kv] comes as dense(unmerge_heads(open, heads)).
  static Mask dense(const InputView& open);
  /// The same with the other polarity: non-zero = may not attend.
  static Mask from_blocked(const InputView& blocked);
  /// A kind by its numbers, as its text has them; blocks and dense have builders of their own.
  static Mask of_kind(MaskOp op, std::span<const Index> numbers);
  /// One mask per head. Only as the outermost expression, not inside & or |.
  static Mask per_head(std::span<const Mask> masks);

  friend Mask operator&(Mask a, const Mask& b) { return joined(MaskOp::both, std::move(a), b); }
  friend Mask operator|(Mask a, const Mask& b) { return joined(MaskOp::either, std::move(a), b); }
  /// The same expression, term by term and number by number; not "opens the same pairs".
  friend bool operator==(const Mask& a, const Mask& b);
  /// How many of the q_tokens x kv_tokens pairs are open; whole regions that are full or empty cost one
  /// question.
  friend Index open_pairs(const Mask& mask, Index q_tokens, Index kv_tokens, const MaskSubject& at);

  /// For kernels; valid while this Mask lives. A copy has its own, and a temporary none: give it a name.
  MaskSet set() const& { return {views_.data(), static_cast<Index>(views_.size())}; }
  MaskSet set() const&& = delete;
  Index heads() const {
    return views_.empty() ? 1 : static_cast<Index>(views_.size());
  }  // 1, or the number of per-head masks
  bool may_attend(Index q, Index k, const MaskSubject& at = {}) const;
  TileKind tile(Index q0, Index q1, Index k0, Index k1, const MaskSubject& at = {}) const;
  /// Throws when arrays do not fit: lengths for another batch, a dense mask of other sizes, per_head of
  /// another count.
  void check(Index batch, Index heads, Index q_tokens, Index kv_tokens) const;

 private:
  static Mask of(MaskStep step, std::vector<Index> numbers = {});
  static Mask packed(const InputView& tensor, std::string_view name, bool blocked);
  static Mask joined(MaskOp op, Mask a, const Mask& b);
  /// Takes over the arrays of `from`; returns its views, which then point at the copies.
  std::vector<MaskView> adopt(const Mask& from);
  const MaskView* view_of(Index head) const;

  std::vector<MaskView> views_;  // none: all; one, or one a head; their steps point into the two arrays below
  std::vector<Index> numbers_;
  std::vector<std::uint64_t> bits_;
};

/// "causal & window(256, 0) | prefix(4)": the text of a mask. Arrays print in full: lengths(3, 7); dense
/// cannot be written.
std::string to_text(const Mask& mask);
/// The inverse; errors name the column and what was expected. Where the text says dense[...], the next of
/// `dense` stands.
Mask parse_mask(std::string_view text, std::span<const Mask> dense = {});

Index open_pairs(const Mask& mask, Index q_tokens, Index kv_tokens, const MaskSubject& at = {});

/// How queries and keys are cut into tiles, both counted from the first.
struct TileGrid {
  Index q_tokens = 0, kv_tokens = 0, q_tile = 1, kv_tile = 1;
};
/// Tiles a kernel visits: those whose tile() is not empty.
Index count_tiles(const Mask& mask, const TileGrid& grid, const MaskSubject& at = {});

}  // namespace headwise
#pragma GCC visibility pop
