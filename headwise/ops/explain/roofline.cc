#include "headwise/ops/explain/roofline.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "headwise/base/buffer.h"
#include "headwise/base/threads.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/isa/tile_kernels.h"

namespace headwise {
namespace {

double seconds_of(ThreadPool& pool, TaskBody body) {
  const auto begin = std::chrono::steady_clock::now();
  pool.parallel_for(pool.threads(), body);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double peak_gflops(ThreadPool& pool, const cpu::TileKernels& kernels, int windows, double window_seconds) {
  std::vector<double> done(static_cast<std::size_t>(pool.threads()));
  Index rounds = 1000;
  double best = 0;
  for (int window = 0; window < windows;) {
    const double seconds = seconds_of(
        pool, [&](Index task, int) { done[static_cast<std::size_t>(task)] = kernels.spin_fma(rounds); });
    if (seconds < window_seconds) {
      rounds *= 2;
      continue;
    }
    double sum = 0;
    for (double gflop : done) sum += gflop;
    best = std::max(best, sum / seconds);
    ++window;
  }
  return best;
}

double read_gbytes(ThreadPool& pool) {
  constexpr std::size_t kBytes = std::size_t{96} << 20;  // more than a core's share of any cache we know of
  constexpr int kPasses = 3;
  const Buffer memory(kBytes);
  const auto* words = reinterpret_cast<std::uint64_t*>(memory.data());
  std::fill_n(reinterpret_cast<std::uint64_t*>(memory.data()), kBytes / 8, std::uint64_t{1});
  const std::size_t share = kBytes / 8 / static_cast<std::size_t>(pool.threads());
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(pool.threads()) * 16);
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double seconds = seconds_of(pool, [&](Index task, int) {
      const std::uint64_t* begin = words + static_cast<std::size_t>(task) * share;
      std::uint64_t s[8] = {};
      for (std::size_t n = 0; n + 8 <= share; n += 8)
        for (std::size_t lane = 0; lane < 8; ++lane) s[lane] += begin[n + lane];
      // Kept, so that the reads are.
      for (std::uint64_t x : s) sums[static_cast<std::size_t>(task) * 16] += x;
    });
    best = std::max(best, static_cast<double>(kBytes) / 1e9 / seconds);
  }
  return sums[0] > 0 ? best : 0;
}

}  // namespace

double measure_peak(int threads, int windows, double window_seconds) {
  ThreadPool pool(threads);
  return peak_gflops(pool, *cpu::chosen_isa().kernels(), windows, window_seconds);
}

Roofline measure_roofline(int threads) {
  ThreadPool pool(threads);
  const cpu::IsaLevel& level = cpu::chosen_isa();
  return {.peak_gflops = peak_gflops(pool, *level.kernels(), /*windows=*/6, /*window_seconds=*/0.005),
          .read_gbytes = read_gbytes(pool),
          .threads = threads,
          .isa = level.name};
}

}  // namespace headwise
