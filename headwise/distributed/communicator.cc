#include "headwise/distributed/communicator.h"

#include <cstdlib>
#include <cstring>

#include "headwise/base/version.h"

namespace headwise {

/// What teams of one start share.
struct Communicator::World {
  std::unique_ptr<Engine> engine;
  EngineOptions options;
  Counted counted;
  std::string broken;
  std::vector<std::byte> scratch, second;
};

/// What every rank must mean alike in one call.
struct Communicator::Card {
  enum Kind : std::int32_t { gathers = 1, sums = 2, adds = 3, trades = 4 };
  std::int32_t kind = 0, dtype = 0;
  Index bytes = 0, number = 0, check = 0x6865616477697365;
};

namespace {

constexpr const char* kOp = "ranks";
constexpr Index kCheckedCalls = 64;   // calls whose cards are compared without being asked to
constexpr Index kSmallSum = 1 << 12;  // bytes up to which every rank adds all partials itself
constexpr Index kGrain = 1 << 14;

const char* name_of_kind(std::int32_t kind) {
  return kind == 1   ? "gather"
         : kind == 2 ? "sum"
         : kind == 3 ? "the engine's sum"
         : kind == 4 ? "exchange"
                     : "another call";
}

std::string amount(Index bytes) {
  const auto tenths = [](Index n, const char* unit) { return text(n / 10, '.', n % 10, unit); };
  if (bytes >= 1000000) return tenths(bytes / 100000, " MB");
  if (bytes >= 1000) return tenths(bytes / 100, " kB");
  return text(bytes, " bytes");
}

bool row_major(const AnyView& v) {
  Index step = 1;
  for (int axis = v.rank - 1; axis >= 0; --axis) {
    if (v.size[axis] != 1 && v.step[axis] != step) return false;
    step *= v.size[axis];
  }
  return true;
}

void check_view(const char* name, const AnyView& v) {
  require(v.given() && v.on_cpu() && row_major(v), ErrorKind::bad_shape, kOp, name, " is ", v,
          "; give a row-major tensor in the memory of the CPU");
}

/// What rank r has of `count` numbers, by where the ranks' pieces end.
Slice piece_of(std::span<const Index> ends, int r, int ranks, Index count) {
  const auto at = static_cast<std::size_t>(r);
  require(static_cast<int>(ends.size()) == ranks && ends.back() == count, ErrorKind::bad_argument, kOp,
          "pieces of ", ends.size(), " ranks end at ", ends.empty() ? 0 : ends.back(), " for ", count,
          " numbers over ", ranks, " ranks; give an end for each, the last one the count");
  const Index begin = r == 0 ? 0 : ends[at - 1];
  require(ends[at] >= begin, ErrorKind::bad_argument, kOp, "the piece of rank ", r, " ends at ", ends[at],
          " and begins at ", begin, "; give ends in ascending order");
  return {begin, ends[at] - begin};
}

/// rows[0] = node(0, ranks) over rows of `count` numbers: neighbours first, then neighbours of those.
template <class T>
void add_tree(T* rows, Index count, int ranks, ThreadPool& pool) {
  pool.parallel_for(ceil_div(count, kGrain), [&](Index task, int) noexcept {
    const Index begin = task * kGrain, end = min_of(count, begin + kGrain);
    for (int width = 1; width < ranks; width *= 2)
      for (int r = 0; r < ranks; r += 2 * width) {
        T* a = rows + r * count;
        const T* b = rows + (r + width) * count;
        for (Index i = begin; i < end; ++i) a[i] += b[i];
      }
  });
}

void add_tree(std::byte* rows, DType dtype, Index count, int ranks, ThreadPool& pool) {
  if (dtype == DType::f64)
    add_tree(reinterpret_cast<double*>(rows), count, ranks, pool);
  else
    add_tree(reinterpret_cast<float*>(rows), count, ranks, pool);
}

std::byte* sized(std::vector<std::byte>& memory, Index bytes) {
  if (static_cast<Index>(memory.size()) < bytes) memory.resize(static_cast<std::size_t>(bytes));
  return memory.data();
}

void copy(void* to, const void* from, Index bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, static_cast<std::size_t>(bytes));
}

double seconds_from(const char* variable, double otherwise) {
  const char* word = std::getenv(variable);
  if (word == nullptr) return otherwise;
  char* end = nullptr;
  const double value = std::strtod(word, &end);
  require(end != word && *end == '\0' && value > 0, ErrorKind::bad_argument, kOp, variable, " is \"", word,
          "\"; give seconds above 0");
  return value;
}

}  // namespace

Order order_of(std::string_view word) {
  for (const Order o : {Order::one_rank, Order::tree, Order::engine})
    if (name_of(o) == word) return o;
  throw Error(ErrorKind::bad_argument,
              text(kOp, ": there is no order \"", word, "\"; give one_rank, tree or engine"));
}

Index sum_bytes(Index count, Index width, int ranks) {
  if (ranks == 1) return 0;
  if (count * width <= kSmallSum) return count * width * (ranks - 1);
  // Pieces to their owners, then the sums to all: what one rank sends, where pieces are equal.
  return 2 * (count - count / ranks) * width;
}

Communicator::Communicator() : world_(std::make_shared<World>()), members_{0} {}

Communicator::Communicator(std::shared_ptr<World> world, std::vector<int> members, int rank)
    : world_(std::move(world)),
      members_(std::move(members)),
      rank_(rank),
      ranks_(static_cast<int>(members_.size())) {
  // A tag for every team: its members tell it from others that this rank is in.
  for (const int m : members_) tag_ = (tag_ * 31 + m + 1) & 0x3fff;
}

Communicator Communicator::over(std::unique_ptr<Engine> engine, const EngineOptions& options) {
  auto world = std::make_shared<World>();
  world->options = options;
  world->options.seconds = seconds_from("HEADWISE_RANK_SECONDS", options.seconds);
  const char* check = std::getenv("HEADWISE_CHECK_RANKS");
  world->options.check |= check != nullptr && std::string_view(check) == "1";
  std::vector<int> all;
  for (int r = 0; r < engine->ranks(); ++r) all.push_back(r);
  const int rank = engine->rank();
  world->engine = std::move(engine);
  return {std::move(world), std::move(all), rank};
}

Communicator Communicator::start(const EngineOptions& options) {
  std::string word = options.engine;
  if (word.empty()) {
    const char* wish = std::getenv("HEADWISE_ENGINE");
    word = wish != nullptr && *wish != '\0' ? std::string(wish) : std::string(launched_engine());
  }
  if (word.empty() || word == "none") return {};
  for (const EngineEntry& e : engines()) {
    if (e.name != word) continue;
    EngineOptions meeting = options;
    meeting.seconds = options.start_seconds;
    Communicator team = over(e.start(), meeting);
    team.agree("start", {{"version", kVersion}});
    team.world_->options.seconds = seconds_from("HEADWISE_RANK_SECONDS", options.seconds);
    return team;
  }
  throw Error(ErrorKind::bad_argument,
              text(kOp, ": there is no engine \"", word, "\"; give mpi, nccl or none"));
}

std::string Communicator::engine() const {
  return world_->engine ? std::string(world_->engine->name()) : "none";
}

double Communicator::seconds() const { return world_->options.seconds; }

const Counted& Communicator::counted() const { return world_->counted; }

Communicator Communicator::part(int first, int count, int step) const {
  std::vector<int> members;
  int mine = -1;
  for (int i = 0; i < count; ++i) {
    const int r = first + i * step;
    require(r >= 0 && r < ranks_, ErrorKind::bad_argument, kOp, "a team of ranks ", first, " + ", step,
            " i has rank ", r, " but there are ", ranks_, "; give a smaller one");
    if (r == rank_) mine = i;
    members.push_back(world_rank(r));
  }
  require(mine >= 0, ErrorKind::bad_argument, kOp, "rank ", rank_, " is not in the team of ", count,
          " ranks from ", first, "; ask for a team of its own");
  return {world_, std::move(members), mine};
}

void Communicator::move(const std::vector<Message>& messages, double seconds, std::string_view what,
                        Index bytes) const {
  World& w = *world_;
  require(w.broken.empty(), ErrorKind::device, kOp, "an earlier call failed (", w.broken,
          "); start all ranks again");
  const Outcome done = w.engine->exchange(messages, tag_, seconds);
  if (done.ok()) return;
  int late = done.late;
  for (int r = 0; r < ranks_; ++r)
    if (world_rank(r) == done.late) late = r;
  const std::string call = text(kOp, ": call ", w.counted.calls, " (", what, ", ", amount(bytes), "): ");
  w.broken = late >= 0 ? text(call, "rank ", late, " of ", ranks_, " has not come to rank ", rank_, " for ",
                              seconds, " s; look why it stands, then start all ranks again")
                       : text(call, done.fault, "; start all ranks again");
  throw RankError(w.broken);
}

void Communicator::compare_cards(const Card& card, std::string_view what) const {
  World& w = *world_;
  std::vector<Card> all(static_cast<std::size_t>(ranks_));
  std::vector<Message> messages;
  Card mine = card;
  mine.number = w.counted.calls;
  for (int r = 0; r < ranks_; ++r) {
    if (r == rank_) continue;
    messages.push_back({world_rank(r), true, &mine, sizeof(Card)});
    messages.push_back({world_rank(r), false, &all[static_cast<std::size_t>(r)], sizeof(Card)});
    w.counted.card_bytes += sizeof(Card);
  }
  all[static_cast<std::size_t>(rank_)] = mine;
  move(messages, w.options.seconds, what, sizeof(Card));
  const Card& first = all[0];
  for (int r = 1; r < ranks_; ++r) {
    const Card& c = all[static_cast<std::size_t>(r)];
    if (c.kind == first.kind && c.dtype == first.dtype && c.bytes == first.bytes && c.number == first.number)
      continue;
    const auto say = [](const Card& x) {
      return text(name_of_kind(x.kind), " of ", x.bytes, " bytes of ", static_cast<DType>(x.dtype),
                  " as call ", x.number);
    };
    w.broken = text(kOp, ": (", what, ") rank ", r, " comes with ", say(c), ", rank 0 with ", say(first),
                    "; give all ranks the same work");
    throw RankError(w.broken, true);
  }
}

void Communicator::trade(const Pieces& p, const Card& card, std::string_view what) const {
  World& w = *world_;
  if (ranks_ > 1 && (w.options.check || w.counted.calls < kCheckedCalls)) compare_cards(card, what);
  std::vector<Message> messages;
  Index bytes = 0;
  for (int i = 0; i < ranks_; ++i) {
    const auto r = static_cast<std::size_t>(i);
    if (i == rank_) {
      copy(p.to + p.take_at[r], p.from + p.send_at[r], p.take[r]);
      continue;
    }
    // A sent message is only read.
    messages.push_back({world_rank(i), true, const_cast<std::byte*>(p.from) + p.send_at[r], p.send[r]});
    messages.push_back({world_rank(i), false, p.to + p.take_at[r], p.take[r]});
    bytes += p.send[r];
  }
  if (ranks_ > 1) move(messages, w.options.seconds, what, card.bytes);
  w.counted.bytes += bytes;
  w.counted.messages += ranks_ - 1;
  ++w.counted.calls;
}

void Communicator::gather_bytes(const void* mine, void* all, Index bytes, std::string_view what) const {
  Pieces p{.from = static_cast<const std::byte*>(mine), .to = static_cast<std::byte*>(all)};
  for (int r = 0; r < ranks_; ++r)
    p.send_at.push_back(0), p.send.push_back(bytes), p.take_at.push_back(r * bytes), p.take.push_back(bytes);
  trade(p, {.kind = Card::gathers, .bytes = bytes * ranks_}, what);
}

void Communicator::agree(std::string_view what, const std::vector<AgreeField>& fields) const {
  if (ranks_ == 1) return;
  std::string mine;
  for (const AgreeField& f : fields) mine += text(f.name, '\x1f', f.value, '\x1e');
  const Index length = static_cast<Index>(mine.size());
  std::vector<Index> lengths(static_cast<std::size_t>(ranks_));
  gather_bytes(&length, lengths.data(), sizeof length, what);
  Index most = 0;
  for (const Index n : lengths) most = max_of(most, n);
  mine.resize(static_cast<std::size_t>(most), '\0');
  std::string all(static_cast<std::size_t>(most * ranks_), '\0');
  gather_bytes(mine.data(), all.data(), most, what);
  const auto field = [&](int rank, std::size_t number) -> AgreeField {
    std::string_view said =
        std::string_view(all).substr(static_cast<std::size_t>(rank * most),
                                     static_cast<std::size_t>(lengths[static_cast<std::size_t>(rank)]));
    for (std::size_t i = 0; i < number && !said.empty(); ++i) said.remove_prefix(said.find('\x1e') + 1);
    if (said.empty()) return {"", "nothing"};
    const std::string_view one = said.substr(0, said.find('\x1e'));
    return {std::string(one.substr(0, one.find('\x1f'))), std::string(one.substr(one.find('\x1f') + 1))};
  };
  for (int r = 1; r < ranks_; ++r)
    for (std::size_t i = 0;; ++i) {
      const AgreeField theirs = field(r, i), first = field(0, i);
      if (theirs.name.empty() && first.name.empty()) break;
      if (theirs.name == first.name && theirs.value == first.value) continue;
      throw RankError(
          text(kOp, ": ", what, ": rank ", r, " has ", theirs.name.empty() ? first.name : theirs.name, " ",
               theirs.value, ", rank 0 has ", first.value, "; start all ranks with the same words"),
          true);
    }
}

void Communicator::gather(const InputView& slice, const AnyView& whole, int axis,
                          std::string_view what) const {
  check_view("a slice to gather", slice);
  check_view("what is gathered", whole);
  require(axis >= 0 && axis < whole.rank && slice.rank == whole.rank && slice.dtype == whole.dtype,
          ErrorKind::bad_shape, kOp, "got ", slice, " for ", whole, " along axis ", axis,
          "; give both one dtype and rank");
  Index outer = 1, inner = size_of(whole.dtype);
  for (int a = 0; a < whole.rank; ++a) {
    const Index want = a == axis ? slice_of(whole.size[a], rank_, ranks_).size : whole.size[a];
    require(slice.size[a] == want, ErrorKind::bad_shape, kOp, "rank ", rank_, " of ", ranks_, " brings ",
            slice, " of ", whole, "; along axis ", axis, " it holds ",
            slice_of(whole.size[axis], rank_, ranks_).size);
    (a < axis ? outer : inner) *= a == axis ? 1 : whole.size[a];
  }
  const Index row = whole.size[axis] * inner, mine = slice.size[axis] * inner;
  auto* to = static_cast<std::byte*>(whole.data);
  std::byte* flat = outer == 1 ? to : sized(world_->scratch, outer * row);
  Pieces p{.from = static_cast<const std::byte*>(slice.data), .to = flat};
  for (int r = 0; r < ranks_; ++r) {
    const Slice s = slice_of(whole.size[axis], r, ranks_);
    p.send_at.push_back(0), p.send.push_back(outer * mine);
    p.take_at.push_back(outer * s.begin * inner), p.take.push_back(outer * s.size * inner);
  }
  trade(p, {.kind = Card::gathers, .dtype = static_cast<std::int32_t>(whole.dtype), .bytes = outer * row},
        what);
  if (outer == 1) return;
  for (int r = 0; r < ranks_; ++r) {
    const Slice s = slice_of(whole.size[axis], r, ranks_);
    const std::byte* from = flat + outer * s.begin * inner;
    for (Index o = 0; o < outer; ++o)
      copy(to + o * row + s.begin * inner, from + o * s.size * inner, s.size * inner);
  }
}

void Communicator::exchange(const InputView& from, int cut_axis, const AnyView& to,
                            std::string_view what) const {
  check_view("what is cut", from);
  check_view("what is joined", to);
  require(from.rank == 2 && to.rank == 2 && (cut_axis == 0 || cut_axis == 1) && from.dtype == to.dtype,
          ErrorKind::bad_shape, kOp, "got ", from, " and ", to, " to exchange along axis ", cut_axis,
          "; give two matrices of one dtype, and axis 0 or 1");
  const int join_axis = 1 - cut_axis;
  const auto own = [&](Index whole) { return slice_of(whole, rank_, ranks_).size; };
  require(from.size[join_axis] == own(to.size[join_axis]) && to.size[cut_axis] == own(from.size[cut_axis]),
          ErrorKind::bad_shape, kOp, "rank ", rank_, " of ", ranks_, " brings ", from, " for ", to,
          "; it holds ", own(to.size[join_axis]), " of axis ", join_axis, " and gets ",
          own(from.size[cut_axis]), " of axis ", cut_axis);
  const bool spreads = cut_axis == 1;  // heads of own tokens go out; else tokens of own heads
  const Index width = size_of(to.dtype), columns = (spreads ? from : to).size[1] * width;
  const Index own_rows = (spreads ? from : to).size[0];
  const Slice mine = slice_of(columns / width, rank_, ranks_);
  // Rows lie whole on one side; on the other a rank's columns are packed, piece after piece.
  auto* whole = static_cast<std::byte*>(spreads ? from.data : to.data);
  std::byte* packed = sized(world_->scratch, own_rows * columns);
  const auto copy_columns = [&](bool out) {
    for (int r = 0; r < ranks_; ++r) {
      const Slice s = slice_of(columns / width, r, ranks_);
      std::byte* piece = packed + own_rows * s.begin * width;
      for (Index row = 0; row < own_rows; ++row) {
        std::byte* at = whole + row * columns + s.begin * width;
        std::byte* one = piece + row * s.size * width;
        std::memcpy(out ? one : at, out ? at : one, static_cast<std::size_t>(s.size * width));
      }
    }
  };
  if (spreads) copy_columns(true);
  Pieces p{.from = spreads ? packed : static_cast<const std::byte*>(from.data),
           .to = spreads ? static_cast<std::byte*>(to.data) : packed};
  const Index rows = (spreads ? to : from).size[0];
  for (int r = 0; r < ranks_; ++r) {
    const Slice theirs = slice_of(rows, r, ranks_), cut = slice_of(columns / width, r, ranks_);
    const Index by_columns = own_rows * cut.size * width, by_rows = theirs.size * mine.size * width;
    const Index columns_at = own_rows * cut.begin * width, rows_at = theirs.begin * mine.size * width;
    p.send_at.push_back(spreads ? columns_at : rows_at), p.send.push_back(spreads ? by_columns : by_rows);
    p.take_at.push_back(spreads ? rows_at : columns_at), p.take.push_back(spreads ? by_rows : by_columns);
  }
  trade(p, {.kind = Card::trades, .dtype = static_cast<std::int32_t>(to.dtype), .bytes = rows * columns},
        what);
  if (!spreads) copy_columns(false);
}

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
    p.take_at.push_back(r * mine.size * width), p.take.push_back(mine.size * width);
  }
  trade(p, {.kind = Card::sums, .dtype = static_cast<std::int32_t>(partial.dtype), .bytes = count * width},
        what);
  add_tree(p.to, partial.dtype, mine.size, ranks_, ctx.pool());
  copy(piece.data, p.to, mine.size * width);
}

void Communicator::gather_pieces(const AnyView& flat, std::span<const Index> ends,
                                 std::string_view what) const {
  check_view("what is gathered", flat);
  const Index width = size_of(flat.dtype);
  auto* to = static_cast<std::byte*>(flat.data);
  Pieces p{.from = to, .to = to};
  const Slice mine = piece_of(ends, rank_, ranks_, flat.count());
  for (int r = 0; r < ranks_; ++r) {
    const Slice s = piece_of(ends, r, ranks_, flat.count());
    p.send_at.push_back(mine.begin * width), p.send.push_back(mine.size * width);
    p.take_at.push_back(s.begin * width), p.take.push_back(s.size * width);
  }
  trade(
      p,
      {.kind = Card::gathers, .dtype = static_cast<std::int32_t>(flat.dtype), .bytes = flat.count() * width},
      what);
}

void Communicator::share(void* bytes, Index count, std::string_view what) const {
  auto* to = static_cast<std::byte*>(bytes);
  Pieces p{.from = to, .to = to};
  const auto ranks = static_cast<std::size_t>(ranks_);
  p.send_at.resize(ranks), p.take_at.resize(ranks);
  p.send.resize(ranks, rank_ == 0 ? count : 0);
  p.take.resize(ranks, 0);
  p.take[0] = count;
  trade(p, {.kind = Card::gathers, .bytes = count}, what);
}

void Communicator::sum(const InputView& partial, const AnyView& out, Order order, Context& ctx,
                       std::string_view what) const {
  check_view("a partial sum", partial);
  check_view("a sum", out);
  const Index count = partial.count(), width = size_of(partial.dtype);
  require((partial.dtype == DType::f32 || partial.dtype == DType::f64) && out.dtype == partial.dtype &&
              out.count() == count,
          ErrorKind::bad_shape, kOp, "got ", partial, " to add into ", out, "; give f32 or f64 of one size");
  require(order != Order::one_rank, ErrorKind::unsupported, kOp,
          "partial sums have lost the order of one rank; gather what is summed, or take order tree");
  if (ranks_ == 1) return copy(out.data, partial.data, count * width);
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
    add_tree(all, out.dtype, count, ranks_, ctx.pool());
    return copy(out.data, all, count * width);
  }
  const Slice mine = slice_of(count, rank_, ranks_);
  const AnyView slice = AnyView::packed(sized(w.second, mine.size * width), out.dtype, {mine.size});
  sum_slice(partial, slice, ctx, what);
  gather(slice, AnyView::packed(out.data, out.dtype, {count}), 0, what);
}

}  // namespace headwise
