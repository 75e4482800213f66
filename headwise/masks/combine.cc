// & and | of masks: chains are kept flat from the left and without repeats, so that equal sentences are
// equal programs.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "headwise/masks/mask.h"

namespace headwise {
namespace {

using Steps = std::span<const MaskStep>;

bool is_join(MaskOp op) { return op == MaskOp::both || op == MaskOp::either; }

/// Where the operand that ends before `end` begins.
std::size_t operand_begin(Steps steps, std::size_t end) {
  std::size_t begin = end;
  for (int wanted = 1; wanted > 0;) wanted += is_join(steps[--begin].op) ? 1 : -1;
  return begin;
}

/// The operands of a chain of `op`, in order; the whole when it is not such a chain.
std::vector<Steps> operands(MaskOp op, Steps steps) {
  std::vector<Steps> parts;
  while (steps.back().op == op) {
    const std::size_t end = steps.size() - 1, begin = operand_begin(steps, end);
    parts.push_back(steps.subspan(begin, end - begin));
    steps = steps.first(begin);
  }
  parts.push_back(steps);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

/// How many words a term owns.
Index words_of(const MaskStep& s) {
  if (s.op != MaskOp::dense) return 0;
  Index n = ceil_div(s.size[3], 64);
  for (int axis = 0; axis < 3; ++axis) n *= s.words[axis] == 0 ? min_of(s.size[axis], 1) : s.size[axis];
  return n;
}

bool same(const MaskStep& x, const MaskStep& y) {
  if (x.op != y.op || x.a != y.a || x.b != y.b || x.n != y.n) return false;
  if (!std::equal(x.size, x.size + 4, y.size) || !std::equal(x.words, x.words + 3, y.words)) return false;
  if (!std::equal(x.offsets, x.offsets + offset_count(x), y.offsets)) return false;
  const Index columns = x.op == MaskOp::blocks ? x.offsets[x.n] : 0;
  return std::equal(x.columns, x.columns + columns, y.columns) &&
         std::equal(x.bits, x.bits + words_of(x), y.bits);
}
bool same(Steps x, Steps y) {
  return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                    [](const auto& s, const auto& t) { return same(s, t); });
}

Steps steps_of(const MaskView& v) { return {v.steps, static_cast<std::size_t>(v.count)}; }

}  // namespace

bool operator==(const Mask& a, const Mask& b) {
  return std::equal(a.views_.begin(), a.views_.end(), b.views_.begin(), b.views_.end(),
                    [](const MaskView& x, const MaskView& y) { return same(steps_of(x), steps_of(y)); });
}

Mask Mask::joined(MaskOp op, Mask a, const Mask& b) {
  for (const Mask* m : {static_cast<const Mask*>(&a), &b})
    require(m->heads() == 1, ErrorKind::bad_argument, "mask", "per_head of ", m->heads(),
            " masks cannot stand inside ", op == MaskOp::both ? '&' : '|',
            "; combine each head's mask first, then call per_head");
  const bool a_is_all = a.views_.empty(), b_is_all = b.views_.empty();
  if (op == MaskOp::either && (a_is_all || b_is_all)) return {};
  if (b_is_all) return a;
  if (a_is_all) return b;

  const auto is_old = [](const std::vector<Steps>& parts, const Steps& part) {
    return std::any_of(parts.begin(), parts.end(), [&](const Steps& p) { return same(p, part); });
  };
  const auto mine = operands(op, steps_of(a.views_[0])), theirs = operands(op, steps_of(b.views_[0]));
  std::size_t terms = (steps_of(a.views_[0]).size() + 1) / 2;
  for (const Steps& part : theirs) terms += is_old(mine, part) ? 0 : (part.size() + 1) / 2;
  if (terms == (steps_of(a.views_[0]).size() + 1) / 2) return a;
  require(terms <= MaskView::kMaxTerms, ErrorKind::unsupported, "mask", "the expression has ", terms,
          " terms but a mask holds ", MaskView::kMaxTerms,
          "; join windows, lengths or blocks into fewer terms, or use dense");

  const std::vector<MaskView> right = a.adopt(b);
  MaskView& view = a.views_[0];
  std::vector<Steps> parts = operands(op, steps_of(view));
  for (const Steps& part : operands(op, steps_of(right[0]))) {
    if (is_old(parts, part)) continue;
    for (const MaskStep& s : part) view.steps[view.count++] = s;
    view.steps[view.count++] = {.op = op};
  }
  return a;
}

}  // namespace headwise
