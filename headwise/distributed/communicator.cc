#include "headwise/distributed/communicator.h"

#include <cstdlib>

#include "headwise/base/context.h"
#include "headwise/base/version.h"
#include "headwise/distributed/world.h"

namespace headwise {
using namespace ranks;

namespace {

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
  check_whole();
  end(world_->engine->exchange(messages, tag_, seconds), seconds, what, bytes);
}

void Communicator::check_whole() const {
  require(world_->broken.empty(), ErrorKind::device, kOp, "an earlier call failed (", world_->broken,
          "); start all ranks again");
}

void Communicator::end(const Outcome& done, double seconds, std::string_view what, Index bytes) const {
  if (done.ok()) return;
  World& w = *world_;
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
  mine.number = w.calls_of[tag_];
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

void Communicator::add_messages(const Pieces& p, std::vector<Message>& messages) const {
  const bool pairs = (ranks_ & (ranks_ - 1)) == 0;
  for (int round = 1; round < ranks_; ++round) {
    const int to = pairs ? rank_ ^ round : (rank_ + round) % ranks_,
              from = pairs ? to : (rank_ - round + ranks_) % ranks_;
    const auto t = static_cast<std::size_t>(to), f = static_cast<std::size_t>(from);
    // A sent message is only read.
    messages.push_back({world_rank(to), true, const_cast<std::byte*>(p.from) + p.send_at[t], p.send[t]});
    messages.push_back({world_rank(from), false, p.to + p.take_at[f], p.take[f]});
    world_->counted.bytes += p.send[t];
  }
  world_->counted.messages += ranks_ - 1;
}

void Communicator::trade(const Pieces& p, const Card& card, std::string_view what) const {
  World& w = *world_;
  if (ranks_ > 1 && (w.options.check || w.calls_of[tag_] < kCheckedCalls)) compare_cards(card, what);
  const auto own = static_cast<std::size_t>(rank_);
  copy(p.to + p.take_at[own], p.from + p.send_at[own], p.take[own]);
  w.messages.clear();
  add_messages(p, w.messages);
  if (ranks_ > 1) move(w.messages, w.options.seconds, what, card.bytes);
  ++w.counted.calls, ++w.calls_of[tag_];
}

void Communicator::gather_bytes(const void* mine, void* all, Index bytes, std::string_view what) const {
  Pieces& p = world_->pieces_of(mine, all);
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
  Pieces& p = world_->pieces_of(slice.data, flat);
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
  Pieces& p = world_->pieces_of(spreads ? packed : from.data, spreads ? to.data : packed);
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

void Communicator::gather_pieces(const AnyView& flat, std::span<const Index> ends,
                                 std::string_view what) const {
  check_view("what is gathered", flat);
  const Index width = size_of(flat.dtype);
  auto* to = static_cast<std::byte*>(flat.data);
  Pieces& p = world_->pieces_of(to, to);
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
  Pieces& p = world_->pieces_of(to, to);
  const auto ranks = static_cast<std::size_t>(ranks_);
  p.send_at.resize(ranks), p.take_at.resize(ranks);
  p.send.resize(ranks, rank_ == 0 ? count : 0);
  p.take.resize(ranks, 0);
  p.take[0] = count;
  trade(p, {.kind = Card::gathers, .bytes = count}, what);
}

}  // namespace headwise
