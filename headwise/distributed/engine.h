// Engine: moves bytes between ranks; it adds floats in all_reduce alone, for Order::engine.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "headwise/base/dtype.h"
#include "headwise/base/error.h"
#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// One message of an exchange, to or from a rank of the world. A sent one is only read.
struct Message {
  int rank = 0;
  bool sends = false;
  void* data = nullptr;
  Index bytes = 0;
};

/// How an exchange ended. late: a rank that did not come in time. fault: what the engine said.
struct Outcome {
  int late = -1;
  std::string fault = {};
  bool ok() const { return late < 0 && fault.empty(); }
};

/// What an error between ranks is. everywhere: every rank has the same one, since they differ in what they
/// were given. Otherwise a rank did not come, and programs exit with 75: another attempt may work.
class RankError : public Error {
 public:
  explicit RankError(const std::string& message, bool everywhere = false)
      : Error(everywhere ? ErrorKind::bad_argument : ErrorKind::device, message), everywhere_(everywhere) {}
  bool everywhere() const noexcept { return everywhere_; }

 private:
  bool everywhere_;
};

/// What a rank makes of messages while they come.
class Relay {
 public:
  virtual ~Relay() = default;
  /// The first `came` bytes of all messages that are taken have come. Returns how many bytes of what is sent
  /// next are made.
  virtual Index make(Index came) = 0;
};

/// Used by one thread. Calls of one tag meet in their order. A call has one message at most from a rank to
/// another.
class Engine {
 public:
  Engine() = default;
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  /// All of them at once, done when every one is; `seconds` at most without any progress.
  virtual Outcome exchange(std::span<const Message> messages, int tag, double seconds) = 0;
  /// Exchanges `first`, whose taken messages have one size, then `second`, which the relay makes of it; an
  /// engine may send what is made before all has come. No byte of `second` is taken from a rank before that
  /// byte of `first` has gone there, so it may lie in the same place.
  virtual Outcome relay(std::span<const Message> first, std::span<const Message> second, Relay& relay,
                        int tag, double seconds);
  /// The engine's own sum over all ranks, f32 or f64: its order is its own.
  virtual Outcome all_reduce(const void* in, void* out, Index count, DType dtype, double seconds) = 0;
};

/// What `doctor` says of an engine, and how it is started.
struct EngineEntry {
  std::string_view name, purpose;
  /// "" where it can start here, else why not, in words.
  std::string (*missing)();
  std::unique_ptr<Engine> (*start)();
};
/// Every engine a program can start, in the order they are tried; `threads` is started by run_ranks alone.
std::span<const EngineEntry> engines();

/// Open MPI's library, found at run time. missing_mpi: why it cannot be used, "" where it can.
std::string missing_mpi();
std::unique_ptr<Engine> start_mpi();
/// "mpi" under mpirun of Open MPI, else "". Another launcher is refused in words.
std::string_view launched_engine();

}  // namespace headwise
#pragma GCC visibility pop
