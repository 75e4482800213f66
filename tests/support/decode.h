// Decode: contexts that allow cpu/decode alone, and a run held to the bits of cpu/online.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tests/support/online.h"

namespace headwise::test {

/// One context a thread count, kept, whose only kernel is cpu/decode.
inline Context& decoding(int threads = 2) {
  static Context* contexts[65] = {};
  if (!contexts[threads]) contexts[threads] = new Context({.threads = threads, .kernels = "cpu/decode"});
  return *contexts[threads];
}

/// Runs on cpu/online into r.out and r.lse, then on cpu/decode with 1, 2 and 5 threads: the same bits.
inline void expect_decode_is_online(CaseRun& r, const std::string& what) {
  poison(r.out), poison(r.lse);
  attention(r.args, online(1));
  const Tensor out = r.out.clone(), lse = r.lse.clone();
  for (const int threads : {1, 2, 5}) {
    poison(r.out), poison(r.lse);
    attention(r.args, decoding(threads));
    EXPECT_TRUE(same_bits(out, r.out)) << what << " threads " << threads;
    EXPECT_TRUE(same_bits(lse, r.lse)) << what << " lse, threads " << threads;
  }
}

}  // namespace headwise::test
