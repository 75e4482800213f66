#include "headwise/layers/basic/leaves.h"

#include <vector>

#include "headwise/base/context.h"
#include "headwise/base/half.h"
#include "headwise/distributed/small_sum.h"
#include "headwise/ops/projection/leaf_sums.h"
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

/// What sums over leaves are made in: 16-bit rows have sums in f32, rounded once.
DType wide_of(DType rows) { return rows == DType::f64 ? DType::f64 : DType::f32; }

/// Numbers of rows [rows columns], counted row by row from `begin` on: y = round((sum + bias) + residual).
struct Ends {
  const void* sums;  // of the wide dtype, the first one at `begin`
  Index begin, end;
};
void end_numbers(const Ends& e, const SumTail& tail, const AnyView& y, Context& ctx) {
  const bool there = e.sums == static_cast<std::byte*>(y.data) + e.begin * size_of(y.dtype);
  if (there && y.dtype == wide_of(y.dtype) && !tail.bias.given() && !tail.residual.given()) return;
  const Index columns = y.size[1], first = e.begin / columns, rows = ceil_div(e.end, columns) - first;
  const auto pass = [&]<class Wide, class T>(Type<Wide>, Type<T>) {
    const auto* sums = static_cast<const Wide*>(e.sums);
    const auto* bias = static_cast<const T*>(tail.bias.data);
    ctx.pool().parallel_for(ceil_div(rows, 16), [&](Index task, int) noexcept {
      for (Index row = first + task * 16; row < first + min_of(rows, task * 16 + 16); ++row) {
        const Index from = max_of(e.begin, row * columns), count = min_of(e.end, (row + 1) * columns) - from,
                    column = from - row * columns;
        const Wide* in = sums + (from - e.begin);
        T* to = static_cast<T*>(y.data) + row * y.step[0] + column;
        const T* b = bias ? bias + column : nullptr;
        const T* r = tail.residual.given()
                         ? static_cast<const T*>(tail.residual.data) + row * tail.residual.step[0] + column
                         : nullptr;
        for (Index c = 0; c < count; ++c) {
          Wide sum = in[c];
          if (b) sum += static_cast<Wide>(b[c]);
          if (r) sum += static_cast<Wide>(r[c]);
          to[c] = static_cast<T>(sum);
        }
      }
    });
  };
  switch (y.dtype) {
    case DType::f64: return pass(Type<double>{}, Type<double>{});
    case DType::bf16: return pass(Type<float>{}, Type<bf16>{});
    case DType::f16: return pass(Type<float>{}, Type<f16>{});
    default: return pass(Type<float>{}, Type<float>{});
  }
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
        memory_.push_back(call_.memory.take(wide_of(products_[0].x.dtype), {rows, p.size[0]}));
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

/// The same bits in one product, where a kernel has leaves.
bool in_one_pass(std::span<const LeafProduct> products, Index leaves, const SumTail& tail, const AnyView& y,
                 Call& call) {
  if (y.count() == 0 || y.dtype == DType::f64) return false;
  std::vector<LeafTermArgs> terms;
  for (const LeafProduct& p : products) terms.push_back({p.x, p.weight, p.repeats});
  return leaf_sums({.terms = terms,
                    .leaves = leaves,
                    .bias = tail.bias,
                    .residual = tail.residual,
                    .out = y,
                    .parts = call.training},
                   call.ctx);
}

/// y = this rank's leaves and what follows them.
void add_leaves(std::span<const LeafProduct> products, Index leaves, const SumTail& tail, const AnyView& y,
                Call& call) {
  if (in_one_pass(products, leaves, tail, y, call)) return;
  const Scratch scratch(call.memory);
  LeafSum sum(products, leaves, call);
  const Index block = min_of(kBlockRows, max_of(1, y.size[0]));
  sum.take_memory(block);
  const AnyView wide =
      y.dtype == wide_of(y.dtype) ? AnyView{} : call.memory.take(wide_of(y.dtype), {block, y.size[1]});
  for (Index first = 0; first < y.size[0]; first += block) {
    const Index count = min_of(block, y.size[0] - first);
    const AnyView rows = rows_of(y, first, count), sums = wide.given() ? rows_of(wide, 0, count) : rows;
    sum.node(0, leaves, first, 0, sums);
    end_numbers({sums.data, 0, rows.count()}, {tail.bias, rows_of(tail.residual, first, count)}, rows,
                call.ctx);
  }
}

/// Bias and residual follow a sum over ranks.
class TailEnd final : public SumEnd {
 public:
  TailEnd(const SumTail& tail, const AnyView& y) : tail_(tail), y_(y) {}
  void end(const AnyView& sums, Index begin, Context& ctx) override {
    end_numbers({sums.data, begin, begin + sums.count()}, tail_, y_, ctx);
  }

 private:
  const SumTail& tail_;
  const AnyView& y_;
};

/// y = the sum over ranks and what follows it: each rank ends its slice of the numbers, and slices are
/// gathered in y's own width.
void add_over_ranks(const AnyView& partial, const SumTail& tail, const AnyView& y, Call& call,
                    const Teams& teams, std::string_view what) {
  const Communicator& team = *teams.tensor;
  const Index count = y.count();
  if (teams.order == Order::engine || count * size_of(partial.dtype) <= kSmallSum) {
    team.sum(partial, partial, teams.order, call.ctx, what);
    return end_numbers({partial.data, 0, count}, tail, y, call.ctx);
  }
  TailEnd end(tail, y);
  team.sum_tree(partial, AnyView::packed(y.data, y.dtype, {count}), end, call.ctx, what);
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
  const AnyView y = call.memory.take(x.dtype, {x.size[0], products[0].weight.size[0]});
  if (teams.tensor_ranks() == 1) {
    add_leaves(products, leaves, tail, y, call);
    return y;
  }
  const Scratch scratch(call.memory);
  const AnyView partial =
      x.dtype == wide_of(x.dtype) ? y : call.memory.take(wide_of(x.dtype), {y.size[0], y.size[1]});
  add_leaves(products, leaves, {}, partial, call);
  add_over_ranks(partial, tail, y, call, teams, what);
  return y;
}

AnyView gathered_rows(const AnyView& x, const AnyView& weight, const SumTail& tail, Index out, Call& call,
                      const Teams& teams, std::string_view what) {
  const AnyView y = call.memory.take(x.dtype, {x.size[0], out});
  const Scratch scratch(call.memory);
  const AnyView whole = call.memory.take(x.dtype, {x.size[0], weight.size[1]});
  const AnyView own = call.memory.take(x.dtype, {x.size[0], weight.size[0]});
  const Slice mine = slice_of(out, teams.tensor_rank(), teams.tensor_ranks());
  teams.tensor->gather(x, whole, 1, what);
  projection(
      {.x = whole,
       .weight = weight,
       .bias = tail.bias,
       .residual = tail.residual.given() ? columns_of(tail.residual, mine.begin, mine.size) : AnyView{},
       .out = own,
       .parts = call.training},
      Activation::none, call.ctx);
  teams.tensor->gather(own, y, 1, what);
  return y;
}

}  // namespace headwise
