// Rows of a mask as words of 64 bits: every term writes whole words, & and | are bitwise.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/spec/mask.h"

namespace headwise {
namespace {

using mask_terms::bits_between;
using mask_terms::Span;

// Words worked on at once: one row of a CPU tile has 256 keys.
constexpr int kWords = 4;

struct Row {
  Index q, k0;  // keys k0 .. k0 + 64 * words
  int words;
};

Index add_capped(Index a, Index b) {
  Index sum;
  if (__builtin_add_overflow(a, b, &sum))
    return b < 0 ? std::numeric_limits<Index>::min() : std::numeric_limits<Index>::max();
  return sum;
}

/// Opens keys [first, end).
void add_run(const Row& row, Index first, Index end, std::uint64_t* open) {
  const Index keys = 64 * row.words, last = add_capped(row.k0, keys);
  if (first >= last || end <= row.k0 || first >= end) return;
  const Index from = max_of(first, row.k0) - row.k0, to = min_of(end, last) - row.k0;
  for (Index w = from / 64; w <= (to - 1) / 64; ++w) open[w] |= bits_between(from - 64 * w, to - 64 * w);
}
void only_run(const Row& row, Index first, Index end, std::uint64_t* open) {
  const Index last = add_capped(row.k0, 64 * row.words);
  const Index from = min_of(max_of(first, row.k0), last) - row.k0,
              to = min_of(max_of(end, row.k0), last) - row.k0;
  for (int w = 0; w < row.words; ++w) open[w] = bits_between(from - 64 * w, to - 64 * w);
}

void dense_row(const MaskStep& s, const Row& row, const MaskSubject& at, std::uint64_t* open) {
  const std::uint64_t* bits = mask_terms::dense_row(s, row.q - at.q_start, at);
  if (s.size[3] == 1) {
    for (int w = 0; w < row.words; ++w) open[w] = bits && (bits[0] & 1) ? ~std::uint64_t{0} : 0;
    return;
  }
  const Index end = bits ? ceil_div(s.size[3], 64) : 0, shift = row.k0 % 64;
  for (int w = 0; w < row.words; ++w) {
    const Index at_word = row.k0 / 64 + w;
    const std::uint64_t low = at_word < end ? bits[at_word] : 0;
    const std::uint64_t high = shift && at_word + 1 < end ? bits[at_word + 1] : 0;
    open[w] = low >> shift | (shift ? high << (64 - shift) : 0);
  }
}

/// Bits j with (j + phase) % stride < width; phase and width <= stride.
std::uint64_t comb(std::uint64_t stride, std::uint64_t width, std::uint64_t phase) {
  const auto cut = [](std::uint64_t x) { return static_cast<Index>(x < 64 ? x : 64); };
  if (stride >= 64) {
    const std::uint64_t wrap = stride - phase;
    return bits_between(0, phase < width ? cut(width - phase) : 0) |
           bits_between(cut(wrap), cut(wrap) + cut(width));
  }
  std::uint64_t teeth = bits_between(0, cut(width));
  for (std::uint64_t reach = stride; reach < 64; reach *= 2) teeth |= teeth << reach;
  const std::uint64_t period = 64 - 64 % stride;
  return teeth >> phase | (period - phase < 64 ? teeth << (period - phase) : 0);
}

void strided_row(const MaskStep& s, const Row& row, std::uint64_t* open) {
  const auto stride = static_cast<std::uint64_t>(s.a), width = static_cast<std::uint64_t>(s.b);
  for (int w = 0; w < row.words; ++w) {
    const Index first = add_capped(row.k0, 64 * w);
    // Keys below q count down to it, keys from q on count up: two combs, cut at q.
    const Index here = first >= row.q ? 0 : mask_terms::distance(row.q, first) < 64 ? row.q - first : 64;
    std::uint64_t bits = 0;
    if (here > 0) {
      const std::uint64_t rest = mask_terms::distance(row.q, first) % stride;
      bits = comb(stride, width, rest < width ? width - 1 - rest : stride - (rest - width + 1)) &
             bits_between(0, here);
    }
    if (here < 64) {
      const std::uint64_t gap = mask_terms::distance(row.q, first) % stride;
      const std::uint64_t phase = first >= row.q ? gap : stride - gap;
      bits |= comb(stride, width, phase) & bits_between(here, 64);
    }
    open[w] = bits;
  }
}

void term_row(const MaskStep& s, const Row& row, const MaskSubject& at, std::uint64_t* open) {
  switch (s.op) {
    case MaskOp::causal: return only_run(row, 0, add_capped(row.q, 1), open);
    case MaskOp::window:
      return only_run(row, add_capped(row.q, -s.a), add_capped(add_capped(row.q, s.b), 1), open);
    case MaskOp::prefix: return only_run(row, 0, s.a, open);
    case MaskOp::lengths: return only_run(row, 0, mask_terms::length_of(s, at), open);
    case MaskOp::documents: {
      const Span d = mask_terms::document_of(s, row.q);
      return only_run(row, d.first, d.end, open);
    }
    case MaskOp::dense: return dense_row(s, row, at, open);
    case MaskOp::strided: return strided_row(s, row, open);
    case MaskOp::blocks: {
      only_run(row, 0, 0, open);
      const Span r = mask_terms::block_row(s, row.q);
      const Index last = add_capped(row.k0, 64 * row.words - 1) / s.b;
      for (Index i = r.first + mask_terms::count_below(s.columns + r.first, r.end - r.first, row.k0 / s.b);
           i < r.end && s.columns[i] <= last; ++i)
        add_run(row, s.columns[i] * s.b, s.columns[i] * s.b + s.b, open);
      return;
    }
    case MaskOp::global: {
      const bool here = mask_terms::contains(s.offsets, s.n, row.q);
      for (int w = 0; w < row.words; ++w) open[w] = here ? ~std::uint64_t{0} : 0;
      if (here) return;
      for (Index i = mask_terms::count_below(s.offsets, s.n, row.k0); i < s.n; ++i) {
        const Index bit = s.offsets[i] - row.k0;
        if (bit >= 64 * row.words) return;
        open[bit / 64] |= std::uint64_t{1} << (bit % 64);
      }
      return;
    }
    case MaskOp::all:
    case MaskOp::both:
    case MaskOp::either: break;
  }
  for (int w = 0; w < row.words; ++w) open[w] = ~std::uint64_t{0};
}

}  // namespace

void MaskView::row_bits(Index q, Index k0, int words, std::uint64_t* open, const MaskSubject& at) const {
  std::uint64_t stack[kMaxTerms][kWords];
  for (int done = 0; done < words; done += kWords) {
    const Row row{q, add_capped(k0, Index{64} * done), words - done < kWords ? words - done : kWords};
    std::uint64_t* out = open + done;
    if (count == 0) term_row({}, row, at, out);
    int top = -1;
    // The lowest answer is built where it is wanted.
    const auto slot = [&](int level) { return level == 0 ? out : stack[level]; };
    for (int i = 0; i < count; ++i) {
      const MaskStep& s = steps[i];
      if (s.op == MaskOp::both || s.op == MaskOp::either) {
        std::uint64_t* left = slot(--top);
        const std::uint64_t* right = slot(top + 1);
        for (int w = 0; w < row.words; ++w)
          left[w] = s.op == MaskOp::both ? left[w] & right[w] : left[w] | right[w];
      } else {
        term_row(s, row, at, slot(++top));
      }
    }
  }
}

}  // namespace headwise
