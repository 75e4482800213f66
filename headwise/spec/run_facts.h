// RunFacts: what the kernels of a device with streams choose by besides sizes and kinds: a run's mask, scale,
// positions and memory as plain numbers, so that a plan can be kept and found again.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "headwise/base/index.h"

namespace headwise {

/// All 0: no mask, the usual scale, positions from 0 on, memory as fresh tensors have it. Problems of the CPU
/// leave it so: its kernels take every mask, scale and step.
struct RunFacts {
  enum View { q, k, v, out, dout, dq, dk, dv, kViews };
  std::uint8_t unfit[kViews] = {};  // what bulk copies miss in each view, a cuda::CopyNeed
  std::uint8_t mask = 0;            // why the mask is no single band of keys, a cuda::BandForm
  std::uint8_t scales = 0;          // 0: none given; 1: one for all heads; 2: one a head
  bool large_scale = false, no_positive_scale = false;  // of one scale: 10,000 and more; 0 or below
  bool large_softcap = false;                           // above 4096
  bool far = false;                                     // a query or key stands past 2^29
  bool apart = false;                                   // sequences differ in place, length or start
  bool wide_bias = false;                               // the bias is f64
  bool large_table = false;                             // a page table reaches past 2^29 entries
  bool listed_there = false;                            // row lists lie on the device
  Index mask_bytes = 0;                                 // that travel with a launch
  Index pieces = 0;                      // parts a documents mask cuts a sequence into; 0: there is none
  Index block_rows = 0, block_keys = 0;  // of a blocks mask; block_keys 0: there is none
  Index buckets = 0, max_distance = 0;   // of relative positions
  Index padded_q = 0, padded_kv = 0;     // gradients: rows of all sequences, each rounded up to 128

  friend constexpr bool operator==(const RunFacts&, const RunFacts&) = default;
};

}  // namespace headwise
