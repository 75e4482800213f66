// Decode against prefill, bit by bit: plain and packed keys, KV of 8 bits, threads, lengths, across the
// split.
#include "headwise/ops/keys/packed_keys.h"
#include "headwise/ops/keys/quantize_kv.h"
#include "tests/selftest/check.h"

namespace headwise::selftest {
namespace {

/// One run of `args` with fresh outputs.
Outputs attend(AttentionArgs a, const char* kernels, int threads) {
  Outputs o;
  o.out = Tensor(a.q.dtype, {a.q.size[0], a.q.size[1], a.q.size[2], a.v.size[3]});
  o.lse = Tensor(DType::f32, {a.q.size[0], a.q.size[2], a.q.size[1]});
  a.out = o.out.view(), a.lse = o.lse.view();
  attention(a, context(kernels, threads));
  return o;
}

void ways(const AttentionArgs& plain, const std::string& what) {
  const Outputs first = attend(plain, "cpu/online", 1);
  const auto hold = [&](const AttentionArgs& a, const char* kernels, int threads, const char* way) {
    const Outputs o = attend(a, kernels, threads);
    check(same_bits(o.out, first.out) && same_bits(o.lse, first.lse), text("decode ", way), what);
  };
  hold(plain, "cpu/decode", 1, "plain");
  hold(plain, "cpu/decode", 3, "plain, 3 threads");
  const InputView& k = plain.k;
  PackedKeys about = packed_keys(k.dtype, k.size[2], k.size[3], k.size[1] + 5);
  Tensor buffer(k.dtype, {k.size[0], k.size[2], about.room()});
  Context& ctx = context("", 2);
  AnyView most = k, last = k;
  most.size[1] -= 3, last.size[1] = 3;
  last.data = static_cast<std::byte*>(k.data) + most.size[1] * k.step[1] * size_of(k.dtype);
  pack_keys(most, buffer.view(), about, ctx);
  append_keys(last, buffer.view(), about, ctx);
  AttentionArgs packed = plain;
  packed.k = buffer.view(), packed.packed = about;
  hold(packed, "cpu/decode", 1, "packed");
  hold(packed, "cpu/decode", 3, "packed, 3 threads");
  hold(packed, "cpu/online", 2, "packed prefill");
}

void both(const Setup& s) {
  const Inputs in = make_inputs(s);
  ways(in.args(), describe(s));
  for (const DType dtype : {DType::i8, DType::e4m3}) {
    AttentionArgs a = in.args();
    Tensor data[2], scale[2];
    for (int n = 0; n < 2; ++n) {
      AnyView& v = n == 0 ? a.k : a.v;
      data[n] = Tensor(dtype, {v.size[0], v.size[1], v.size[2], v.size[3]});
      scale[n] = Tensor(DType::f32, {v.size[0], v.size[1], v.size[2]});
      quantize_kv(v, data[n].view(), scale[n].view(), context("", 2));
      v = data[n].view(), (n == 0 ? a.k_scale : a.v_scale) = scale[n].view();
    }
    ways(a, describe(s) + text(", kv ", dtype));
  }
}

}  // namespace

void check_decode(const Options& options) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Index q_tokens : {Index{1}, Index{5}})
      for (const Index kv_tokens : {Index{530}, Index{2090}}) {
        if (options.quick && (q_tokens == 1) == (kv_tokens == 530)) continue;
        Setup s{.dtype = dtype,
                .batch = 2,
                .q_tokens = q_tokens,
                .kv_tokens = kv_tokens,
                .heads = 6,
                .kv_heads = 2,
                .head_dim = 40,
                .value_dim = 32,
                .mask = "causal",
                .q_start = kv_tokens - q_tokens};
        piece("decode", [&] { both(s); });
        s.mask = "causal & window(70, 0)";
        s.terms = {
            .softcap = true, .alibi = true, .bias = true, .sinks = true, .dropout = true, .gate = true};
        piece("decode", [&] { both(s); });
      }
}

}  // namespace headwise::selftest
