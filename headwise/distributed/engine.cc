#include "headwise/distributed/engine.h"

#include <cstdlib>

#include "headwise/distributed/nccl_engine.h"

namespace headwise {
namespace {

constexpr EngineEntry kEngines[] = {
    {"mpi", "ranks are processes, on one machine or several", &missing_mpi, &start_mpi},
    {"nccl", "bytes go over GPUs, a GPU a rank", &missing_nccl, &start_nccl},
};

}  // namespace

Outcome Engine::relay(std::span<const Message> first, std::span<const Message> second, Relay& relay, int tag,
                      double seconds) {
  Outcome done = exchange(first, tag, seconds);
  if (!done.ok()) return done;
  Index bytes = 0;
  for (const Message& m : first)
    if (!m.sends) bytes = m.bytes;
  relay.make(bytes);
  return exchange(second, tag, seconds);
}

std::span<const EngineEntry> engines() { return kEngines; }

std::string_view launched_engine() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) return "mpi";
  const char* other = std::getenv("PMI_SIZE");
  require(other == nullptr || std::string_view(other) == "1", ErrorKind::unsupported, "ranks",
          "the launcher is another MPI's (PMI_SIZE is set); start the ranks with Open MPI's mpirun");
  return "";
}

}  // namespace headwise
