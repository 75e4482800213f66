#include <cstdio>

#include "headwise/kernels/cuda/gemm/kernels.h"
#include "headwise/kernels/cuda/table/gemm.h"

namespace headwise::cuda::gemm {

namespace {

void refuse(const GemmProblem& p, char (&words)[kSentenceBytes]) {
  kMma.refuse(p, words);
  if (words[0]) return;
  const DeviceFacts facts = facts_of(p.device.index);
  if (facts.major != 9)
    std::snprintf(words, sizeof words, "capability %d.%d has no wgmma; 9.0 has", facts.major, facts.minor);
}
template <class T>
Status by_wgmma(const Product& p, const Lines& lines, int device, cudaStream_t stream) {
  const bool turned = lines.turn_a || lines.turn_b;
  const int columns = tile_columns(p.m, p.n, facts_of(device).processors);
  if (columns == 256 && (!turned || has_turned<T>(256))) return start_width<T, 256>(p, lines, device, stream);
  if (columns == 64 && !turned) return start_width<T, 64>(p, lines, device, stream);
  return start_width<T, 128>(p, lines, device, stream);
}

/// Few rows are a matter of memory, and lines that no tensor map reads of loads: both have the class of
/// mma.sync.
Status run(const GemmProblem& problem, const GemmArgs& args, int device, void* stream) {
  if (problem.m == 0 || problem.n == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  const Product p = product_of(problem, args);
  const Lines lines = lines_of(p);
  const auto on = static_cast<cudaStream_t>(stream);
  const bool few = p.m <= kFewRows && !lines.turn_a && !lines.turn_b;
  if (few || !lines.there || p.k == 0 || (lines.turn_a && !lines.turn_b)) return mma_product(p, device, on);
  return p.a.dtype == DType::bf16 ? by_wgmma<bf16>(p, lines, device, on)
                                  : by_wgmma<f16>(p, lines, device, on);
}

}  // namespace

const GemmEntries kHopper = {"cuda/gemm_hopper", refuse, run, kMma.numerics};

}  // namespace headwise::cuda::gemm
