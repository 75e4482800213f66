// The terms of a mask: the plain data of each, and exact answers about one pair and about a whole tile.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <iterator>

#include "headwise/base/index.h"

namespace headwise {

enum class TileKind : std::uint8_t { empty, full, mixed };

/// Terms push one answer; `both` and `either` join the last two.
enum class MaskOp : std::uint8_t {
  all,
  causal,
  window,
  prefix,
  lengths,
  documents,
  blocks,
  dense,
  strided,
  global,
  both,
  either
};

/// How the text of a term goes on behind its name, and so which numbers of a MaskStep it has.
enum class MaskForm : std::uint8_t {
  bare,     // causal
  one,      // prefix(a)
  two,      // window(a, b)
  list,     // lengths(n numbers in offsets)
  offsets,  // documents(n + 1 numbers in offsets)
  blocks,   // blocks(a, b; n + 1 offsets; columns)
  dense,    // bits, without a text that can be read
  join      // & and |
};

/// What the rooms above ask of a kind without a formula of its own.
struct MaskKind {
  MaskOp op;
  const char* name;
  MaskForm form;
  const char* help = nullptr;     // of a builder by numbers
  const char* arguments[2] = {};  // of that builder
  const char* method = nullptr;   // its name in Python; null: name
  Index second = -1;              // two: what b is where it is left out; -1: it may not be
  bool by_distance = false;       // its answers follow from q - k
  const char* no_band = nullptr;  // why it is no single band of keys; null: it is one, or blocks, or joins
};
inline constexpr MaskKind kMaskKinds[] = {
    {.op = MaskOp::all,
     .name = "all",
     .form = MaskForm::bare,
     .help = "Everything may attend.",
     .by_distance = true},
    {.op = MaskOp::causal,
     .name = "causal",
     .form = MaskForm::bare,
     .help = "Keys at or before the query's position.",
     .by_distance = true},
    {.op = MaskOp::window,
     .name = "window",
     .form = MaskForm::two,
     .help = "Keys from q - back to q + ahead.",
     .arguments = {"back", "ahead"},
     .by_distance = true},
    {.op = MaskOp::prefix,
     .name = "prefix",
     .form = MaskForm::one,
     .help = "The first `keys` keys, for every query.",
     .arguments = {"keys"}},
    {.op = MaskOp::lengths,
     .name = "lengths",
     .form = MaskForm::list,
     .help = "Sequence b may look at keys 0..lengths[b]-1.",
     .arguments = {"lengths"}},
    {.op = MaskOp::documents,
     .name = "documents",
     .form = MaskForm::offsets,
     .help = "Tokens offsets[i]..offsets[i+1]-1 form document i; a query sees its own document.",
     .arguments = {"offsets"}},
    {.op = MaskOp::blocks, .name = "blocks", .form = MaskForm::blocks},
    {.op = MaskOp::dense,
     .name = "dense",
     .form = MaskForm::dense,
     .no_band = "a dense mask is no single band of keys"},
    {.op = MaskOp::strided,
     .name = "strided",
     .form = MaskForm::two,
     .help = "Keys with |q - k| % stride < width.",
     .arguments = {"stride", "width"},
     .second = 1,
     .by_distance = true,
     .no_band = "strided(...) is no single band of keys"},
    {.op = MaskOp::global,
     .name = "global",
     .form = MaskForm::list,
     .help = "Pairs in which the query or the key is one of `positions` (`global` is a word of Python).",
     .arguments = {"positions"},
     .method = "global_tokens",
     .no_band = "global(...) is no single band of keys"},
    {.op = MaskOp::both, .name = "&", .form = MaskForm::join, .by_distance = true},
    {.op = MaskOp::either,
     .name = "|",
     .form = MaskForm::join,
     .by_distance = true,
     .no_band = "an | of masks is no single band of keys"},
};
constexpr const MaskKind& kind_of(MaskOp op) { return kMaskKinds[static_cast<std::size_t>(op)]; }
static_assert(
    [] {
      for (std::size_t i = 0; i < std::size(kMaskKinds); ++i)
        if (kMaskKinds[i].op != static_cast<MaskOp>(i)) return false;
      return std::size(kMaskKinds) == static_cast<std::size_t>(MaskOp::either) + 1;
    }(),
    "every kind stands at its place in the list");

/// One step of the program. Positions are absolute (query q_start + i, key j); only `dense` goes by index.
struct MaskStep {
  MaskOp op = MaskOp::all;
  Index a = 0,
        b = 0;  // window: back, ahead; prefix: keys; blocks: q and kv block sizes; strided: stride, width
  const Index* offsets =
      nullptr;  // lengths [n]; documents [n + 1]; blocks: CSR rows [n + 1]; global: ascending positions [n]
  const Index* columns = nullptr;  // blocks: ascending kv blocks of each row
  Index n = 0;
  const std::uint64_t* bits = nullptr;  // dense: one bit a pair, rows padded to whole words, padding 0
  Index words[3] = {};  // dense: words from batch to batch, head to head, query to query; 0 repeats
  Index size[4] = {};   // dense: batch, heads, q, kv as given; 1 repeats
};

/// How many numbers of `offsets` a term has.
constexpr Index offset_count(const MaskStep& s) {
  switch (kind_of(s.op).form) {
    case MaskForm::list: return s.n;
    case MaskForm::offsets:
    case MaskForm::blocks: return s.n + 1;
    case MaskForm::bare:
    case MaskForm::one:
    case MaskForm::two:
    case MaskForm::dense:
    case MaskForm::join: break;
  }
  return 0;
}

/// The sequence and head a question is about.
struct MaskSubject {
  Index sequence = 0, head = 0, q_start = 0;
};

/// Queries [q0, q1) x keys [k0, k1), by position.
struct MaskBox {
  Index q0, q1, k0, k1;
};

namespace mask_terms {

/// |a - b|, exact for every pair of positions: masks compare distances and never form q + ahead, which could
/// wrap.
HW_FN constexpr std::uint64_t distance(Index a, Index b) {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  return a < b ? y - x : x - y;
}

/// How many numbers of an ascending list are < x.
HW_FN constexpr Index count_below(const Index* list, Index n, Index x) {
  Index first = 0;
  while (n > 0) {
    const Index half = n / 2;
    const bool right = list[first + half] < x;
    first += right ? half + 1 : 0;
    n = right ? n - half - 1 : half;
  }
  return first;
}
HW_FN constexpr Index count_up_to(const Index* list, Index n, Index x) {
  return x == std::numeric_limits<Index>::max() ? n : count_below(list, n, x + 1);
}
HW_FN constexpr bool contains(const Index* list, Index n, Index x) {
  const Index i = count_below(list, n, x);
  return i < n && list[i] == x;
}

/// The word of a dense mask that holds key k of query index i; its bit is k % 64.
HW_FN constexpr Index dense_word(const Index (&words)[3], Index batch, Index head, Index i, Index k) {
  return batch * words[0] + head * words[1] + i * words[2] + k / 64;
}
/// First word of the row of query index i, or null when the mask has no such row.
HW_FN constexpr const std::uint64_t* dense_row(const MaskStep& s, Index i, const MaskSubject& at) {
  const Index index[3] = {at.sequence, at.head, i};
  for (int axis = 0; axis < 3; ++axis)
    if (s.size[axis] != 1 && (index[axis] < 0 || index[axis] >= s.size[axis])) return nullptr;
  return s.bits + dense_word(s.words, at.sequence, at.head, s.size[2] == 1 ? 0 : i, 0);
}

/// The document of position p as [first, end); empty when p is in none.
struct Span {
  Index first = 0, end = 0;
};
HW_FN constexpr Span document_of(const MaskStep& s, Index p) {
  const Index i = count_up_to(s.offsets, s.n + 1, p);
  return i == 0 || i > s.n ? Span{} : Span{s.offsets[i - 1], s.offsets[i]};
}
/// Columns of the block row of query q; a row past the last one has none.
HW_FN constexpr Span block_row(const MaskStep& s, Index q) {
  if (q < 0 || q / s.a >= s.n) return {};
  return {s.offsets[q / s.a], s.offsets[q / s.a + 1]};
}
HW_FN constexpr Index length_of(const MaskStep& s, const MaskSubject& at) {
  return at.sequence >= 0 && at.sequence < s.n ? s.offsets[at.sequence] : 0;
}

/// The definition of every term.
HW_FN constexpr bool may_attend(const MaskStep& s, Index q, Index k, const MaskSubject& at) {
  switch (s.op) {
    case MaskOp::all: return true;
    case MaskOp::causal: return k <= q;
    case MaskOp::window: return distance(q, k) <= static_cast<std::uint64_t>(k <= q ? s.a : s.b);
    case MaskOp::prefix: return k < s.a;
    case MaskOp::lengths: return k < length_of(s, at);
    case MaskOp::documents: {
      const Span d = document_of(s, q);
      return d.first <= k && k < d.end;
    }
    case MaskOp::blocks: {
      const Span row = block_row(s, q);
      return contains(s.columns + row.first, row.end - row.first, k / s.b);
    }
    case MaskOp::dense: {
      const std::uint64_t* row = dense_row(s, q - at.q_start, at);
      if (s.size[3] == 1) k = 0;
      return row && k < s.size[3] && (row[k / 64] >> (k % 64) & 1) != 0;
    }
    case MaskOp::strided:
      return distance(q, k) % static_cast<std::uint64_t>(s.a) < static_cast<std::uint64_t>(s.b);
    case MaskOp::global: return contains(s.offsets, s.n, q) || contains(s.offsets, s.n, k);
    case MaskOp::both:
    case MaskOp::either: break;
  }
  return false;
}

/// For one query these terms open one run of keys whose ends never move back as the query moves on.
HW_FN constexpr bool is_interval(MaskOp op) {
  return op == MaskOp::causal || op == MaskOp::window || op == MaskOp::prefix || op == MaskOp::lengths ||
         op == MaskOp::documents;
}

/// Exact for interval terms: the two corners farthest from the diagonal decide, since every other pair lies
/// between them.
HW_FN constexpr bool interval_full(const MaskStep& s, const MaskBox& box, const MaskSubject& at) {
  return may_attend(s, box.q0, box.k1 - 1, at) && may_attend(s, box.q1 - 1, box.k0, at);
}

/// An `&` of interval terms over a box: the keys they leave, the band around the diagonal, documents by step
/// number.
struct Intervals {
  Index k0, k1;
  std::uint64_t back, ahead;
  std::uint32_t documents;

  HW_FN static constexpr Intervals open(const MaskBox& box) {
    return {box.k0, box.k1, ~std::uint64_t{0}, ~std::uint64_t{0}, 0};
  }
  HW_FN constexpr void join(const Intervals& o) {
    k0 = max_of(k0, o.k0), k1 = min_of(k1, o.k1);
    back = back < o.back ? back : o.back, ahead = ahead < o.ahead ? ahead : o.ahead;
    documents |= o.documents;
  }
  HW_FN static constexpr Intervals of(const MaskStep& s, int number, const MaskBox& box,
                                      const MaskSubject& at) {
    Intervals r = open(box);
    switch (s.op) {
      case MaskOp::causal: r.ahead = 0; break;
      case MaskOp::window:
        r.back = static_cast<std::uint64_t>(s.a), r.ahead = static_cast<std::uint64_t>(s.b);
        break;
      case MaskOp::prefix: r.k1 = min_of(box.k1, s.a); break;
      case MaskOp::lengths: r.k1 = min_of(box.k1, length_of(s, at)); break;
      case MaskOp::documents:
        r.k0 = max_of(box.k0, s.offsets[0]), r.k1 = min_of(box.k1, s.offsets[s.n]);
        r.documents = std::uint32_t{1} << number;
        break;
      case MaskOp::all:
      case MaskOp::blocks:
      case MaskOp::dense:
      case MaskOp::strided:
      case MaskOp::global:
      case MaskOp::both:
      case MaskOp::either: break;
    }
    return r;
  }
  /// Exact: when any pair is open, so is the one nearest to the diagonal, because a band and a document that
  /// hold a pair hold everything between its two positions.
  HW_FN constexpr bool empty(const MaskStep* steps, Index q0, Index q1) const {
    if (k0 >= k1) return true;
    Index q = max_of(q0, k0), k = q;
    if (q0 >= k1) q = q0, k = k1 - 1;
    if (k0 >= q1) q = q1 - 1, k = k0;
    if (distance(q, k) > (k <= q ? back : ahead)) return true;
    if (documents == 0 || q == k) return false;
    for (int i = 0; documents >> i; ++i)
      if ((documents >> i & 1) && !may_attend(steps[i], q, k, {})) return true;
    return false;
  }
};

/// Bits [first, end) of a word; outside 0..64 is cut off.
HW_FN constexpr std::uint64_t bits_between(Index first, Index end) {
  if (first < 0) first = 0;
  if (end > 64) end = 64;
  if (first >= end) return 0;
  return (~std::uint64_t{0} >> (64 - (end - first))) << first;
}

HW_FN constexpr TileKind kind_of(bool some_open, bool some_closed) {
  return !some_open ? TileKind::empty : some_closed ? TileKind::mixed : TileKind::full;
}

HW_FN constexpr TileKind blocks_tile(const MaskStep& s, const MaskBox& box) {
  bool open = false, closed = box.q0 < 0;
  const Index c0 = box.k0 / s.b, c1 = (box.k1 - 1) / s.b, q0 = max_of(box.q0, 0);
  if (q0 >= box.q1) return TileKind::empty;
  for (Index r = q0 / s.a; r <= (box.q1 - 1) / s.a && !(open && closed); ++r) {
    if (r >= s.n) {
      closed = true;
      break;
    }
    const Index* row = s.columns + s.offsets[r];
    const Index n = s.offsets[r + 1] - s.offsets[r], i = count_below(row, n, c0);
    if (i < n && row[i] <= c1) open = true;
    if (!(c1 - c0 < n - i && row[i + c1 - c0] == c1)) closed = true;
  }
  return kind_of(open, closed);
}

HW_FN constexpr TileKind dense_tile(const MaskStep& s, MaskBox box, const MaskSubject& at) {
  bool open = false, closed = false;
  if (s.size[3] == 1) box.k0 = 0, box.k1 = 1;
  if (box.k1 > s.size[3]) closed = true, box.k1 = s.size[3];
  Index i0 = box.q0 - at.q_start, i1 = box.q1 - at.q_start;
  if (s.size[2] == 1) i0 = 0, i1 = 1;
  if (i0 < 0 || i1 > s.size[2]) closed = true, i0 = max_of(i0, 0), i1 = min_of(i1, s.size[2]);
  if (box.k0 >= box.k1) return TileKind::empty;
  const Index w0 = box.k0 / 64, w1 = (box.k1 - 1) / 64;
  const std::uint64_t head = bits_between(box.k0 - 64 * w0, box.k1 - 64 * w0);
  const std::uint64_t tail = bits_between(box.k0 - 64 * w1, box.k1 - 64 * w1);
  for (Index i = i0; i < i1 && !(open && closed); ++i) {
    const std::uint64_t* row = dense_row(s, i, at);
    if (!row) return TileKind::empty;
    std::uint64_t any = row[w0] & head, missing = ~row[w0] & head;
    for (Index w = w0 + 1; w < w1; ++w) any |= row[w], missing |= ~row[w];
    any |= row[w1] & tail, missing |= ~row[w1] & tail;
    if (any) open = true;
    if (missing) closed = true;
  }
  return kind_of(open, closed);
}

/// The distances in a box are all numbers from the nearest to the farthest pair, so the residues follow from
/// two of them.
HW_FN constexpr TileKind strided_tile(const MaskStep& s, const MaskBox& box) {
  const auto stride = static_cast<std::uint64_t>(s.a), width = static_cast<std::uint64_t>(s.b);
  const std::uint64_t far_left = distance(box.q1 - 1, box.k0), far_right = distance(box.q0, box.k1 - 1);
  const std::uint64_t largest = far_left < far_right ? far_right : far_left;
  std::uint64_t least = 0;
  if (box.q0 >= box.k1) least = distance(box.q0, box.k1 - 1);
  if (box.k0 >= box.q1) least = distance(box.q1 - 1, box.k0);
  const std::uint64_t rest = least % stride;
  const bool open = rest < width || largest - least >= stride - rest;
  return kind_of(open, !(width >= stride || (rest < width && largest - least < width - rest)));
}

HW_FN constexpr TileKind global_tile(const MaskStep& s, const MaskBox& box) {
  const Index queries = count_below(s.offsets, s.n, box.q1) - count_below(s.offsets, s.n, box.q0);
  const Index keys = count_below(s.offsets, s.n, box.k1) - count_below(s.offsets, s.n, box.k0);
  const bool full = distance(box.q0, box.q1) == static_cast<std::uint64_t>(queries) ||
                    distance(box.k0, box.k1) == static_cast<std::uint64_t>(keys);
  return kind_of(queries + keys > 0, !full);
}

/// Exact for terms that are not intervals; box not empty.
HW_FN constexpr TileKind tile(const MaskStep& s, const MaskBox& box, const MaskSubject& at) {
  switch (s.op) {
    case MaskOp::blocks: return blocks_tile(s, box);
    case MaskOp::dense: return dense_tile(s, box, at);
    case MaskOp::strided: return strided_tile(s, box);
    case MaskOp::global: return global_tile(s, box);
    case MaskOp::all:
    case MaskOp::causal:
    case MaskOp::window:
    case MaskOp::prefix:
    case MaskOp::lengths:
    case MaskOp::documents:
    case MaskOp::both:
    case MaskOp::either: break;
  }
  return TileKind::full;
}

}  // namespace mask_terms
}  // namespace headwise
