#include "headwise/base/context.h"
#include "headwise/base/half.h"
#include "headwise/distributed/small_sum.h"
#include "headwise/distributed/world.h"

namespace headwise {
using namespace ranks;

namespace {

constexpr Index kGrain = 1 << 14;

void check_tree(int ranks) {
  require((ranks & (ranks - 1)) == 0, ErrorKind::unsupported, kOp, "a tree over ", ranks,
          " ranks has leaves of other depths; take 1, 2, 4 or 8 ranks");
}

/// Rows of `count` numbers, one of each rank.
template <class T>
struct TreeRows {
  T* spare;      // row r lies at r times `count`, where sums of it may be kept
  const T* own;  // row `rank`, where it does not lie there
  int rank, ranks;
  Index count;

  const T* at(Index r) const { return r == rank && own ? own : spare + r * count; }
};
/// Numbers [begin, end) of out = node(0, ranks): neighbours first, then neighbours of those.
template <class T>
void add_tree(const TreeRows<T>& rows, Slice part, T* out, ThreadPool& pool) {
  const Index ranks = rows.ranks, count = rows.count, last = part.begin + part.size;
  pool.parallel_for(ceil_div(part.size, kGrain), [&](Index task, int) noexcept {
    const Index begin = part.begin + task * kGrain, end = min_of(last, begin + kGrain);
    for (Index width = 1; width < ranks; width *= 2)
      for (Index r = 0; r < ranks; r += 2 * width) {
        const auto row = [&](Index of) { return width == 1 ? rows.at(of) : rows.spare + of * count; };
        const T *a = row(r), *b = row(r + width);
        T* to = 2 * width == ranks ? out : rows.spare + r * count;
        for (Index i = begin; i < end; ++i) to[i] = a[i] + b[i];
      }
  });
}

/// The rows lie in `spare`, but this rank's own where it is given.
struct Tree {
  std::byte* spare;
  const void* own;
  int rank, ranks;

  /// Numbers of `part` of `out`.
  void add(const AnyView& out, Slice part, ThreadPool& pool) const {
    const Index count = out.count();
    const auto all = [&]<class T>(T* first) {
      const TreeRows<T> rows{first, static_cast<const T*>(own), rank, ranks, count};
      if (ranks == 1) return copy(out.data, rows.at(0), count * Index{sizeof(T)});
      add_tree(rows, part, static_cast<T*>(out.data), pool);
    };
    out.dtype == DType::f64 ? all(reinterpret_cast<double*>(spare)) : all(reinterpret_cast<float*>(spare));
  }
};

/// A rank's own sums of a tree, made as the others' numbers come.
class TreeRelay final : public Relay {
 public:
  struct Place {
    AnyView sums;        // all of this rank's
    Index begin, width;  // their first number in the call, and bytes of a number in what is sent on
  };
  TreeRelay(const Tree& tree, const Place& place, SumEnd& end, Context& ctx)
      : tree_(tree), place_(place), end_(end), ctx_(ctx) {}
  Index make(Index came) override {
    const Index wide = size_of(place_.sums.dtype), now = came / wide;
    const Slice part{made_, now - made_};
    tree_.add(place_.sums, part, ctx_.pool());
    end_.end(AnyView::packed(static_cast<std::byte*>(place_.sums.data) + made_ * wide, place_.sums.dtype,
                             {part.size}),
             place_.begin + made_, ctx_);
    made_ = now;
    return made_ * place_.width;
  }

 private:
  const Tree& tree_;
  const Place& place_;
  SumEnd& end_;
  Context& ctx_;
  Index made_ = 0;
};

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

/// Sums as they are, rounded where `out` has 16 bits.
class PutEnd final : public SumEnd {
 public:
  explicit PutEnd(const AnyView& out) : out_(out) {}
  void end(const AnyView& sums, Index begin, Context& ctx) override {
    put(sums.data, out_, begin, sums.count(), ctx.pool());
  }

 private:
  const AnyView& out_;
};

}  // namespace

Index sum_bytes(Index count, Index width, int ranks) { return rounded_sum_bytes(count, width, width, ranks); }

void Communicator::sum_slice(const InputView& partial, const AnyView& slice, Context& ctx,
                             std::string_view what) const {
  sum_pieces(partial, world_->even_ends(partial.count(), ranks_), slice, ctx, what);
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
  check_tree(ranks_);
  Pieces& p = world_->pieces_of(partial.data, sized(world_->scratch, mine.size * width * ranks_));
  for (int r = 0; r < ranks_; ++r) {
    const Slice s = piece_of(ends, r, ranks_, count);
    p.send_at.push_back(s.begin * width), p.send.push_back(s.size * width);
    p.take_at.push_back(r * mine.size * width), p.take.push_back(r == rank_ ? 0 : mine.size * width);
  }
  trade(p, {.kind = Card::sums, .dtype = static_cast<std::int32_t>(partial.dtype), .bytes = count * width},
        what);
  const auto* own = static_cast<const std::byte*>(partial.data) + mine.begin * width;
  Tree{p.to, own, rank_, ranks_}.add(AnyView::packed(piece.data, piece.dtype, {mine.size}), {0, mine.size},
                                     ctx.pool());
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
  const auto *first = static_cast<const std::byte*>(partial.data),
             *to = static_cast<const std::byte*>(out.data);
  require(
      !rounds || to + 2 * count <= first || first + width * count <= to, ErrorKind::bad_argument, kOp,
      "16 bits of a sum lie in the memory of its partial sums, which travel meanwhile; give them a place of "
      "their own");
  require(order != Order::one_rank, ErrorKind::unsupported, kOp,
          "partial sums have lost the order of one rank; gather what is summed, or take order tree");
  if (ranks_ == 1) return put(partial.data, out, 0, count, ctx.pool());
  World& w = *world_;
  if (order == Order::engine) {
    require(ranks_ == w.engine->ranks(), ErrorKind::unsupported, kOp,
            "order engine sums over all ranks alone, and this team has ", ranks_, " of ", w.engine->ranks(),
            "; take order tree");
    if (w.options.check || w.calls_of[tag_] < kCheckedCalls)
      compare_cards(
          {.kind = Card::adds, .dtype = static_cast<std::int32_t>(out.dtype), .bytes = count * width}, what);
    const std::byte* from = static_cast<const std::byte*>(partial.data);
    if (partial.data == out.data) {
      copy(sized(w.scratch, count * width), partial.data, count * width);
      from = w.scratch.data();
    }
    const Outcome done = w.engine->all_reduce(from, out.data, count, out.dtype, w.options.seconds);
    ++w.counted.calls, ++w.calls_of[tag_];
    if (done.ok()) return;
    w.broken = text(kOp, ": (", what, ") the engine's sum failed: ",
                    done.fault.empty() ? text("no end within ", w.options.seconds, " s") : done.fault,
                    "; start all ranks again");
    throw RankError(w.broken);
  }
  if (count * width <= kSmallSum) {
    check_tree(ranks_);
    std::byte* all = sized(w.scratch, count * width * ranks_);
    gather_bytes(partial.data, all, count * width, what);
    Tree{all, nullptr, rank_, ranks_}.add(AnyView::packed(all, partial.dtype, {count}), {0, count},
                                          ctx.pool());
    return put(all, out, 0, count, ctx.pool());
  }
  PutEnd as_they_are(out);
  sum_tree(partial, out, as_they_are, ctx, what);
}

void Communicator::sum_tree(const InputView& partial, const AnyView& out, SumEnd& end, Context& ctx,
                            std::string_view what) const {
  check_view("a partial sum", partial);
  check_view("a sum", out);
  const Index count = partial.count(), width = size_of(partial.dtype), thin = size_of(out.dtype);
  require((partial.dtype == DType::f32 || partial.dtype == DType::f64) && out.count() == count,
          ErrorKind::bad_shape, kOp, "got ", partial, " to add into ", out, "; give f32 or f64 of one size");
  check_tree(ranks_);
  World& w = *world_;
  const Slice mine = slice_of(count, rank_, ranks_);
  const Card card{
      .kind = Card::sums, .dtype = static_cast<std::int32_t>(partial.dtype), .bytes = count * width};
  if (ranks_ > 1 && (w.options.check || w.calls_of[tag_] < kCheckedCalls)) compare_cards(card, what);
  std::byte* const rows = sized(w.scratch, mine.size * width * ranks_);
  const AnyView sums = AnyView::packed(sized(w.second, mine.size * width), partial.dtype, {mine.size});
  auto* const to = static_cast<std::byte*>(out.data);
  w.messages.clear(), w.made.clear();
  Pieces& partials = w.pieces_of(partial.data, rows);
  for (int r = 0; r < ranks_; ++r) {
    const Slice s = slice_of(count, r, ranks_);
    partials.send_at.push_back(s.begin * width), partials.send.push_back(s.size * width);
    partials.take_at.push_back(r * mine.size * width), partials.take.push_back(mine.size * width);
  }
  add_messages(partials, w.messages);
  Pieces& made = w.pieces_of(to, to);
  for (int r = 0; r < ranks_; ++r) {
    const Slice s = slice_of(count, r, ranks_);
    made.send_at.push_back(mine.begin * thin), made.send.push_back(mine.size * thin);
    made.take_at.push_back(s.begin * thin), made.take.push_back(s.size * thin);
  }
  add_messages(made, w.made);
  const Tree tree{rows, static_cast<const std::byte*>(partial.data) + mine.begin * width, rank_, ranks_};
  const TreeRelay::Place place{sums, mine.begin, thin};
  TreeRelay relay(tree, place, end, ctx);
  if (ranks_ == 1) return static_cast<void>(relay.make(count * width));
  check_whole();
  this->end(w.engine->relay(w.messages, w.made, relay, tag_, w.options.seconds), w.options.seconds, what,
            card.bytes);
  ++w.counted.calls, ++w.calls_of[tag_];
}

}  // namespace headwise
