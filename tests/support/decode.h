// Decode: contexts that allow cpu/decode alone, and a run held to the bits of cpu/online.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/context.h"
#include "headwise/ops/keys/packed_keys.h"
#include "headwise/ops/keys/quantize_kv.h"
#include "tests/support/online.h"

namespace headwise::test {

/// One context a thread count, kept, whose only kernel is cpu/decode.
inline Context& decoding(int threads = 2) {
  static Context* contexts[65] = {};
  if (!contexts[threads]) contexts[threads] = new Context({.threads = threads, .kernels = "cpu/decode"});
  return *contexts[threads];
}

/// Keys of a run packed into a buffer with `spare` tokens of room left; the rest of it is NaN (i8: -1).
struct Packed {
  PackedKeys about;
  Tensor buffer;
  Packed(const InputView& k, Index spare = 0)
      : about(packed_keys(k.dtype, k.size[2], k.size[3], k.size[1] + spare)),
        buffer(k.dtype, {k.size[0], k.size[2], about.room()}) {
    poison(buffer);
    pack_keys(k, buffer.view(), about, online());
  }
  void use(AttentionArgs& a) const { a.k = buffer.view(), a.packed = about; }
};
inline constexpr DType kEightBits[] = {DType::i8, DType::e4m3};
/// k and v of a run as int8 or e4m3 with their scales.
struct Quantized {
  Tensor k, v, k_scale, v_scale;
  Quantized(const InputView& from_k, const InputView& from_v, DType dtype = DType::i8) {
    const auto make = [dtype](const InputView& x, Tensor& to, Tensor& scale) {
      to = Tensor(dtype, {x.size[0], x.size[1], x.size[2], x.size[3]});
      scale = Tensor(DType::f32, {x.size[0], x.size[1], x.size[2]});
      quantize_kv(x, to.view(), scale.view(), online());
    };
    make(from_k, k, k_scale), make(from_v, v, v_scale);
  }
  void use(AttentionArgs& a) const {
    a.k = k.view(), a.v = v.view(), a.k_scale = k_scale.view(), a.v_scale = v_scale.view();
  }
};

/// Runs on cpu/online with plain keys into r.out and r.lse, then on cpu/decode with 1, 2 and 5 threads and,
/// unless the batch is ragged, with packed keys on both: the same bits.
inline void expect_decode_is_online(CaseRun& r, const std::string& what) {
  poison(r.out), poison(r.lse);
  attention(r.args, online(1));
  Tensor out = r.out.clone(), lse = r.lse.clone();
  const auto expect_same = [&](const AttentionArgs& a, Context& ctx, const char* way) {
    poison(r.out), poison(r.lse);
    attention(a, ctx);
    EXPECT_TRUE(same_bits(out, r.out)) << what << ", " << way << ", threads " << ctx.threads();
    EXPECT_TRUE(same_bits(lse, r.lse)) << what << ", " << way << ", lse, threads " << ctx.threads();
  };
  for (const int threads : {1, 2, 5}) expect_same(r.args, decoding(threads), "plain");
  if (r.args.q_offsets.given()) return;
  const Packed packed(r.args.k, 3);
  AttentionArgs a = r.args;
  packed.use(a);
  for (const int threads : {1, 5}) expect_same(a, decoding(threads), "packed");
  expect_same(a, online(2), "packed, prefill");
}
/// The same for f32, bf16 and f16 as they are and with KV of 8 bits.
inline void expect_decode_is_online_both(CaseRun& r, const std::string& what) {
  expect_decode_is_online(r, what);
  const AttentionArgs before = r.args;
  for (const DType dtype : kEightBits) {
    const Quantized eight(before.k, before.v, dtype);
    eight.use(r.args);
    expect_decode_is_online(r, what + text(", kv ", dtype));
  }
  r.args = before;
}

}  // namespace headwise::test
