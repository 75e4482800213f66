// Checks of pages: sizes a pool may have, tables that stay inside it.
#include "headwise/ops/attention/checks/arg_checks.h"
#include "headwise/ops/checks/view.h"

namespace headwise {

void ArgChecks::check_pages(const AttentionProblem& p) const {
  if (p.keys != KeyForm::paged) {
    require(p.pages == 0 && p.page_size == 0, ErrorKind::bad_argument, op, "there are ", p.pages,
            " pages of ", p.page_size, " tokens but keys do not lie in pages; leave both at 0");
    return;
  }
  require(is_page_size(p.page_size), ErrorKind::bad_shape, op, "a page has ", p.page_size,
          " tokens; it may have 8, 16, 32, 64, 128 or 256");
  require(0 <= p.pages && p.pages < Index{1} << 31, ErrorKind::bad_shape, op, "there are ", p.pages,
          " pages; their number runs from 0 to below 2^31");
  require(p.heads.k.row == 0 && p.heads.v.row == 0, ErrorKind::unsupported, op,
          "keys lie in pages and heads in rows; give pages with a head axis");
  require(!p.ragged || p.device.is_cpu(), ErrorKind::unsupported, op,
          "keys lie in pages of a GPU and q is ragged; give q as [batch q_tokens heads head_dim]");
  require(!p.probe.any() || p.device.is_cpu(), ErrorKind::unsupported, op,
          "probes on a GPU look at tensors in one piece, and keys lie in pages; gather them");
  require(
      !p.ragged || !(p.probe.columns || p.probe.classes > 0), ErrorKind::unsupported, op,
      "column sums and classes have an axis of keys, which q that is ragged over pages has not; give q as "
      "[batch q_tokens heads head_dim]");
}

void ArgChecks::check_page_table(const AttentionProblem& p, const AttentionArgs& a) const {
  const PageTable& t = a.page_table;
  if (p.keys != KeyForm::paged) {
    require(!t.given(), ErrorKind::bad_argument, op,
            "a page table is given but the plan is for k and v in one piece; plan for pages");
    return;
  }
  require(!a.kv_offsets.given(), ErrorKind::bad_argument, op,
          "kv_offsets came with a page table, which says where keys lie; leave them out");
  require(t.table.given() && t.table.rank == 2, ErrorKind::bad_shape, op, "page table is ", t.table,
          " but rank 2 is needed, [batch pages_each]");
  check_view("page table", t.table, {only(DType::i32), {p.batch, t.table.size[1]}, "[batch pages_each]"});
  check_view("page lengths", t.lengths, {only(DType::i64), {p.batch}, "[batch]"});
  for (Index b = 0; b < p.batch; ++b) {
    const Index length = t.length(b), used = ceil_div(max_of(length, 0), p.page_size);
    require(0 <= length && length <= p.kv_tokens, ErrorKind::bad_shape, op, "sequence ", b, " has ", length,
            " tokens in pages but the plan was made for 0 to ", p.kv_tokens, "; plan for these lengths");
    require(used <= t.table.size[1], ErrorKind::bad_shape, op, "sequence ", b, " has ", length,
            " tokens but its row of the page table names ", t.table.size[1], " pages of ", p.page_size,
            " tokens; give it a longer row");
    for (Index i = 0; !t.on_device() && i < used; ++i)
      require(-1 <= t.page(b, i) && t.page(b, i) < p.pages, ErrorKind::bad_argument, op, "page ", i,
              " of sequence ", b, " is ", t.page(b, i), " but there are ", p.pages, " pages");
  }
}

namespace {

/// Whether a mask differs from head to head.
bool by_head(const MaskSet& mask) {
  if (mask.count > 1) return true;
  for (int i = 0; i < mask.views[0].count; ++i)
    if (mask.views[0].steps[i].op == MaskOp::dense) return true;
  return false;
}
struct Keys {
  Index begin, end;
};
/// No query of the sequence may see one of the keys.
bool closes(const MaskSet& mask, Index heads, const SequenceLocation& at, const Keys& keys) {
  const Index q0 = at.q_start, q1 = at.q_start + at.q_tokens;
  for (Index h = 0; h < heads; ++h) {
    const MaskSubject place{at.sequence, h, at.q_start};
    const MaskView& view = mask.of(h);
    if (view.tile(q0, q1, keys.begin, keys.end, place) == TileKind::empty) continue;
    for (Index q = q0; q < q1; ++q)
      for (Index k = keys.begin; k < keys.end; ++k)
        if (view.may_attend(q, k, place)) return false;
  }
  return true;
}

}  // namespace

/// Pages of -1 were given back: nobody may look there. Neighbours are asked about together.
void ArgChecks::check_gone_pages(const AttentionProblem& p, const AttentionArgs& a) const {
  const PageTable& t = a.page_table;
  if (p.keys != KeyForm::paged || t.on_device()) return;
  AttentionArgs placed = a;
  placed.kv_offsets = a.q_offsets;
  const Index all = p.heads.q.heads, heads = a.mask.given() && !by_head(a.mask) ? min_of(all, Index{1}) : all;
  for (Index b = 0; b < p.batch; ++b) {
    const SequenceLocation at = place_of(p, placed, b);
    const Index used = ceil_div(at.kv_tokens, p.page_size);
    for (Index i = 0, end = 0; i < used && at.q_tokens > 0; i = end + 1) {
      for (end = i; end < used && t.page(b, end) < 0;) ++end;
      if (end == i) continue;
      const Keys gone{i * p.page_size, min_of(at.kv_tokens, end * p.page_size)};
      require(a.mask.given() && closes(a.mask, heads, at, gone), ErrorKind::bad_argument, op, "page ", i,
              " of sequence ", b,
              " is -1 but the mask lets a query see its keys; close them or give the page");
    }
  }
}

}  // namespace headwise
