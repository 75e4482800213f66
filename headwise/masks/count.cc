// Counting what a mask opens: pairs, and the tiles a kernel visits.
// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "headwise/masks/mask.h"

namespace headwise {
namespace {

constexpr Index kRowKeys = 256;

/// Whether strides make the box mixed and its answers follow from q - k: a term that looks at more than that
/// is all open or all closed in it.
bool goes_by_distance(const MaskView& view, const MaskBox& box, const MaskSubject& at) {
  bool strides = false;
  for (int i = 0; i < view.count; ++i) {
    const MaskStep& s = view.steps[i];
    if (kind_of(s.op).by_distance) {
      strides = strides || mask_terms::tile(s, box, at) == TileKind::mixed;
    } else if (mask_terms::is_interval(s.op)) {
      if (!mask_terms::interval_full(s, box, at) &&
          !mask_terms::Intervals::of(s, i, box, at).empty(view.steps, box.q0, box.q1))
        return false;
    } else if (mask_terms::tile(s, box, at) == TileKind::mixed) {
      return false;
    }
  }
  return strides;
}

/// One question for each diagonal instead of each pair.
Index open_by_distance(const MaskView& view, const MaskBox& box, const MaskSubject& at) {
  Index open = 0;
  const auto diagonal = [&](Index q, Index k) {
    if (view.may_attend(q, k, at)) open += min_of(box.q1 - q, box.k1 - k);
  };
  for (Index k = box.k0; k < box.k1; ++k) diagonal(box.q0, k);
  for (Index q = box.q0 + 1; q < box.q1; ++q) diagonal(q, box.k0);
  return open;
}

/// Halves the longer side until a region is full, empty, counted by distance or small enough to read row by
/// row.
Index open_in(const MaskView& view, const MaskBox& box, const MaskSubject& at) {
  const Index queries = box.q1 - box.q0, keys = box.k1 - box.k0;
  const TileKind kind = view.tile(box.q0, box.q1, box.k0, box.k1, at);
  if (kind == TileKind::empty) return 0;
  if (kind == TileKind::full) return queries * keys;
  if ((keys > kRowKeys || queries > 16) && goes_by_distance(view, box, at))
    return open_by_distance(view, box, at);
  MaskBox first = box, second = box;
  if (keys > kRowKeys && keys >= queries) {
    first.k1 = second.k0 = box.k0 + keys / 2;
    return open_in(view, first, at) + open_in(view, second, at);
  }
  if (queries > 16) {
    first.q1 = second.q0 = box.q0 + queries / 2;
    return open_in(view, first, at) + open_in(view, second, at);
  }
  Index open = 0;
  for (Index q = box.q0; q < box.q1; ++q) {
    std::uint64_t words[kRowKeys / 64];
    const auto n = static_cast<int>(ceil_div(keys, 64));
    view.row_bits(q, box.k0, n, words, at);
    for (int w = 0; w < n; ++w)
      open += std::popcount(words[w] & mask_terms::bits_between(0, keys - Index{64} * w));
  }
  return open;
}

}  // namespace

Index open_pairs(const Mask& mask, Index q_tokens, Index kv_tokens, const MaskSubject& at) {
  require(q_tokens >= 0 && kv_tokens >= 0 && (Checked(q_tokens) * Checked(kv_tokens)).ok,
          ErrorKind::bad_shape, "mask", "open_pairs of ", q_tokens, " queries and ", kv_tokens,
          " keys; both must be 0 or more and their product an Index");
  if (q_tokens == 0 || kv_tokens == 0) return 0;
  require((Checked(at.q_start) + Checked(q_tokens)).ok, ErrorKind::bad_argument, "mask",
          "open_pairs from query ", at.q_start, " runs past the last position an Index can hold");
  const MaskView* view = mask.view_of(at.head);
  if (!view) return q_tokens * kv_tokens;
  return open_in(*view, {at.q_start, at.q_start + q_tokens, 0, kv_tokens}, at);
}

Index count_tiles(const Mask& mask, const TileGrid& grid, const MaskSubject& at) {
  require(grid.q_tokens >= 0 && grid.kv_tokens >= 0 && grid.q_tile >= 1 && grid.kv_tile >= 1,
          ErrorKind::bad_shape, "mask", "count_tiles of ", grid.q_tokens, " queries by ", grid.q_tile,
          " and ", grid.kv_tokens, " keys by ", grid.kv_tile,
          "; tokens must be 0 or more and tiles 1 or more");
  Index visited = 0;
  for (Index i = 0; i < grid.q_tokens; i += min_of(grid.q_tile, grid.q_tokens - i))
    for (Index k = 0; k < grid.kv_tokens; k += min_of(grid.kv_tile, grid.kv_tokens - k)) {
      const Index q = at.q_start + i;
      visited += mask.tile(q, q + min_of(grid.q_tile, grid.q_tokens - i), k,
                           k + min_of(grid.kv_tile, grid.kv_tokens - k), at) != TileKind::empty;
    }
  return visited;
}

}  // namespace headwise
