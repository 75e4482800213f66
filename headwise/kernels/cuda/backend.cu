// The table of attention, one of the two symbols the CUDA library shows.
#include "headwise/kernels/cuda/table/backend.h"

#include <cstdio>

#include "headwise/kernels/cuda/device/stream_state.h"
#include "headwise/kernels/cuda/table/kernels.h"

namespace headwise::cuda {
namespace {

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // a machine without a driver is no error of the next call
    return 0;
  }
  return count;
}

void describe(int device, char (&words)[kSentenceBytes]) {
  words[0] = '\0';
  cudaDeviceProp facts{};
  int driver = 0;
  if (cudaGetDeviceProperties(&facts, device) != cudaSuccess || cudaDriverGetVersion(&driver) != cudaSuccess)
    return;
  std::snprintf(words, sizeof words,
                "%.96s, capability %d.%d, %d processors, %.0f GiB, driver for CUDA %d.%d", facts.name,
                facts.major, facts.minor, facts.multiProcessorCount,
                static_cast<double>(facts.totalGlobalMem) / (1 << 30), driver / 1000, driver % 1000 / 10);
}

}  // namespace
}  // namespace headwise::cuda

extern "C" __attribute__((visibility("default"))) const headwise::cuda::Table* headwise_cuda_table() {
  using namespace headwise::cuda;
  static const Kernel kernels[] = {
      hopper::kRagged,    hopper::decode::kAttend, hopper::forward::kAttend, mma::kAttend,   probe::kAttend,
      row_lists::kAttend, mixed::kAttend,          entmax::kAttend,          plain::kAttend, hopper::kPhase};
  static const BackwardKernel backward[] = {
      hopper::backward::kBackward, mma::kBackward,   mixed::kBackward,
      entmax::kBackward,           plain::kBackward, hopper::backward::kUnordered};
  static const Table table = {kTableVersion,
                              sizeof(headwise::AttentionProblem),
                              sizeof(headwise::AttentionArgs),
                              sizeof(headwise::BackwardProblem),
                              sizeof(headwise::BackwardArgs),
                              static_cast<int>(sizeof kernels / sizeof *kernels),
                              static_cast<int>(sizeof backward / sizeof *backward),
                              kernels,
                              backward,
                              device_count,
                              describe};
  return &table;
}
