// Building masks: each term checked once, its arrays copied, and what must fit when a mask meets a problem.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "headwise/masks/mask.h"

namespace headwise {
namespace {

constexpr auto kBad = ErrorKind::bad_argument;

/// Moves the addresses of a view from one owner's arrays to another's.
void rebind(MaskView& view, const Index* numbers_before, const Index* numbers,
            const std::uint64_t* bits_before, const std::uint64_t* bits) {
  for (int i = 0; i < view.count; ++i) {
    MaskStep& s = view.steps[i];
    if (s.offsets) s.offsets = numbers + (s.offsets - numbers_before);
    if (s.columns) s.columns = numbers + (s.columns - numbers_before);
    if (s.bits) s.bits = bits + (s.bits - bits_before);
  }
}

void check_term(const MaskStep& s, Index batch, Index heads, Index q_tokens, Index kv_tokens) {
  if (s.op == MaskOp::lengths)
    require(s.n == batch, ErrorKind::bad_shape, "mask", "lengths are for ", s.n,
            " sequences but the batch has ", batch, "; give one length for each sequence");
  if (s.op != MaskOp::dense) return;
  const Index need[4] = {batch, heads, q_tokens, kv_tokens};
  bool fits = true;
  for (int axis = 0; axis < 4; ++axis) fits = fits && (s.size[axis] == 1 || s.size[axis] == need[axis]);
  require(fits, ErrorKind::bad_shape, "mask", "dense is [", s.size[0], ' ', s.size[1], ' ', s.size[2], ' ',
          s.size[3], "] but the problem is [", batch, ' ', heads, ' ', q_tokens, ' ', kv_tokens,
          "] ([batch heads q kv]); every size must be equal or 1");
}

}  // namespace

Mask::Mask(const Mask& other) { views_ = adopt(other); }

Mask& Mask::operator=(const Mask& other) {
  Mask copy(other);
  return *this = std::move(copy);
}

std::vector<MaskView> Mask::adopt(const Mask& from) {
  std::vector<Index> numbers;
  std::vector<std::uint64_t> bits;
  numbers.reserve(numbers_.size() + from.numbers_.size());
  bits.reserve(bits_.size() + from.bits_.size());
  const auto append = [&](const Mask& m, std::vector<MaskView>& views) {
    for (MaskView& view : views)
      rebind(view, m.numbers_.data(), numbers.data() + numbers.size(), m.bits_.data(),
             bits.data() + bits.size());
    numbers.insert(numbers.end(), m.numbers_.begin(), m.numbers_.end());
    bits.insert(bits.end(), m.bits_.begin(), m.bits_.end());
  };
  std::vector<MaskView> views = from.views_;
  append(*this, views_);
  append(from, views);
  numbers_.swap(numbers);
  bits_.swap(bits);
  return views;
}

Mask Mask::of(MaskStep step, std::vector<Index> numbers) {
  Mask m;
  m.numbers_ = std::move(numbers);
  if (!m.numbers_.empty()) step.offsets = m.numbers_.data();
  m.views_ = {MaskView::one(step)};
  return m;
}

Mask Mask::all() { return {}; }
Mask Mask::causal() { return of({.op = MaskOp::causal}); }

Mask Mask::window(Index back, Index ahead) {
  require(
      back >= 0 && ahead >= 0, kBad, "mask", "window(", back, ", ", ahead,
      ") counts keys besides the query itself, both numbers must be 0 or more; causal() has no limit behind");
  return of({.op = MaskOp::window, .a = back, .b = ahead});
}

Mask Mask::sliding(Index width) {
  require(width >= 1, kBad, "mask", "sliding(", width,
          ") counts the query itself, the width must be 1 or more");
  return window(width - 1, 0);
}

Mask Mask::prefix(Index keys) {
  require(keys >= 0, kBad, "mask", "prefix(", keys, ") must be 0 or more keys");
  return of({.op = MaskOp::prefix, .a = keys});
}

Mask Mask::lengths(std::span<const Index> lengths) {
  for (std::size_t b = 0; b < lengths.size(); ++b)
    require(lengths[b] >= 0, kBad, "mask", "lengths[", b, "] is ", lengths[b],
            "; a length must be 0 or more, 0 closes the whole sequence");
  return of({.op = MaskOp::lengths, .n = static_cast<Index>(lengths.size())},
            {lengths.begin(), lengths.end()});
}

Mask Mask::documents(std::span<const Index> offsets) {
  require(!offsets.empty(), kBad, "mask", "documents has no offsets; give n + 1 numbers for n documents");
  require(offsets[0] >= 0, kBad, "mask", "documents starts at ", offsets[0], "; offsets must be 0 or more");
  for (std::size_t i = 1; i < offsets.size(); ++i)
    require(offsets[i - 1] <= offsets[i], kBad, "mask", "documents overlap: offsets[", i, "] is ", offsets[i],
            " after ", offsets[i - 1], "; give the offsets in ascending order");
  return of({.op = MaskOp::documents, .n = static_cast<Index>(offsets.size()) - 1},
            {offsets.begin(), offsets.end()});
}

Mask Mask::blocks(Index q_block, Index kv_block, std::span<const Index> rows,
                  std::span<const Index> columns) {
  require(q_block >= 1 && kv_block >= 1, kBad, "mask", "blocks(", q_block, ", ", kv_block,
          ") must have block sizes of 1 or more");
  require(!rows.empty() && rows[0] == 0, kBad, "mask",
          "blocks rows must begin with 0; give n + 1 offsets into the columns for n block rows");
  const auto count = static_cast<Index>(columns.size());
  for (std::size_t r = 1; r < rows.size(); ++r)
    require(rows[r - 1] <= rows[r], kBad, "mask", "blocks rows[", r, "] is ", rows[r], " after ", rows[r - 1],
            "; row offsets must ascend");
  require(rows.back() == count, kBad, "mask", "blocks rows end at ", rows.back(), " but there are ", count,
          " columns; the last row offset must be their number");
  for (std::size_t r = 1; r < rows.size(); ++r)
    for (auto i = static_cast<std::size_t>(rows[r - 1]); i < static_cast<std::size_t>(rows[r]); ++i) {
      const Index column = columns[i],
                  before = i > static_cast<std::size_t>(rows[r - 1]) ? columns[i - 1] : -1;
      require(column >= 0, kBad, "mask", "blocks columns[", i, "] is ", column,
              "; a kv block must be 0 or more");
      require(column > before, kBad, "mask", "blocks columns[", i, "] is ", column, " after ", before,
              " in row ", r - 1, "; columns must ascend inside a row");
      require(((Checked(column) + Checked(1)) * Checked(kv_block)).ok, kBad, "mask", "blocks columns[", i,
              "] is ", column, ", which with ", kv_block,
              " keys a block lies past the last position an Index can hold");
    }
  std::vector<Index> numbers(rows.begin(), rows.end());
  numbers.insert(numbers.end(), columns.begin(), columns.end());
  Mask m = of({.op = MaskOp::blocks, .a = q_block, .b = kv_block, .n = static_cast<Index>(rows.size()) - 1},
              std::move(numbers));
  m.views_[0].steps[0].columns = m.numbers_.data() + rows.size();
  return m;
}

Mask Mask::strided(Index stride, Index width) {
  require(stride >= 1 && width >= 1 && width <= stride, kBad, "mask", "strided(", stride, ", ", width,
          ") must have a stride of 1 or more and a width from 1 to the stride");
  return of({.op = MaskOp::strided, .a = stride, .b = width});
}

Mask Mask::global(std::span<const Index> positions) {
  for (std::size_t i = 0; i < positions.size(); ++i)
    require(positions[i] >= 0, kBad, "mask", "global[", i, "] is ", positions[i],
            "; positions must be 0 or more");
  std::vector<Index> sorted(positions.begin(), positions.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  const auto n = static_cast<Index>(sorted.size());
  return of({.op = MaskOp::global, .n = n}, std::move(sorted));
}

Mask Mask::of_kind(MaskOp op, std::span<const Index> numbers) {
  const MaskKind& kind = headwise::kind_of(op);
  const std::size_t count = numbers.size(), need = kind.form == MaskForm::two   ? 2
                                                   : kind.form == MaskForm::one ? 1
                                                                                : 0;
  const bool fixed = kind.form == MaskForm::bare || need > 0;
  require(!fixed || count == need, kBad, "mask", kind.name, " got ", count, " numbers but takes ", need);
  switch (op) {
    case MaskOp::all: return all();
    case MaskOp::causal: return causal();
    case MaskOp::window: return window(numbers[0], numbers[1]);
    case MaskOp::prefix: return prefix(numbers[0]);
    case MaskOp::lengths: return lengths(numbers);
    case MaskOp::documents: return documents(numbers);
    case MaskOp::strided: return strided(numbers[0], numbers[1]);
    case MaskOp::global: return global(numbers);
    case MaskOp::blocks:
    case MaskOp::dense:
    case MaskOp::both:
    case MaskOp::either: break;
  }
  throw Error(kBad, text("mask: ", kind.name, " is not made of a list of numbers; use its own builder"));
}

Mask Mask::per_head(std::span<const Mask> masks) {
  require(!masks.empty(), kBad, "mask", "per_head has no masks; give one for each head");
  Mask m;
  for (std::size_t h = 0; h < masks.size(); ++h) {
    require(masks[h].heads() == 1, kBad, "mask", "per_head mask ", h, " is itself one of ", masks[h].heads(),
            " heads; per_head takes plain masks only");
    std::vector<MaskView> view = m.adopt(masks[h]);
    m.views_.push_back(view.empty() ? MaskView::all() : view[0]);
  }
  if (m.views_.size() == 1 && m.views_[0].count == 0) m.views_.clear();
  return m;
}

const MaskView* Mask::view_of(Index head) const {
  if (views_.empty()) return nullptr;
  require(views_.size() == 1 || (head >= 0 && head < heads()), ErrorKind::bad_argument, "mask", "head ", head,
          " was asked but per_head has ", heads(), " masks; ask for one of 0..", heads() - 1);
  return &set().of(head);
}

bool Mask::may_attend(Index q, Index k, const MaskSubject& at) const {
  require(k >= 0, kBad, "mask", "key ", k, " was asked; keys count from 0");
  const MaskView* view = view_of(at.head);
  return !view || view->may_attend(q, k, at);
}

TileKind Mask::tile(Index q0, Index q1, Index k0, Index k1, const MaskSubject& at) const {
  require(q0 < q1 && 0 <= k0 && k0 < k1, kBad, "mask", "tile of queries ", q0, "..", q1, " and keys ", k0,
          "..", k1, " was asked; both ranges must hold something and keys count from 0");
  const MaskView* view = view_of(at.head);
  return view ? view->tile(q0, q1, k0, k1, at) : TileKind::full;
}

void Mask::check(Index batch, Index heads, Index q_tokens, Index kv_tokens) const {
  require(views_.size() <= 1 || this->heads() == heads, ErrorKind::bad_shape, "mask", "per_head has ",
          this->heads(), " masks but there are ", heads, " heads; give one mask for each head");
  for (const MaskView& view : views_)
    for (int i = 0; i < view.count; ++i) check_term(view.steps[i], batch, heads, q_tokens, kv_tokens);
}

}  // namespace headwise
