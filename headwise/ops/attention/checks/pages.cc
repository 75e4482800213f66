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
  require(!p.ragged, ErrorKind::unsupported, op,
          "keys lie in pages and q is ragged; give q as [batch q_tokens heads head_dim]");
  require(!p.probe.any(), ErrorKind::unsupported, op,
          "probes look at tensors in one piece, and keys lie in pages; gather them");
}

void ArgChecks::check_page_table(const AttentionProblem& p, const AttentionArgs& a) const {
  const PageTable& t = a.page_table;
  if (p.keys != KeyForm::paged) {
    require(!t.given(), ErrorKind::bad_argument, op,
            "a page table is given but the plan is for k and v in one piece; plan for pages");
    return;
  }
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
      require(0 <= t.page(b, i) && t.page(b, i) < p.pages, ErrorKind::bad_argument, op, "page ", i,
              " of sequence ", b, " is ", t.page(b, i), " but there are ", p.pages, " pages");
  }
}

}  // namespace headwise
