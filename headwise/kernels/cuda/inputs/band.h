// Band: masks that open one run of keys around the diagonal, as numbers; and the key tiles such a run
// touches.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/spec/problem.h"

namespace headwise::cuda {

/// Positions and distances of the tiled kernels fit an int with room to add two.
inline constexpr Index kFar = Index{1} << 29;

/// Keys from q - back to q + ahead below `keys`; a conjunction of causal, window, prefix, lengths, one
/// documents and one blocks.
struct Band {
  Index back = kFar, ahead = kFar, keys = kFar;
  bool whole = true;                    // no causal, window or blocks term: every query sees the same keys
  bool by_length = false;               // `keys` differs from sequence to sequence
  const MaskStep* documents = nullptr;  // and the keys of the query's own document
  const MaskStep* blocks = nullptr;     // and of these the blocks its block row lists: for cuda/hopper alone
};

/// One band of keys, or what keeps a mask from being one: from `kind` on, the kind of a step.
enum class BandForm : std::uint8_t { band, per_head, two_documents, two_blocks, kind };
constexpr BandForm form_of(MaskOp op) {
  return static_cast<BandForm>(static_cast<int>(BandForm::kind) + static_cast<int>(op));
}
constexpr const char* words_of(BandForm form) {
  if (form >= BandForm::kind) {
    const MaskKind& kind =
        kind_of(static_cast<MaskOp>(static_cast<int>(form) - static_cast<int>(BandForm::kind)));
    return kind.no_band ? kind.no_band : kind.name;
  }
  return form == BandForm::per_head        ? "its masks differ from head to head"
         : form == BandForm::two_documents ? "two documents(...) are no single band of keys"
         : form == BandForm::two_blocks    ? "two blocks(...) are no single list of keys"
                                           : "";
}

/// Fills the band of a mask for sequence b; complete where the answer is BandForm::band.
inline BandForm read_band(const MaskSet& mask, Index b, Band& band) {
  band = {};
  if (!mask.given()) return BandForm::band;
  if (mask.count != 1) return BandForm::per_head;
  for (int i = 0; i < mask.views[0].count; ++i) {
    const MaskStep& s = mask.views[0].steps[i];
    if (kind_of(s.op).no_band != nullptr) return form_of(s.op);
    if (s.op == MaskOp::all || s.op == MaskOp::both) continue;
    if (s.op == MaskOp::causal) {
      band.ahead = min_of(band.ahead, 0), band.whole = false;
    } else if (s.op == MaskOp::window) {
      band.back = min_of(band.back, s.a), band.ahead = min_of(band.ahead, s.b), band.whole = false;
    } else if (s.op == MaskOp::prefix) {
      band.keys = min_of(band.keys, max_of(s.a, 0));
    } else if (s.op == MaskOp::lengths) {
      band.keys = min_of(band.keys, max_of(mask_terms::length_of(s, {.sequence = b}), 0));
      band.by_length = true;
    } else if (s.op == MaskOp::documents) {
      if (band.documents) return BandForm::two_documents;
      band.documents = &s;
    } else if (s.op == MaskOp::blocks) {
      if (band.blocks) return BandForm::two_blocks;
      band.blocks = &s, band.whole = false;
    } else {  // a band whose ends are not computed here
      return form_of(s.op);
    }
  }
  return BandForm::band;
}
/// The same as yes or no; `why` then says which part.
inline bool band_of(const MaskSet& mask, Index b, Band& band, const char*& why) {
  const BandForm form = read_band(mask, b, band);
  why = words_of(form);
  return form == BandForm::band;
}

/// Tiles of `width` keys that queries at positions [first, last] touch: [begin, end), of which [full_begin,
/// full_end) are open to each of them. Never empty: where no key is open, one closed tile stands for all.
struct KeyTiles {
  int begin, end, full_begin, full_end;
};
HW_FN constexpr KeyTiles key_tiles(int first, int last, int back, int ahead, int keys, int width) {
  const auto low = [](int a, int b) { return a < b ? a : b; };
  const auto high = [](int a, int b) { return a < b ? b : a; };
  KeyTiles t{};
  const int open_end = low(keys, last + ahead + 1), open_begin = high(first - back, 0);
  t.end = high((high(open_end, 0) + width - 1) / width, 1);
  t.begin = low(open_begin / width, t.end - 1);
  const int full_keys = low(keys, high(first + ahead + 1, 0));
  t.full_end = low(full_keys / width, t.end);
  t.full_begin = high((high(last - back, 0) + width - 1) / width, t.begin);
  if (t.full_end < t.full_begin) t.full_end = t.full_begin = t.end;
  return t;
}

/// The other way round, for gradients: tiles of `rows` queries that `width` keys from `first` on meet,
/// [begin, end), maybe none.
struct QueryTiles {
  int begin, end;
};
struct KeyTile {
  int first, width, kv_tokens;
};
/// Queries of a sequence and how far each sees.
struct QueryBand {
  int q_tokens, q_start, back, ahead;
};
HW_FN constexpr QueryTiles query_tiles(const KeyTile& keys, const QueryBand& band, int rows) {
  const auto [first, width, kv_tokens] = keys;
  const auto [q_tokens, q_start, back, ahead] = band;
  const int last = (first + width < kv_tokens ? first + width : kv_tokens) - 1;
  int begin = first - ahead - q_start, end = last + back - q_start + 1;
  begin = begin < 0 ? 0 : begin, end = end > q_tokens ? q_tokens : end;
  if (first > last || begin >= end) return {0, 0};
  return {begin / rows, (end + rows - 1) / rows};
}
/// The first tile of keys that meets queries from position `first` on: where tiles add to dq in order, the
/// one whose turn is first. Those behind it follow without a gap.
HW_FN constexpr int first_adder(int first, int back, int width) {
  return first - back > 0 ? (first - back) / width : 0;
}

/// Splits of the keys, counted from key 0: short ones first, so that a few short sequences spread over the
/// device, then long ones, whose parts cost less. Their bounds and the keys of a tile are constants, so that
/// neither the batch nor the device moves a rounding step.
inline constexpr int kShortSplits = 4, kShortSplit = 1024, kLongSplit = 2048;
template <class I>
HW_FN constexpr I split_begin(I split) {
  return split < kShortSplits ? split * kShortSplit
                              : kShortSplits * kShortSplit + (split - kShortSplits) * kLongSplit;
}
template <class I>
HW_FN constexpr I split_of(I key) {
  constexpr int kBound = kShortSplits * kShortSplit;
  return key < kBound ? key / kShortSplit : kShortSplits + (key - kBound) / kLongSplit;
}

}  // namespace headwise::cuda
