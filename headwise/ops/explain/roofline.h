// Roofline: what this machine can multiply and read, measured when asked; the ridge between the two.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#pragma GCC visibility push(default)
namespace headwise {

struct Roofline {
  double peak_gflops = 0;  // f32 multiply-adds that never leave the registers, all threads
  double read_gbytes = 0;  // GB/s of reading memory once, all threads
  int threads = 0;
  std::string isa = {};

  /// FLOP per byte above which arithmetic, not memory, sets the pace.
  double ridge() const { return read_gbytes > 0 ? peak_gflops / read_gbytes : 0; }
};

/// GFLOP/s of f32 multiply-adds that never leave the registers: the best of `windows` windows, each at least
/// `window_seconds` long, on `threads` threads of its own. For benchmarks that want a longer look than below.
double measure_peak(int threads, int windows, double window_seconds);

/// About 100 ms on `threads` threads of its own: the best of several short windows, each roof alone.
Roofline measure_roofline(int threads);

}  // namespace headwise
#pragma GCC visibility pop
