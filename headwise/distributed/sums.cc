#include "headwise/base/half.h"
#include "headwise/distributed/small_sum.h"
#include "headwise/distributed/world.h"

namespace headwise {
using namespace ranks;

namespace {

constexpr Index kGrain = 1 << 14;

/// out = node(0, ranks) over rows of `count` numbers: neighbours first, then neighbours of those. `spare` has
/// room for all rows but the last level's; a row may lie in it at its own place.
template <class T>
void add_tree(std::vector<const T*> rows, T* spare, T* out, Index count, ThreadPool& pool) {
  const auto ranks = static_cast<Index>(rows.size());
  pool.parallel_for(ceil_div(count, kGrain), [&](Index task, int) noexcept {
    const Index begin = task * kGrain, end = min_of(count, begin + kGrain);
    for (Index width = 1; width < ranks; width *= 2)
      for (Index r = 0; r < ranks; r += 2 * width) {
        const auto row = [&](Index of) {
          return width == 1 ? rows[static_cast<std::size_t>(of)] : spare + of * count;
        };
        const T *a = row(r), *b = row(r + width);
        T* to = 2 * width == ranks ? out : spare + r * count;
        for (Index i = begin; i < end; ++i) to[i] = a[i] + b[i];
      }
  });
}

/// The rows lie in `spare`, but this rank's own where it is given.
void add_tree(std::byte* spare, const void* own, int rank, int ranks, const AnyView& out, ThreadPool& pool) {
  const Index count = out.count();
  const auto add = [&]<class T>(T* rows) {
    std::vector<const T*> at;
    for (Index r = 0; r < ranks; ++r)
      at.push_back(r == rank && own ? static_cast<const T*>(own) : rows + r * count);
    if (ranks == 1) return copy(out.data, at[0], count * Index{sizeof(T)});
    add_tree<T>(at, rows, static_cast<T*>(out.data), count, pool);
  };
  out.dtype == DType::f64 ? add(reinterpret_cast<double*>(spare)) : add(reinterpret_cast<float*>(spare));
}

/// `count` sums go to out from its number `begin` on, rounded where it has 16 bits.
void put(const void* sums, const AnyView& out, Index begin, Index count, ThreadPool& pool) {
  auto* to = static_cast<std::byte*>(out.data) + begin * size_of(out.dtype);
  if (size_of(out.dtype) != 2) return copy(to, sums, count * size_of(out.dtype));
  const auto round = [&]<class T>(T* narrow) {
    const auto* from = static_cast<const float*>(sums);
    pool.parallel_for(ceil_div(count, kGrain), [&](Index task, int) noexcept {
      for (Index i = task * kGrain; i < min_of(count, (task + 1) * kGrain); ++i) narrow[i] = T(from[i]);
    });
  };
  out.dtype == DType::bf16 ? round(reinterpret_cast<bf16*>(to)) : round(reinterpret_cast<f16*>(to));
}

}  // namespace

Index sum_bytes(Index count, Index width, int ranks) { return rounded_sum_bytes(count, width, width, ranks); }

void Communicator::sum_slice(const InputView& partial, const AnyView& slice, Context& ctx,
                             std::string_view what) const {
  std::vector<Index> ends;
  for (int r = 0; r < ranks_; ++r) {
    const Slice s = slice_of(partial.count(), r, ranks_);
    ends.push_back(s.begin + s.size);
  }
  sum_pieces(partial, ends, slice, ctx, what);
}

void Communicator::sum_pieces(const InputView& partial, std::span<const Index> ends, const AnyView& piece,
                              Context& ctx, std::string_view what) const {
  check_view("a partial sum", partial);
  check_view("a slice of a sum", piece);
  const Index count = partial.count(), width = size_of(partial.dtype);
  const Slice mine = piece_of(ends, rank_, ranks_, count);
  require((partial.dtype == DType::f32 || partial.dtype == DType::f64) && piece.dtype == partial.dtype &&
              piece.count() == mine.size,
          ErrorKind::bad_shape, kOp, "got ", partial, " to add into ", piece, "; give f32 or f64, and ",
          mine.size, " numbers");
  require((ranks_ & (ranks_ - 1)) == 0, ErrorKind::unsupported, kOp, "a tree over ", ranks_,
          " ranks has leaves of other depths; take 1, 2, 4 or 8 ranks");
  Pieces p{.from = static_cast<const std::byte*>(partial.data),
           .to = sized(world_->scratch, mine.size * width * ranks_)};
  for (int r = 0; r < ranks_; ++r) {
    const Slice s = piece_of(ends, r, ranks_, count);
    p.send_at.push_back(s.begin * width), p.send.push_back(s.size * width);
    p.take_at.push_back(r * mine.size * width), p.take.push_back(r == rank_ ? 0 : mine.size * width);
  }
  trade(p, {.kind = Card::sums, .dtype = static_cast<std::int32_t>(partial.dtype), .bytes = count * width},
        what);
  const auto* own = static_cast<const std::byte*>(partial.data) + mine.begin * width;
  add_tree(p.to, own, rank_, ranks_, AnyView::packed(piece.data, piece.dtype, {mine.size}), ctx.pool());
}

void Communicator::sum(const InputView& partial, const AnyView& out, Order order, Context& ctx,
                       std::string_view what) const {
  check_view("a partial sum", partial);
  check_view("a sum", out);
  const Index count = partial.count(), width = size_of(partial.dtype);
  const bool rounds = partial.dtype == DType::f32 && size_of(out.dtype) == 2 && order == Order::tree;
  require((partial.dtype == DType::f32 || partial.dtype == DType::f64) &&
              (out.dtype == partial.dtype || rounds) && out.count() == count,
          ErrorKind::bad_shape, kOp, "got ", partial, " to add into ", out,
          "; give f32 or f64 of one size, or in order tree 16 bits for what is made of f32");
  require(order != Order::one_rank, ErrorKind::unsupported, kOp,
          "partial sums have lost the order of one rank; gather what is summed, or take order tree");
  if (ranks_ == 1) return put(partial.data, out, 0, count, ctx.pool());
  World& w = *world_;
  if (order == Order::engine) {
    require(ranks_ == w.engine->ranks(), ErrorKind::unsupported, kOp,
            "order engine sums over all ranks alone, and this team has ", ranks_, " of ", w.engine->ranks(),
            "; take order tree");
    if (w.options.check || w.counted.calls < kCheckedCalls)
      compare_cards(
          {.kind = Card::adds, .dtype = static_cast<std::int32_t>(out.dtype), .bytes = count * width}, what);
    const std::byte* from = static_cast<const std::byte*>(partial.data);
    if (partial.data == out.data) {
      copy(sized(w.scratch, count * width), partial.data, count * width);
      from = w.scratch.data();
    }
    const Outcome done = w.engine->all_reduce(from, out.data, count, out.dtype, w.options.seconds);
    ++w.counted.calls;
    if (done.ok()) return;
    w.broken = text(kOp, ": (", what, ") the engine's sum failed: ",
                    done.fault.empty() ? text("no end within ", w.options.seconds, " s") : done.fault,
                    "; start all ranks again");
    throw RankError(w.broken);
  }
  if (count * width <= kSmallSum) {
    require((ranks_ & (ranks_ - 1)) == 0, ErrorKind::unsupported, kOp, "a tree over ", ranks_,
            " ranks has leaves of other depths; take 1, 2, 4 or 8 ranks");
    std::byte* all = sized(w.scratch, count * width * ranks_);
    gather_bytes(partial.data, all, count * width, what);
    add_tree(all, nullptr, rank_, ranks_, AnyView::packed(all, partial.dtype, {count}), ctx.pool());
    return put(all, out, 0, count, ctx.pool());
  }
  const Slice mine = slice_of(count, rank_, ranks_);
  const AnyView slice = AnyView::packed(sized(w.second, mine.size * width), partial.dtype, {mine.size});
  sum_slice(partial, slice, ctx, what);
  put(slice.data, out, mine.begin, mine.size, ctx.pool());
  std::vector<Index> ends;
  for (int r = 0; r < ranks_; ++r)
    ends.push_back(slice_of(count, r, ranks_).begin + slice_of(count, r, ranks_).size);
  gather_pieces(AnyView::packed(out.data, out.dtype, {count}), ends, what);
}

}  // namespace headwise
