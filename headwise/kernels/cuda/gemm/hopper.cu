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
template <class T, int Columns>
Status start_tile(const WgmmaTile& tile, const Product& p, const Lines& lines, int device,
                  cudaStream_t stream) {
  if (tile.rows == 128) return start_width<T, Columns>(p, lines, device, stream);
  return start_block<T, Columns>(p, lines, device, stream);
}
template <int Count>
const WgmmaTile& best_of(const WgmmaTile (&tiles)[Count], const Product& p, int device, int count = Count) {
  return wgmma_tile(tiles, count, p.m, p.n, p.k, facts_of(device).processors);
}
Status by_wgmma(const Product& p, const Lines& lines, int device, cudaStream_t stream) {
  if (p.a.dtype == DType::f16) {
    const WgmmaTile& tile = lines.turn_b ? kTurnedF16[0] : best_of(kTilesF16, p, device);
    if (tile.columns == 256) return start_width<f16, 256>(p, lines, device, stream);
    return tile.columns == 64 ? start_tile<f16, 64>(tile, p, lines, device, stream)
                              : start_tile<f16, 128>(tile, p, lines, device, stream);
  }
  const WgmmaTile& tile =
      lines.turn_b ? best_of(kTurnedBf16, p, device, lines.turn_a ? 3 : 4) : best_of(kTilesBf16, p, device);
  switch (tile.columns) {
    case 256: return start_width<bf16, 256>(p, lines, device, stream);
    case 192: return start_width<bf16, 192>(p, lines, device, stream);
    case 128: return start_tile<bf16, 128>(tile, p, lines, device, stream);
    default: return start_tile<bf16, 64>(tile, p, lines, device, stream);
  }
}

Status stream(const Product& p, int device, cudaStream_t on) {
  return p.a.dtype == DType::bf16 ? stream_product<bf16>(p, device, on) : stream_product<f16>(p, device, on);
}
/// By the sizes, or always by the one part. Lines that no tensor map reads are read by mma.sync: all have one
/// class.
enum class Part { best, stream, wgmma };
template <Part part>
Status run(const GemmProblem& problem, const GemmArgs& args, int device, void* stream_of_caller) {
  if (problem.m == 0 || problem.n == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  const Product p = product_of(problem, args);
  const Lines lines = lines_of(p);
  const auto on = static_cast<cudaStream_t>(stream_of_caller);
  if (!lines.there || p.k == 0 || (lines.turn_a && !lines.turn_b)) return mma_product(p, device, on);
  const bool can = !lines.turn_a && !lines.turn_b && !p.accumulate;
  if (part == Part::stream) return can ? stream(p, device, on) : mma_product(p, device, on);
  if (part == Part::best && can && streams(p.m, p.n, p.k, facts_of(device).processors))
    return stream(p, device, on);
  return by_wgmma(p, lines, device, on);
}

}  // namespace

const GemmEntries kHopper = {"cuda/gemm_hopper", refuse, run<Part::best>, kMma.numerics};
const GemmEntries kStream = {"cuda/gemm_stream", refuse, run<Part::stream>, kMma.numerics};
const GemmEntries kWgmma = {"cuda/gemm_wgmma", refuse, run<Part::wgmma>, kMma.numerics};

}  // namespace headwise::cuda::gemm
