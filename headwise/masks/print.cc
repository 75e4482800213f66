// The text of a mask: what parse_mask reads back to an equal mask.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/masks/mask.h"

namespace headwise {
namespace {

std::string list(const Index* numbers, Index n) {
  std::string out;
  for (Index i = 0; i < n; ++i) out += (i ? ", " : "") + std::to_string(numbers[i]);
  return out;
}

std::string term_text(const MaskStep& s) {
  const MaskKind& kind = kind_of(s.op);
  switch (kind.form) {
    case MaskForm::bare: return kind.name;
    case MaskForm::one: return text(kind.name, '(', s.a, ')');
    case MaskForm::two: return text(kind.name, '(', s.a, ", ", s.b, ')');
    case MaskForm::list:
    case MaskForm::offsets: return text(kind.name, '(', list(s.offsets, offset_count(s)), ')');
    case MaskForm::blocks:
      return text(kind.name, '(', s.a, ", ", s.b, "; ", list(s.offsets, offset_count(s)), "; ",
                  list(s.columns, s.offsets[s.n]), ')');
    case MaskForm::dense:
      return text(kind.name, '[', s.size[0], ' ', s.size[1], ' ', s.size[2], ' ', s.size[3], ']');
    case MaskForm::join: break;
  }
  return {};
}

std::string view_text(const MaskView& view) {
  struct PrintedTerm {
    std::string text;
    MaskOp op;  // what joins it on the outside
  };
  if (view.count == 0) return "all";
  std::vector<PrintedTerm> stack;
  for (int i = 0; i < view.count; ++i) {
    const MaskOp op = view.steps[i].op;
    if (op != MaskOp::both && op != MaskOp::either) {
      stack.push_back({term_text(view.steps[i]), op});
      continue;
    }
    const PrintedTerm right = std::move(stack.back());
    stack.pop_back();
    const auto inside = [&](const PrintedTerm& p) {
      return op == MaskOp::both && p.op == MaskOp::either ? text('(', p.text, ')') : p.text;
    };
    stack.back() = {text(inside(stack.back()), op == MaskOp::both ? " & " : " | ", inside(right)), op};
  }
  return stack.back().text;
}

}  // namespace

std::string to_text(const Mask& mask) {
  const MaskSet set = mask.set();
  if (!set.given()) return "all";
  if (set.count == 1) return view_text(set.of(0));
  std::string out = "per_head(";
  for (Index h = 0; h < set.count; ++h) out += (h ? "; " : "") + view_text(set.of(h));
  return out + ')';
}

}  // namespace headwise
