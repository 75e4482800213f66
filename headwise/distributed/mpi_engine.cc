// The engine `mpi`: Open MPI 4 and 5 by their library libmpi.so.40, which is found when ranks are started.
#include "headwise/distributed/mpi_engine.h"

#include <dlfcn.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <thread>
#include <vector>

#include "headwise/base/symbol.h"

namespace headwise {
namespace {

using Handle = void*;  // MPI_Comm, MPI_Datatype, MPI_Op and MPI_Request are pointers in Open MPI
struct MpiStatus {
  int source, tag, error, cancelled;
  std::size_t bytes;
};
constexpr int kOk = 0, kSerialized = 2;
constexpr Index kMostCount = Index{1} << 30;  // counts of MPI are ints
/// Between hosts a message travels in pieces below the 64 KiB that Open MPI's TCP sends without asking the
/// receiver: its answers wait behind what travels the other way, and 2 MiB each way took twice as long.
constexpr Index kFarPiece = 60 << 10;
constexpr Index kOpen = 4;         // pieces of a message under way at once
constexpr int kMadeTag = 1 << 14;  // tags of teams are below; MPI's go up to 32767 at least

/// The functions of Open MPI that are used, by their names in its library.
struct Mpi {
  int (*init_thread)(int*, char***, int, int*) = nullptr;
  int (*initialized)(int*) = nullptr;
  int (*finalize)() = nullptr;
  int (*rank)(Handle, int*) = nullptr;
  int (*size)(Handle, int*) = nullptr;
  int (*dup)(Handle, Handle*) = nullptr;
  int (*errors)(Handle, Handle) = nullptr;
  int (*isend)(const void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*irecv)(void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*test)(Handle*, int*, MpiStatus*) = nullptr;
  int (*cancel)(Handle*) = nullptr;
  int (*request_free)(Handle*) = nullptr;
  int (*iall_reduce)(const void*, void*, int, Handle, Handle, Handle, Handle*) = nullptr;
  int (*error_string)(int, char*, int*) = nullptr;
  Handle world = nullptr, byte = nullptr, f32 = nullptr, f64 = nullptr, sum = nullptr,
         errors_return = nullptr;
};

struct Found {
  Mpi mpi;
  std::string missing;
};

Found find() {
  Found f;
  // Its own components look for its symbols, so these are global.
  void* library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    f.missing = "Open MPI's library libmpi.so.40 is not installed; install the package openmpi-bin";
    return f;
  }
  Mpi& m = f.mpi;
  const bool whole =
      read_symbol(library, "MPI_Init_thread", m.init_thread) &&
      read_symbol(library, "MPI_Initialized", m.initialized) &&
      read_symbol(library, "MPI_Finalize", m.finalize) && read_symbol(library, "MPI_Comm_rank", m.rank) &&
      read_symbol(library, "MPI_Comm_size", m.size) && read_symbol(library, "MPI_Comm_dup", m.dup) &&
      read_symbol(library, "MPI_Comm_set_errhandler", m.errors) &&
      read_symbol(library, "MPI_Isend", m.isend) && read_symbol(library, "MPI_Irecv", m.irecv) &&
      read_symbol(library, "MPI_Test", m.test) && read_symbol(library, "MPI_Cancel", m.cancel) &&
      read_symbol(library, "MPI_Request_free", m.request_free) &&
      read_symbol(library, "MPI_Iallreduce", m.iall_reduce) &&
      read_symbol(library, "MPI_Error_string", m.error_string) &&
      read_symbol(library, "ompi_mpi_comm_world", m.world) && read_symbol(library, "ompi_mpi_byte", m.byte) &&
      read_symbol(library, "ompi_mpi_float", m.f32) && read_symbol(library, "ompi_mpi_double", m.f64) &&
      read_symbol(library, "ompi_mpi_op_sum", m.sum) &&
      read_symbol(library, "ompi_mpi_errors_return", m.errors_return);
  if (!whole) f.missing = "libmpi.so.40 is not Open MPI's; install the package openmpi-bin";
  return f;
}

const Found& found() {
  static const Found f = find();
  return f;
}

class MpiEngine final : public Engine {
 public:
  /// over: whose ranks they are; null: all that mpirun started.
  explicit MpiEngine(Handle over = nullptr) : mpi_(found().mpi) {
    int provided = 0, running = 0;
    mpi_.initialized(&running);
    require(running || over == nullptr, ErrorKind::bad_argument, "ranks",
            "a communicator was given but MPI does not run; call MPI_Init first");
    if (!running) {
      require(mpi_.init_thread(nullptr, nullptr, kSerialized, &provided) == kOk, ErrorKind::device, "ranks",
              "MPI_Init_thread failed; start the program with mpirun");
      owns_ = true;
    }
    if (over == nullptr) over = mpi_.world;
    mpi_.errors(over, mpi_.errors_return);
    require(mpi_.dup(over, &team_) == kOk, ErrorKind::device, "ranks",
            "MPI_Comm_dup failed; start the program with mpirun");
    mpi_.errors(team_, mpi_.errors_return);
    mpi_.rank(team_, &rank_), mpi_.size(team_, &ranks_);
    agree_on_pieces();
  }
  /// A rank that ends in an error leaves without MPI_Finalize, which would wait for the others: mpirun then
  /// ends them.
  ~MpiEngine() override {
    if (!owns_ || broken_ || std::uncaught_exceptions() > 0) return;
    mpi_.finalize();
  }
  std::string_view name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  Outcome exchange(std::span<const Message> messages, int tag, double seconds) override {
    flows_.clear();
    add_flows(messages, tag);
    return run({}, seconds);
  }

  Outcome relay(std::span<const Message> first, std::span<const Message> second, Relay& relay, int tag,
                double seconds) override {
    flows_.clear();
    add_flows(first, tag);
    Made made{.relay = &relay, .from = flows_.size()};
    add_flows(second, tag + kMadeTag);
    for (std::size_t i = made.from; i < flows_.size(); ++i) flows_[i].ready = 0;
    return run(made, seconds);
  }

  Outcome all_reduce(const void* in, void* out, Index count, DType dtype, double seconds) override {
    Outcome done;
    const Handle kind = dtype == DType::f64 ? mpi_.f64 : mpi_.f32;
    const Index width = size_of(dtype), most = kMostCount / width;
    for (Index at = 0; at < count && done.ok(); at += most) {
      const Index now = min_of(most, count - at);
      std::vector<Flow>& one = flows_;
      one.clear();
      one.push_back({.message = {.rank = (rank_ + 1) % ranks_, .sends = true}, .posted = 1});
      const int code = mpi_.iall_reduce(static_cast<const std::byte*>(in) + at * width,
                                        static_cast<std::byte*>(out) + at * width, static_cast<int>(now),
                                        kind, mpi_.sum, team_, &one[0].requests[0]);
      if (code != kOk) return broken_ = true, Outcome{.fault = said(code)};
      done = wait({}, seconds);
    }
    broken_ |= !done.ok();
    return done;
  }

 private:
  /// Every rank takes the same: ranks of several jobs may see other hosts than each other.
  void agree_on_pieces() {
    const char *all = std::getenv("OMPI_COMM_WORLD_SIZE"), *here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const double far = all != nullptr && here != nullptr && std::string_view(all) != here ? 1 : 0;
    double some = 0;
    Handle request = nullptr;
    int flag = 0, code = mpi_.iall_reduce(&far, &some, 1, mpi_.f64, mpi_.sum, team_, &request);
    for (MpiStatus status{}; code == kOk && !flag; sched_yield()) code = mpi_.test(&request, &flag, &status);
    require(code == kOk, ErrorKind::device, "ranks", "the ranks cannot meet: ", said(code),
            "; start the program with mpirun");
    if (some > 0) piece_ = kFarPiece;
  }

  /// A message on its way: pieces [ended, posted) are open, bytes below `ready` may go.
  struct Flow {
    Message message;
    int tag = 0;
    Index piece = kMostCount;
    Index ready = message.bytes, ended = 0, posted = 0;
    std::array<Handle, kOpen> requests = {};
    /// The last one is shorter than a piece, so messages of different lengths never look alike.
    Index pieces() const { return message.bytes / piece + 1; }
    Index end_of(Index i) const { return min_of(message.bytes, (i + 1) * piece); }
    Index came() const { return min_of(message.bytes, ended * piece); }
    bool done() const { return ended == pieces(); }
    Handle& request(Index i) { return requests[static_cast<std::size_t>(i % kOpen)]; }
  };
  /// Flows from `from` on are what a relay makes of those before.
  struct Made {
    Relay* relay = nullptr;
    std::size_t from = 0;
    Index came = 0;
  };

  void add_flows(std::span<const Message> messages, int tag) {
    for (const bool sends : {false, true})
      for (const Message& m : messages)
        if (m.sends == sends) flows_.push_back({.message = m, .tag = tag, .piece = piece_});
  }

  Outcome run(Made made, double seconds) {
    Outcome done = wait(made, seconds);
    if (!done.ok()) drop();
    return done;
  }

  std::string said(int code) const {
    char words[512] = {};
    int length = 0;
    mpi_.error_string(code, words, &length);
    return words;
  }

  void post(Flow& f, Outcome& done) {
    const Message& m = f.message;
    for (; f.posted < min_of(f.pieces(), f.ended + kOpen) && f.end_of(f.posted) <= f.ready; ++f.posted) {
      const Index at = f.posted * f.piece;
      std::byte* const data = static_cast<std::byte*>(m.data) + at;
      const int count = static_cast<int>(f.end_of(f.posted) - at);
      const int code = m.sends
                           ? mpi_.isend(data, count, mpi_.byte, m.rank, f.tag, team_, &f.request(f.posted))
                           : mpi_.irecv(data, count, mpi_.byte, m.rank, f.tag, team_, &f.request(f.posted));
      if (code == kOk) continue;
      done.fault = said(code);
      return;
    }
  }

  /// Ends the pieces that are done, and posts those that follow. A message of another length is a fault.
  void move_on(Flow& f, Outcome& done) {
    for (post(f, done); f.ended < f.posted && done.fault.empty(); post(f, done)) {
      const Message& m = f.message;
      const Index at = f.came(), due = f.end_of(f.ended) - at;
      MpiStatus status{};
      int flag = 0;
      const int code = mpi_.test(&f.request(f.ended), &flag, &status);
      if (code == kOk && !flag) return;
      ++f.ended;
      if (code != kOk)
        done.fault = text("of rank ", m.rank, ": ", said(code));
      else if (!m.sends && static_cast<Index>(status.bytes) != due)
        done.fault = text("rank ", m.rank, " sent ", at + static_cast<Index>(status.bytes), " bytes where ",
                          m.bytes, " were due");
    }
  }

  /// What has come is made into what is sent next; and what has gone to a rank lets its answer come.
  void make(Made& made) {
    Index came = -1;
    for (std::size_t i = 0; i < made.from; ++i)
      if (const Flow& f = flows_[i]; !f.message.sends) came = came < 0 ? f.came() : min_of(came, f.came());
    const bool more = came > made.came;
    const Index ready = more ? made.relay->make(made.came = came) : 0;
    for (std::size_t i = made.from; i < flows_.size(); ++i) {
      Flow& f = flows_[i];
      if (f.message.sends && more) f.ready = ready;
      if (f.message.sends) continue;
      for (std::size_t j = 0; j < made.from; ++j)
        if (const Flow& gone = flows_[j]; gone.message.sends && gone.message.rank == f.message.rank)
          f.ready = gone.done() ? f.message.bytes : min_of(f.message.bytes, gone.came());
    }
  }

  /// Ranks may outnumber the CPUs: a rank that waits gives its CPU away at once, and sleeps when it waits
  /// long.
  Outcome wait(Made made, double seconds) {
    auto start = std::chrono::steady_clock::now();  // of the wait for the next piece
    Outcome done;
    bool sleeps = false;  // a service waits all day for its next request
    Index ended = 0;
    for (Index turn = 0;; ++turn) {
      const Flow* open = nullptr;
      Index now_ended = 0;
      for (Flow& f : flows_) {
        move_on(f, done);
        if (!done.fault.empty()) return done;
        now_ended += f.ended;
        if (!f.done() && (open == nullptr || (open->message.sends && !f.message.sends))) open = &f;
      }
      if (open == nullptr) return done;
      if (made.relay != nullptr) make(made);
      if (now_ended > ended) ended = now_ended, start = std::chrono::steady_clock::now();
      if (!sleeps && turn % 64 != 63) continue;
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
      if (waited.count() > seconds) return {.late = open->message.rank};
      sleeps = waited.count() > 1;
      if (waited.count() > 0.01)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      else
        sched_yield();
    }
  }

  /// Open requests are given up; nothing is written into their memory afterwards.
  void drop() {
    broken_ = true;
    for (Flow& f : flows_)
      for (; f.ended < f.posted; ++f.ended)
        mpi_.cancel(&f.request(f.ended)), mpi_.request_free(&f.request(f.ended));
  }

  const Mpi& mpi_;
  std::vector<Flow> flows_;  // of one call; kept, so that calls allocate nothing
  Handle team_ = nullptr;
  int rank_ = 0, ranks_ = 1;
  Index piece_ = kMostCount;
  bool owns_ = false, broken_ = false;
};

}  // namespace

std::string missing_mpi() { return found().missing; }

std::unique_ptr<Engine> start_mpi() {
  require(found().missing.empty(), ErrorKind::unsupported, "ranks", found().missing);
  return std::make_unique<MpiEngine>();
}

std::unique_ptr<Engine> take_mpi(void* communicator) {
  require(found().missing.empty(), ErrorKind::unsupported, "ranks", found().missing);
  require(communicator != nullptr, ErrorKind::bad_argument, "ranks",
          "the communicator is null; give one of MPI");
  return std::make_unique<MpiEngine>(communicator);
}

}  // namespace headwise
