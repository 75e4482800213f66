// Communicator: one rank's way to the others: gather, sum in a fixed order, agree; every call has a deadline.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/view.h"
#include "headwise/distributed/engine.h"
#include "headwise/distributed/order.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

struct EngineOptions {
  std::string engine = {};    // "": HEADWISE_ENGINE, else mpi under mpirun, else one rank without an engine
  double seconds = 300;       // the deadline of a call; HEADWISE_RANK_SECONDS overrules it
  double start_seconds = 60;  // of the first meeting
  bool check = false;  // compare cards in every call, not in the first alone; HEADWISE_CHECK_RANKS=1 does too
};

/// What travelled from this rank since the start. Cards are counted apart.
struct Counted {
  Index bytes = 0, messages = 0, calls = 0, card_bytes = 0;
};

/// One thing all ranks must say alike.
struct AgreeField {
  std::string name, value;
};

/// What becomes of sums before they go to all ranks.
class SumEnd {
 public:
  virtual ~SumEnd() = default;
  /// `sums` are the numbers from `begin` on; what they become is put into the call's `out`, at their place.
  virtual void end(const AnyView& sums, Index begin, Context& ctx) = 0;
};

/// Move-only, used by one thread; handed around, never global. After an error every call is refused.
class Communicator {
 public:
  /// One rank, no engine: nothing travels.
  Communicator();
  /// By the options and the environment; ranks meet, and compare their versions.
  static Communicator start(const EngineOptions& options = {});
  /// Over an engine that runs already.
  static Communicator over(std::unique_ptr<Engine> engine, const EngineOptions& options = {});
  Communicator(Communicator&&) = default;
  Communicator& operator=(Communicator&&) = default;

  int rank() const noexcept { return rank_; }
  int ranks() const noexcept { return ranks_; }
  std::string engine() const;
  /// The deadline of a call.
  double seconds() const;
  /// The team of ranks first, first + step, ... of this one, `count` of them, this rank among them. Nothing
  /// travels.
  Communicator part(int first, int count, int step = 1) const;
  const Counted& counted() const;

  /// Every rank says the same, or every rank throws with the rank, the field and both values.
  void agree(std::string_view what, const std::vector<AgreeField>& fields) const;

  /// whole = the slices of all ranks along an axis (slice_of); both row-major, of one dtype, on the CPU.
  void gather(const InputView& slice, const AnyView& whole, int axis, std::string_view what = "gather") const;
  /// Matrices: slices of one axis become slices of the other. cut_axis 1: from [rows_r columns] to [rows
  /// columns_r], where rows_r and columns_r are this rank's slices; cut_axis 0: back.
  void exchange(const InputView& from, int cut_axis, const AnyView& to,
                std::string_view what = "exchange") const;
  /// Bytes of every rank, in the order of ranks: `all` has ranks() times `bytes`.
  void gather_bytes(const void* mine, void* all, Index bytes, std::string_view what = "gather") const;
  /// out = the sum of the partials of all ranks, on every rank; f32 or f64, row-major; out may be partial,
  /// but not in 16 bits.
  /// Orders tree (ranks a power of two) and engine.
  void sum(const InputView& partial, const AnyView& out, Order order, Context& ctx,
           std::string_view what = "sum") const;
  /// out = what `end` makes of the sums in order tree, on every rank; it sees each number on one rank alone.
  /// `out` has any dtype, and lies in the place of the partial sums, with their width, or apart from them.
  void sum_tree(const InputView& partial, const AnyView& out, SumEnd& end, Context& ctx,
                std::string_view what = "sum") const;
  /// The part of that sum which slice_of gives this rank, of the numbers counted row by row.
  void sum_slice(const InputView& partial, const AnyView& slice, Context& ctx,
                 std::string_view what = "sum") const;
  /// The same with pieces of any sizes: rank r has the numbers before ends[r] and from ends[r - 1] on.
  void sum_pieces(const InputView& partial, std::span<const Index> ends, const AnyView& piece, Context& ctx,
                  std::string_view what = "sum") const;
  /// `flat` holds this rank's piece in its place; every other comes from its rank.
  void gather_pieces(const AnyView& flat, std::span<const Index> ends,
                     std::string_view what = "gather") const;
  /// What rank 0 has, on every rank.
  void share(void* bytes, Index count, std::string_view what = "share") const;

 private:
  struct World;
  struct Card;
  Communicator(std::shared_ptr<World> world, std::vector<int> members, int rank);
  int world_rank(int r) const { return members_[static_cast<std::size_t>(r)]; }
  /// Sends piece r of `from` to rank r and takes that rank's into piece r of `to`; a rank's own is copied.
  struct Pieces {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::vector<Index> send_at = {}, send = {}, take_at = {}, take = {};
  };
  void add_messages(const Pieces& pieces, std::vector<Message>& messages) const;
  void trade(const Pieces& pieces, const Card& card, std::string_view what) const;
  void compare_cards(const Card& card, std::string_view what) const;
  void move(const std::vector<Message>& messages, double seconds, std::string_view what, Index bytes) const;
  void check_whole() const;
  void end(const Outcome& done, double seconds, std::string_view what, Index bytes) const;

  std::shared_ptr<World> world_;
  std::vector<int> members_;  // ranks of the world
  int rank_ = 0, ranks_ = 1, tag_ = 0;
};

/// Who works together. tensor: heads and columns are cut. context: the tokens of a batch are. data:
/// micro-batches are.
struct Teams {
  const Communicator* tensor = nullptr;
  const Communicator* context = nullptr;
  const Communicator* data = nullptr;
  Order order = Order::one_rank;

  int tensor_ranks() const { return tensor ? tensor->ranks() : 1; }
  int tensor_rank() const { return tensor ? tensor->rank() : 0; }
  int context_ranks() const { return context ? context->ranks() : 1; }
};

/// Numbers a rank sends for one sum, in bytes: what sum counts.
Index sum_bytes(Index count, Index width, int ranks);

}  // namespace headwise
#pragma GCC visibility pop
