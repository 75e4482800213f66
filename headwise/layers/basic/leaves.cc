#include "headwise/layers/basic/leaves.h"

#include <vector>

#include "headwise/ops/projection/projection.h"

namespace headwise {
namespace {

constexpr Index kBlockRows = 256;  // so few that partial sums stay near the core that adds them

/// Columns [begin, begin + size) of a matrix.
AnyView columns_of(const AnyView& v, Index begin, Index size) {
  AnyView c = v;
  c.size[1] = size;
  c.data = static_cast<std::byte*>(v.data) + begin * v.step[1] * size_of(v.dtype);
  return c;
}
AnyView rows_of(const AnyView& v, Index begin, Index size) {
  if (!v.given()) return {};
  AnyView r = v;
  r.size[0] = size;
  r.data = static_cast<std::byte*>(v.data) + begin * v.step[0] * size_of(v.dtype);
  return r;
}

/// y = (y + bias) + residual, row by row.
void finish_rows(const AnyView& y, const SumTail& tail, Context& ctx) {
  if (!tail.bias.given() && !tail.residual.given()) return;
  const Index columns = y.size[1];
  const auto pass = [&]<class T>(Type<T>) {
    const T* bias = static_cast<const T*>(tail.bias.data);
    ctx.pool().parallel_for(ceil_div(y.size[0], 16), [&](Index task, int) noexcept {
      for (Index row = task * 16; row < min_of(y.size[0], task * 16 + 16); ++row) {
        T* to = static_cast<T*>(y.data) + row * y.step[0];
        if (tail.bias.given())
          for (Index c = 0; c < columns; ++c) to[c] += bias[c];
        if (!tail.residual.given()) continue;
        const T* from = static_cast<const T*>(tail.residual.data) + row * tail.residual.step[0];
        for (Index c = 0; c < columns; ++c) to[c] += from[c];
      }
    });
  };
  y.dtype == DType::f64 ? pass(Type<double>{}) : pass(Type<float>{});
}

/// One rank's leaves, block of rows after block of rows.
class LeafSum {
 public:
  LeafSum(std::span<const LeafProduct> products, Index leaves, Call& call)
      : products_(products), leaves_(leaves), call_(call) {
    for (Index leaf = 0; leaf < leaves; ++leaf)
      for (const LeafProduct& p : products) {
        const Index size = p.x.size[1] / leaves;
        weights_.push_back(columns_of(p.weight, leaf / p.repeats * size, size));
        // Kernels of f64 read weights as they lie.
        if (p.x.dtype != DType::f64)
          packed_.push_back(pack_matrix(weights_.back(), p.x.dtype, call.ctx, call.training));
      }
  }

  /// Two pieces of memory for every level of the tree: a product does not write where it reads.
  void take_memory(Index rows) {
    const AnyView& p = products_[0].weight;
    for (Index width = 1; width <= leaves_; width *= 2)
      for (int side = 0; side < 2; ++side)
        memory_.push_back(call_.memory.take(products_[0].x.dtype, {rows, p.size[0]}));
  }

  /// y = node(begin, end) of rows [first, first + y's).
  void node(Index begin, Index end, Index first, int level, const AnyView& y) {
    if (end == begin + 1) return leaf(begin, first, {}, level, y);
    const Index middle = (begin + end) / 2;
    const AnyView left = piece(level, 0, y.size[0]);
    node(begin, middle, first, level + 1, left);
    if (end == middle + 1 && products_.size() == 1) return leaf(middle, first, left, level, y);
    node(middle, end, first, level + 1, y);
    add(left, y, y, call_.ctx);
  }

 private:
  AnyView piece(int level, int side, Index rows) const {
    return rows_of(memory_[static_cast<std::size_t>(2 * level + side)], 0, rows);
  }
  /// y = the leaf's products, one after the other, plus `left` behind the last.
  void leaf(Index number, Index first, const AnyView& left, int level, const AnyView& y) {
    const Index count = static_cast<Index>(products_.size());
    AnyView before = left;
    for (Index i = 0; i < count; ++i) {
      const LeafProduct& p = products_[static_cast<std::size_t>(i)];
      const Index size = p.x.size[1] / leaves_;
      // The last product writes y, those before it turn and turn about.
      const AnyView to = (count - 1 - i) % 2 == 0 ? y : piece(level, 1, y.size[0]);
      const auto at = static_cast<std::size_t>(number * count + i);
      projection({.x = rows_of(columns_of(p.x, number * size, size), first, y.size[0]),
                  .weight = packed_.empty() ? weights_[at] : AnyView{},
                  .residual = before,
                  .out = to,
                  .packed = packed_.empty() ? nullptr : &packed_[at],
                  .parts = call_.training},
                 Activation::none, call_.ctx);
      before = to;
    }
  }

  std::span<const LeafProduct> products_;
  Index leaves_;
  Call& call_;
  std::vector<PackedMatrix> packed_;
  std::vector<AnyView> weights_, memory_;
};

void check_dtype(const AnyView& x) {
  require(x.dtype == DType::f32 || x.dtype == DType::f64, ErrorKind::unsupported, "ranks", "rows are ",
          x.dtype, ", whose sums over ranks are not there yet; use f32");
}

}  // namespace

void check_cut(const Call& call, bool backward, double dropout, const Teams& teams) {
  if (teams.tensor_ranks() == 1) return;
  require(!backward || teams.order != Order::one_rank, ErrorKind::unsupported, "ranks",
          "order one_rank has no backward ", "over ", teams.tensor_ranks(), " ranks; learn in order tree");
  require(!call.training || dropout == 0, ErrorKind::unsupported, "ranks", "dropout ", dropout,
          " of attention weights is drawn by heads that a rank does not know yet; set it to 0");
}

void drop_columns(const AnyView& x, Index columns, const DropoutOptions& o, const AnyView& out, Call& call,
                  const Teams& teams) {
  const Index rows = x.size[0];
  if (teams.tensor_ranks() == 1) return dropout(x, {}, o, out, call.ctx);
  const Slice own = slice_of(columns, teams.tensor_rank(), teams.tensor_ranks());
  const Scratch scratch(call.memory);
  const AnyView wide = call.memory.take(x.dtype, {min_of(kBlockRows, rows), columns});
  fill_zeros(wide);
  for (Index first = 0; first < rows; first += kBlockRows) {
    const AnyView block = rows_of(wide, 0, min_of(kBlockRows, rows - first));
    const AnyView mine = columns_of(block, own.begin, own.size);
    const auto copy = [&](const AnyView& from, const AnyView& to) {
      for (Index row = 0; row < block.size[0]; ++row) copy_rows(rows_of(from, row, 1), rows_of(to, row, 1));
    };
    copy(rows_of(x, first, block.size[0]), mine);
    DropoutOptions at = o;
    at.first_row += first;
    dropout(block, {}, at, block, call.ctx);
    copy(mine, rows_of(out, first, block.size[0]));
  }
}

AnyView turned(const AnyView& w) {
  AnyView t = w;
  t.size[0] = w.size[1], t.size[1] = w.size[0];
  t.step[0] = w.step[1], t.step[1] = w.step[0];
  return t;
}

AnyView sum_leaves(std::span<const LeafProduct> products, Index leaves, const SumTail& tail, Call& call,
                   const Teams& teams, std::string_view what) {
  const AnyView& x = products[0].x;
  check_dtype(x);
  const bool alone = teams.tensor_ranks() == 1;
  const AnyView y = call.memory.take(x.dtype, {x.size[0], products[0].weight.size[0]});
  {
    const Scratch scratch(call.memory);
    LeafSum sum(products, leaves, call);
    const Index block = min_of(kBlockRows, max_of(1, x.size[0]));
    sum.take_memory(block);
    for (Index first = 0; first < x.size[0]; first += block) {
      const AnyView rows = rows_of(y, first, min_of(block, x.size[0] - first));
      sum.node(0, leaves, first, 0, rows);
      if (alone) finish_rows(rows, {tail.bias, rows_of(tail.residual, first, rows.size[0])}, call.ctx);
    }
  }
  if (alone) return y;
  teams.tensor->sum(y, y, teams.order, call.ctx, what);
  finish_rows(y, tail, call.ctx);
  return y;
}

AnyView gathered_rows(const AnyView& x, const AnyView& weight, const SumTail& tail, Index out, Call& call,
                      const Teams& teams, std::string_view what) {
  check_dtype(x);
  const AnyView y = call.memory.take(x.dtype, {x.size[0], out});
  const Scratch scratch(call.memory);
  const AnyView whole = call.memory.take(x.dtype, {x.size[0], weight.size[1]});
  const AnyView own = call.memory.take(x.dtype, {x.size[0], weight.size[0]});
  teams.tensor->gather(x, whole, 1, what);
  projection({.x = whole, .weight = weight, .bias = tail.bias, .out = own, .parts = call.training},
             Activation::none, call.ctx);
  teams.tensor->gather(own, y, 1, what);
  finish_rows(y, {{}, tail.residual}, call.ctx);
  return y;
}

}  // namespace headwise
