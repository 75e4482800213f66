// The engine `mpi`: Open MPI 4 and 5 by their library libmpi.so.40, which is found when ranks are started.
#include "headwise/distributed/mpi_engine.h"

#include <dlfcn.h>
#include <sched.h>

#include <chrono>
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
constexpr Index kPiece = Index{1} << 30;  // counts of MPI are ints

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
    std::vector<Part>& parts = parts_;
    parts.clear();
    for (const Message& m : messages)
      for (Index at = 0; at < m.bytes || at == 0; at += kPiece)
        parts.push_back(
            {m.rank, m.sends, static_cast<std::byte*>(m.data) + at, min_of(kPiece, m.bytes - at)});
    Outcome done;
    for (const bool sends : {false, true})
      for (Part& p : parts) {
        if (p.sends != sends || !done.fault.empty()) continue;
        const int count = static_cast<int>(p.bytes);
        const int code = sends ? mpi_.isend(p.data, count, mpi_.byte, p.rank, tag, team_, &p.request)
                               : mpi_.irecv(p.data, count, mpi_.byte, p.rank, tag, team_, &p.request);
        p.open = code == kOk;
        if (code != kOk) done.fault = said(code);
      }
    if (done.fault.empty()) done = wait(parts, seconds);
    if (!done.ok()) drop(parts);
    return done;
  }

  Outcome all_reduce(const void* in, void* out, Index count, DType dtype, double seconds) override {
    Outcome done;
    const Handle kind = dtype == DType::f64 ? mpi_.f64 : mpi_.f32;
    const Index width = size_of(dtype), most = kPiece / width;
    for (Index at = 0; at < count && done.ok(); at += most) {
      std::vector<Part>& one = parts_;
      one.resize(1);
      one[0] = {.rank = (rank_ + 1) % ranks_, .sends = true, .open = true};
      const int code = mpi_.iall_reduce(
          static_cast<const std::byte*>(in) + at * width, static_cast<std::byte*>(out) + at * width,
          static_cast<int>(min_of(most, count - at)), kind, mpi_.sum, team_, &one[0].request);
      if (code != kOk) return broken_ = true, Outcome{.fault = said(code)};
      done = wait(one, seconds);
    }
    broken_ |= !done.ok();
    return done;
  }

 private:
  struct Part {
    int rank = 0;
    bool sends = false;
    std::byte* data = nullptr;
    Index bytes = 0;
    Handle request = nullptr;
    bool open = false;
  };

  std::string said(int code) const {
    char words[512] = {};
    int length = 0;
    mpi_.error_string(code, words, &length);
    return words;
  }

  /// True when the part is done; a message of another length is a fault.
  bool ended(Part& p, Outcome& done) const {
    MpiStatus status{};
    int flag = 0;
    const int code = mpi_.test(&p.request, &flag, &status);
    if (code != kOk)
      done.fault = text("of rank ", p.rank, ": ", said(code));
    else if (flag && !p.sends && static_cast<Index>(status.bytes) != p.bytes)
      done.fault = text("rank ", p.rank, " sent ", status.bytes, " bytes where ", p.bytes, " were due");
    return flag != 0 || code != kOk;
  }

  /// Ranks may outnumber the CPUs: a rank that waits gives its CPU away at once, and sleeps when it waits
  /// long.
  Outcome wait(std::vector<Part>& parts, double seconds) {
    const auto start = std::chrono::steady_clock::now();
    Outcome done;
    bool sleeps = false;  // a service waits all day for its next request
    for (Index turn = 0;; ++turn) {
      const Part* open = nullptr;
      for (Part& p : parts) {
        if (p.open && ended(p, done)) p.open = false;
        if (!done.fault.empty()) return done;
        if (p.open && (open == nullptr || (open->sends && !p.sends))) open = &p;
      }
      if (open == nullptr) return done;
      if (!sleeps && turn % 64 != 63) continue;
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
      if (waited.count() > seconds) return {.late = open->rank};
      sleeps = waited.count() > 1;
      if (waited.count() > 0.01)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      else
        sched_yield();
    }
  }

  /// Open requests are given up; nothing is written into their memory afterwards.
  void drop(std::vector<Part>& parts) {
    broken_ = true;
    for (Part& p : parts)
      if (p.open) mpi_.cancel(&p.request), mpi_.request_free(&p.request);
  }

  const Mpi& mpi_;
  std::vector<Part> parts_;  // of one call; kept, so that calls allocate nothing
  Handle team_ = nullptr;
  int rank_ = 0, ranks_ = 1;
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
