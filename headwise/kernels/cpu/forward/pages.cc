// Rows of keys and values in pages, a granule at a time.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "headwise/kernels/cpu/forward/panel.h"

namespace headwise::cpu::forward {

PagedPool key_pool(const OnlineRun& run, Index head) {
  return {run.args.k, run.args.k_scale, run.problem.heads.k, head};
}

namespace {

/// Pages first .. last of a sequence are there and follow each other in the pool too, so their rows keep one
/// step.
bool pages_follow(const OnlineRun& run, const SequenceLocation& at, const PagedPool& pool, Index first,
                  Index last) {
  const Index size = run.problem.page_size, page = run.args.page_table.page(at.sequence, first);
  if (page < 0) return false;
  if (last == first) return true;
  if (pool.numbers.step[0] != size * pool.numbers.step[1]) return false;
  if (pool.scales.given() && pool.scales.step[0] != size * pool.scales.step[1]) return false;
  for (Index i = first + 1; i <= last; ++i)
    if (run.args.page_table.page(at.sequence, i) != page + i - first) return false;
  return true;
}

/// `n` rows of one page, side by side at row `i` of a room.
void copy_rows(const Rows& from, Index dim, Index item, Index n, Index i, const PagedRoom& to) {
  const auto* row = static_cast<const std::byte*>(from.data);
  std::byte* at = to.numbers + i * dim * item;
  for (Index r = 0; r < n; ++r, row += from.row_step * item, at += dim * item) {
    if (from.scale) to.scales[i + r] = from.scale[r * from.scale_step];
    if (from.column_step == 1) {
      std::memcpy(at, row, static_cast<std::size_t>(dim * item));
    } else {
      for (Index c = 0; c < dim; ++c)
        std::memcpy(at + c * item, row + c * from.column_step * item, static_cast<std::size_t>(item));
    }
  }
}

/// `n` rows of a page that is gone.
void clear_rows(const PagedPool& pool, Index n, Index i, const PagedRoom& to) {
  const Index bytes = pool.layout.dim * size_of(pool.numbers.dtype);
  std::memset(to.numbers + i * bytes, 0, static_cast<std::size_t>(n * bytes));
  if (pool.scales.given()) std::fill_n(to.scales + i, n, 0.0f);
}

}  // namespace

Rows paged_rows(const OnlineRun& run, const SequenceLocation& at, const PagedPool& pool, const KeyRange& keys,
                const PagedRoom* to) {
  const HeadLayout& layout = pool.layout;
  const Index size = run.problem.page_size, item = size_of(pool.numbers.dtype);
  const Index key0 = keys.key0, key1 = keys.key0 + keys.count;
  const auto page_of = [&](Index key) { return run.args.page_table.page(at.sequence, key / size); };
  const auto from = [&](Index page, Index key) {
    return with_scales(rows_of(pool.numbers, layout, pool.head, page, key % size), pool.scales, layout,
                       pool.head, page, key % size);
  };
  Rows rows = from(std::max<Index>(page_of(key0), 0), key0);
  if (!pages_follow(run, at, pool, key0 / size, (key1 - 1) / size)) {
    if (!to) return {};
    for (Index key = key0, end = key0; key < key1; key = end) {
      end = std::min(key1, (key / size + 1) * size);
      if (page_of(key) < 0)
        clear_rows(pool, end - key, key - key0, *to);
      else
        copy_rows(from(page_of(key), key), layout.dim, item, end - key, key - key0, *to);
    }
    rows.data = to->numbers, rows.row_step = layout.dim, rows.column_step = 1;
    if (rows.scale) rows.scale = to->scales, rows.scale_step = 1;
  }
  const auto back = [&](const void* first, Index bytes) {  // to row 0, which need not be there
    return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(first) -
                                         static_cast<std::uintptr_t>(key0 * bytes));
  };
  rows.data = back(rows.data, rows.row_step * item);
  if (rows.scale) rows.scale = static_cast<const float*>(back(rows.scale, rows.scale_step * 4));
  return rows;
}

KvHeadRows granule_rows(const OnlineRun& run, const SequenceLocation& at, Index head, const KeyRange& keys,
                        const Scratch& s) {
  const PagedPool values{run.args.v, run.args.v_scale, run.problem.heads.v, head};
  return {paged_rows(run, at, key_pool(run, head), keys, &s.paged_keys),
          paged_rows(run, at, values, keys, &s.paged_values)};
}

}  // namespace headwise::cpu::forward
