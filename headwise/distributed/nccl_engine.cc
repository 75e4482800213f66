#include "headwise/distributed/nccl_engine.h"

#include <dlfcn.h>
#include <sched.h>

#include <chrono>
#include <cstdlib>
#include <utility>
#include <vector>

#include "headwise/base/symbol.h"

namespace headwise {
namespace {

constexpr int kBytes = 1, kFloat = 7, kDouble = 8, kSum = 0;  // ncclUint8, ncclFloat32, ncclFloat64, ncclSum
constexpr int kNotReady = 600;                                // CUDA_ERROR_NOT_READY
using Handle = void*;                                         // ncclComm_t, CUstream, CUcontext
using Address = std::uint64_t;                                // CUdeviceptr

struct UniqueId {
  char bytes[128] = {};
};

/// The functions of NCCL and of the CUDA driver that are used, by their names.
struct Nccl {
  int (*unique_id)(UniqueId*) = nullptr;
  int (*init)(Handle*, int, UniqueId, int) = nullptr;
  int (*send)(const void*, std::size_t, int, int, Handle, Handle) = nullptr;
  int (*receive)(void*, std::size_t, int, int, Handle, Handle) = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int, int, Handle, Handle) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*async_error)(Handle, int*) = nullptr;
  int (*abort)(Handle) = nullptr;
  int (*destroy)(Handle) = nullptr;
  const char* (*error)(int) = nullptr;
};
struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*count)(int*) = nullptr;
  int (*device)(int*, int) = nullptr;
  int (*retain)(Handle*, int) = nullptr;
  int (*set_current)(Handle) = nullptr;
  int (*allocate)(Address*, std::size_t) = nullptr;
  int (*release)(Address) = nullptr;
  int (*to_device)(Address, const void*, std::size_t, Handle) = nullptr;
  int (*to_host)(void*, Address, std::size_t, Handle) = nullptr;
  int (*stream)(Handle*, unsigned) = nullptr;
  int (*query)(Handle) = nullptr;
  int (*destroy_stream)(Handle) = nullptr;
};
struct Found {
  Nccl nccl;
  Driver driver;
  int devices = 0;
  std::string missing;
};

bool read_driver(void* library, Driver& d) {
  return read_symbol(library, "cuInit", d.init) && read_symbol(library, "cuDeviceGetCount", d.count) &&
         read_symbol(library, "cuDeviceGet", d.device) &&
         read_symbol(library, "cuDevicePrimaryCtxRetain", d.retain) &&
         read_symbol(library, "cuCtxSetCurrent", d.set_current) &&
         read_symbol(library, "cuMemAlloc_v2", d.allocate) &&
         read_symbol(library, "cuMemFree_v2", d.release) &&
         read_symbol(library, "cuMemcpyHtoDAsync_v2", d.to_device) &&
         read_symbol(library, "cuMemcpyDtoHAsync_v2", d.to_host) &&
         read_symbol(library, "cuStreamCreate", d.stream) && read_symbol(library, "cuStreamQuery", d.query) &&
         read_symbol(library, "cuStreamDestroy_v2", d.destroy_stream);
}

bool read_nccl(void* library, Nccl& n) {
  return read_symbol(library, "ncclGetUniqueId", n.unique_id) &&
         read_symbol(library, "ncclCommInitRank", n.init) && read_symbol(library, "ncclSend", n.send) &&
         read_symbol(library, "ncclRecv", n.receive) && read_symbol(library, "ncclAllReduce", n.all_reduce) &&
         read_symbol(library, "ncclGroupStart", n.group_start) &&
         read_symbol(library, "ncclGroupEnd", n.group_end) &&
         read_symbol(library, "ncclCommGetAsyncError", n.async_error) &&
         read_symbol(library, "ncclCommAbort", n.abort) &&
         read_symbol(library, "ncclCommDestroy", n.destroy) &&
         read_symbol(library, "ncclGetErrorString", n.error);
}

Found find() {
  Found f;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr || !read_driver(driver, f.driver)) {
    f.missing = "the CUDA driver libcuda.so.1 is not installed; use the engine mpi";
    return f;
  }
  if (f.driver.init(0) != 0 || f.driver.count(&f.devices) != 0 || f.devices == 0) {
    f.missing = "the CUDA driver finds no device; use the engine mpi";
    return f;
  }
  void* const nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (nccl == nullptr)
    f.missing =
        "NCCL's library libnccl.so.2 is not found; install it, or add the folder of PyPI's nvidia-nccl to "
        "LD_LIBRARY_PATH";
  else if (!read_nccl(nccl, f.nccl))
    f.missing = "libnccl.so.2 is too old to send and receive; install NCCL 2.7 or newer";
  return f;
}

const Found& found() {
  static const Found f = find();
  return f;
}

int number_from(const char* variable, int otherwise) {
  const char* word = std::getenv(variable);
  return word == nullptr ? otherwise : std::atoi(word);
}

class NcclEngine final : public Engine {
 public:
  NcclEngine() : nccl_(found().nccl), driver_(found().driver) {
    if (!launched_engine().empty()) meeting_ = start_mpi();
    if (meeting_) rank_ = meeting_->rank(), ranks_ = meeting_->ranks();
    const int here = number_from("OMPI_COMM_WORLD_LOCAL_RANK", 0),
              beside = number_from("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
    require(beside <= found().devices, ErrorKind::unsupported, "ranks", beside,
            " ranks on this machine would share ", found().devices,
            " devices, which NCCL refuses; start a rank for each device, or use the engine mpi");
    int device = 0;
    check(driver_.device(&device, here), "no device");
    check(driver_.retain(&context_, device), "no context");
    check(driver_.set_current(context_), "no context");
    check(driver_.stream(&stream_, 1), "no stream");
    UniqueId id;
    if (rank_ == 0) check_nccl(nccl_.unique_id(&id));
    share(&id, sizeof id);
    check_nccl(nccl_.init(&team_, ranks_, id, rank_));
  }
  ~NcclEngine() override {
    if (broken_) return;  // ranks that are gone would be waited for
    driver_.set_current(context_);
    nccl_.destroy(team_);
    if (buffer_ != 0) driver_.release(buffer_);
    driver_.destroy_stream(stream_);
  }
  std::string_view name() const override { return "nccl"; }
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  /// Messages between two ranks arrive in their order, whatever the tag: all ranks call alike.
  Outcome exchange(std::span<const Message> messages, int, double seconds) override {
    Index bytes = 0;
    int other = rank_;
    for (const Message& m : messages) {
      bytes += round_up(m.bytes);
      if (m.rank != rank_) other = m.rank;
    }
    Outcome done = room(bytes);
    Address at = buffer_;
    for (const Message& m : messages) {
      if (done.ok() && m.sends && m.bytes > 0)
        done = cuda(driver_.to_device(at, m.data, static_cast<std::size_t>(m.bytes), stream_));
      at += static_cast<Address>(round_up(m.bytes));
    }
    if (!done.ok()) return done;
    int code = nccl_.group_start();
    at = buffer_;
    for (const Message& m : messages) {
      auto* const memory = reinterpret_cast<void*>(at);
      const auto count = static_cast<std::size_t>(m.bytes);
      if (code == 0 && count > 0)
        code = m.sends ? nccl_.send(memory, count, kBytes, m.rank, team_, stream_)
                       : nccl_.receive(memory, count, kBytes, m.rank, team_, stream_);
      at += static_cast<Address>(round_up(m.bytes));
    }
    const int ended = nccl_.group_end();
    if (code != 0 || ended != 0) return failed(code != 0 ? code : ended);
    at = buffer_;
    for (const Message& m : messages) {
      if (done.ok() && !m.sends && m.bytes > 0)
        done = cuda(driver_.to_host(m.data, at, static_cast<std::size_t>(m.bytes), stream_));
      at += static_cast<Address>(round_up(m.bytes));
    }
    return done.ok() ? wait(seconds, other) : done;
  }

  Outcome all_reduce(const void* in, void* out, Index count, DType dtype, double seconds) override {
    const Index bytes = count * size_of(dtype);
    Outcome done = room(bytes);
    if (done.ok()) done = cuda(driver_.to_device(buffer_, in, static_cast<std::size_t>(bytes), stream_));
    if (!done.ok()) return done;
    auto* const memory = reinterpret_cast<void*>(buffer_);
    const int code = nccl_.all_reduce(memory, memory, static_cast<std::size_t>(count),
                                      dtype == DType::f64 ? kDouble : kFloat, kSum, team_, stream_);
    if (code != 0) return failed(code);
    done = cuda(driver_.to_host(out, buffer_, static_cast<std::size_t>(bytes), stream_));
    return done.ok() ? wait(seconds, (rank_ + 1) % ranks_) : done;
  }

 private:
  static Index round_up(Index bytes) { return (bytes + 255) / 256 * 256; }
  static void check(int code, const char* what) {
    require(code == 0, ErrorKind::device, "ranks", what, " for NCCL (CUDA error ", code,
            "); look at nvidia-smi, or use the engine mpi");
  }
  void check_nccl(int code) const {
    require(code == 0, ErrorKind::device, "ranks", "NCCL cannot start: ", nccl_.error(code),
            "; NCCL_DEBUG=INFO says more");
  }
  Outcome cuda(int code) {
    if (code == 0) return {};
    broken_ = true;
    return {.fault = text("CUDA error ", code)};
  }
  Outcome failed(int code) {
    broken_ = true;
    return {.fault = nccl_.error(code)};
  }

  Outcome room(Index bytes) {
    driver_.set_current(context_);
    if (bytes <= bytes_) return {};
    if (buffer_ != 0) driver_.release(buffer_);
    buffer_ = 0, bytes_ = 0;
    Outcome done = cuda(driver_.allocate(&buffer_, static_cast<std::size_t>(bytes)));
    if (done.ok()) bytes_ = bytes;
    return done;
  }

  /// Until the stream is done. A rank that does not come ends the team on this one.
  Outcome wait(double seconds, int other) {
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
      const int code = driver_.query(stream_);
      if (code == 0) return {};
      int behind = 0;
      if (nccl_.async_error(team_, &behind) == 0 && behind != 0 && behind != kInProgress) {
        nccl_.abort(team_);
        return failed(behind);
      }
      if (code != kNotReady) return cuda(code);
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
      if (waited.count() > seconds) {
        broken_ = true;
        nccl_.abort(team_);
        return {.late = other};
      }
      sched_yield();
    }
  }

  /// What rank 0 has, by the engine that brought the ranks together.
  void share(void* bytes, Index count) {
    if (ranks_ == 1) return;
    std::vector<Message> messages;
    for (int r = 1; r < ranks_; ++r)
      if (rank_ == 0) messages.push_back({r, true, bytes, count});
    if (rank_ > 0) messages.push_back({0, false, bytes, count});
    const Outcome done = meeting_->exchange(messages, 0, 60);
    require(done.ok(), ErrorKind::device, "ranks",
            "NCCL's id did not come from rank 0; start all ranks again");
  }

  static constexpr int kInProgress = 7;  // ncclInProgress
  const Nccl& nccl_;
  const Driver& driver_;
  std::unique_ptr<Engine> meeting_;
  Handle team_ = nullptr, stream_ = nullptr, context_ = nullptr;
  Address buffer_ = 0;
  Index bytes_ = 0;
  int rank_ = 0, ranks_ = 1;
  bool broken_ = false;
};

}  // namespace

std::string missing_nccl() { return found().missing; }

std::unique_ptr<Engine> start_nccl() {
  require(found().missing.empty(), ErrorKind::unsupported, "ranks", found().missing);
  return std::make_unique<NcclEngine>();
}

}  // namespace headwise
