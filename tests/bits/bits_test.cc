// The same bits whatever the repeats, threads, neighbours, chunks, layouts and probes; compared as integers.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "tests/support/online.h"
#include "tests/support/setting/setting_pose.h"

namespace headwise::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRepeats = 50;
#else
constexpr int kRepeats = 1000;
#endif
constexpr DType kHalves[] = {DType::f32, DType::bf16, DType::f16};

/// A run with every score term, so that each of them stands in the promise.
struct Full : CaseRun {
  Tensor scale, slopes, bias, relative, sinks, gate, ids;
  Mask mask;
  explicit Full(const Case& c, std::uint64_t seed = 1) : CaseRun(c, seed) {
    scale = filled(c.heads, 0.3), slopes = filled(c.heads, 0.05), sinks = filled(c.heads, 0.5);
    bias = random_normal({1, c.heads, 1, c.kv_tokens}, DType::f32, 7);
    relative = random_normal({16, c.heads}, DType::f32, 8);
    gate = random_normal({c.batch, c.q_tokens, c.heads}, DType::f32, 9);
    ids = tensor_of(random_integers(c.batch, 0, 99, 3));
    mask = Mask::causal() & (Mask::window(100, 0) | Mask::strided(9, 2));
    args.inputs = {.scale = scale.view(),
                   .softcap = 20,
                   .slopes = slopes.view(),
                   .bias = bias.view(),
                   .relative = relative.view(),
                   .buckets = {.buckets = 16, .max_distance = 90, .bidirectional = true},
                   .sinks = sinks.view(),
                   .gate = gate.view(),
                   .dropout = 0.1,
                   .seed = 5,
                   .sequence_ids = ids.view()};
    args.mask = mask.set();
  }
};

TEST(Bits, TheComparisonSeesOneBit) {
  CaseRun r({.name = "bit"});
  Tensor before = r.q.clone();
  EXPECT_TRUE(same_bits(before, r.q));
  *reinterpret_cast<unsigned char*>(r.q.values<float>().data()) ^= 1;
  EXPECT_FALSE(same_bits(before, r.q));
}

/// R094: batch 60, since a lost update needs many tasks at once to show.
TEST(Bits, R094_AThousandRepeats) {
  each_level([] {
    Full r({.name = "repeat",
            .batch = 60,
            .q_tokens = 5,
            .kv_tokens = 40,
            .heads = 3,
            .kv_heads = 1,
            .head_dim = 8,
            .value_dim = 8});
    attention(r.args, online(3));
    Tensor out = r.out.clone(), lse = r.lse.clone();
    for (int n = 0; n < kRepeats; ++n) {
      poison(r.out), poison(r.lse);
      attention(r.args, online(3));
      ASSERT_TRUE(same_bits(out, r.out)) << "repeat " << n;
      ASSERT_TRUE(same_bits(lse, r.lse)) << "repeat " << n;
    }
  });
}

TEST(Bits, AnyNumberOfThreads) {
  each_level([] {
    for (const DType dtype : kHalves) {
      Full r(with_dtype({.name = "threads",
                         .batch = 2,
                         .q_tokens = 140,
                         .kv_tokens = 270,
                         .heads = 6,
                         .kv_heads = 2,
                         .head_dim = 33,
                         .value_dim = 40},
                        dtype));
      Tensor columns(DType::f32, {2, 6, 270});
      r.args.probe.column_sums = columns.view();
      const ProbeSpec probe{.columns = true};
      attention(r.args, online(1), probe);
      Tensor out = r.out.clone(), lse = r.lse.clone(), sums = columns.clone();
      for (const int threads : {2, 3, 4, 7, 8, 16}) {
        poison(r.out), poison(r.lse), poison(columns);
        attention(r.args, online(threads), probe);
        EXPECT_TRUE(same_bits(out, r.out)) << dtype << " " << threads;
        EXPECT_TRUE(same_bits(lse, r.lse)) << dtype << " " << threads;
        EXPECT_TRUE(same_bits(sums, columns)) << dtype << " " << threads;
      }
    }
  });
}

/// A sequence alone, and the same at every place of ragged batches of random neighbours.
TEST(Bits, AloneOrInsideARandomBatch) {
  each_level([] {
    const Index tokens = 45, heads = 4;
    for (const DType dtype : kHalves) {
      const Case own = with_dtype({.name = "own",
                                   .q_tokens = tokens,
                                   .kv_tokens = tokens,
                                   .heads = heads,
                                   .kv_heads = 2,
                                   .head_dim = 24,
                                   .value_dim = 16},
                                  dtype);
      Full alone(own);
      alone.args.inputs.bias = {};
      alone.ids.values<std::int64_t>()[0] = 42;
      attention(alone.args, online(1));
      for (std::uint64_t trial = 0; trial < 6; ++trial) {
        std::vector<Index> lengths = random_integers(5, 0, 70, trial + 100), ids(5, 7);
        const auto at = static_cast<std::size_t>(trial % 5);
        lengths[at] = tokens, ids[at] = 42;
        const std::vector<Index> offsets = offsets_of(lengths);
        Case c = own;
        c.q_tokens = c.kv_tokens = offsets.back();
        Full all(c, 500 + trial);
        const Index first = offsets[at];
        const auto copy = [&](Tensor& to, const Tensor& from) {
          const auto bytes = static_cast<std::size_t>(to.view().step[1] * size_of(dtype));
          std::memcpy(static_cast<std::byte*>(to.view().data) + static_cast<std::size_t>(first) * bytes,
                      from.view().data, static_cast<std::size_t>(tokens) * bytes);
        };
        copy(all.q, alone.q), copy(all.k, alone.k), copy(all.v, alone.v);
        for (Index n = 0; n < tokens * heads; ++n)
          all.gate.values<float>()[static_cast<std::size_t>(first * heads + n)] =
              alone.gate.values<float>()[static_cast<std::size_t>(n)];
        Tensor where = tensor_of(offsets), sequence_ids = tensor_of(ids);
        all.args.q_offsets = all.args.kv_offsets = where.view();
        all.args.inputs.bias = {};
        all.args.inputs.sequence_ids = sequence_ids.view();
        attention(all.args, online(3));
        EXPECT_TRUE(same_bits(tokens_of(all.out.view(), first, tokens), alone.out.view()))
            << dtype << " trial " << trial;
        for (Index h = 0; h < heads; ++h)
          EXPECT_EQ(std::memcmp(all.lse.values<float>().data() + h * c.q_tokens + first,
                                alone.lse.values<float>().data() + h * tokens,
                                static_cast<std::size_t>(tokens) * 4),
                    0)
              << dtype << " trial " << trial;
      }
    }
  });
}

/// Rows [begin, end) against the keys that exist by then, as a chunk of a prefill or a decode step.
void expect_chunk_is_part(Full& whole, const Tensor& out, const Tensor& lse, Index begin, Index end) {
  AttentionArgs a = whole.args;
  Tensor start = tensor_of(std::vector<Index>{begin});
  a.q = tokens_of(a.q, begin, end - begin), a.k = tokens_of(a.k, 0, end), a.v = tokens_of(a.v, 0, end);
  a.q_start = start.view();
  a.inputs.gate = tokens_of(a.inputs.gate, begin, end - begin);
  a.inputs.bias.size[3] = end;
  const InputView& o = out.view();
  Tensor part(o.dtype, {o.size[0], end - begin, o.size[2], o.size[3]}),
      part_lse(DType::f32, {o.size[0], o.size[2], end - begin});
  poison(part), poison(part_lse);
  a.out = part.view(), a.lse = part_lse.view();
  attention(a, online());
  const auto row = static_cast<std::size_t>(o.step[1] * size_of(o.dtype));
  for (Index b = 0; b < o.size[0]; ++b) {
    EXPECT_EQ(
        std::memcmp(
            static_cast<std::byte*>(part.view().data) + static_cast<std::size_t>(b * (end - begin)) * row,
            static_cast<std::byte*>(o.data) + static_cast<std::size_t>(b * o.size[1] + begin) * row,
            static_cast<std::size_t>(end - begin) * row),
        0)
        << o.dtype << " rows " << begin << ".." << end;
    for (Index h = 0; h < o.size[2]; ++h)
      EXPECT_EQ(std::memcmp(part_lse.values<float>().data() + (b * o.size[2] + h) * (end - begin),
                            lse.values<float>().data() + (b * o.size[2] + h) * o.size[1] + begin,
                            static_cast<std::size_t>(end - begin) * 4),
                0)
          << o.dtype << " rows " << begin << ".." << end;
  }
}

TEST(Bits, ChunkedOrWholePrefill) {
  each_level([] {
    for (const DType dtype : kHalves) {
      const Index tokens = 290;
      Full whole(with_dtype({.name = "chunks",
                             .batch = 2,
                             .q_tokens = tokens,
                             .kv_tokens = tokens,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 20,
                             .value_dim = 33},
                            dtype));
      attention(whole.args, online());
      for (const Index chunk : {1, 7, 32, 100, 256})
        for (Index begin = 0; begin < tokens; begin += chunk) {
          if (chunk == 1 && begin % 3 != 0 && begin < 250)
            continue;  // single tokens: a third of them, and all around the granule
          expect_chunk_is_part(whole, whole.out, whole.lse, begin, min_of(begin + chunk, tokens));
        }
    }
  });
}

/// The same across the split: one fold, then two.
TEST(Bits, R085_DecodeIsPrefillAcrossSplits) {
  each_level([] {
    for (const DType dtype : kHalves) {
      const Index tokens = 4200;
      Full whole(with_dtype({.name = "splits",
                             .q_tokens = tokens,
                             .kv_tokens = tokens,
                             .heads = 1,
                             .kv_heads = 1,
                             .head_dim = 8,
                             .value_dim = 8},
                            dtype));
      whole.args.mask = {};
      const MaskView causal = MaskView::causal();
      whole.args.mask = {&causal, 1};
      attention(whole.args, online());
      for (const Index at : {0, 1, 255, 256, 2047, 2048, 2049, 2303, 2304, 4095, 4096, 4097, 4199})
        expect_chunk_is_part(whole, whole.out, whole.lse, at, at + 1);
      for (const Index at : {2000, 2040, 4090})
        expect_chunk_is_part(whole, whole.out, whole.lse, at, at + 17);
    }
  });
}

TEST(Bits, R105_AnyVerifyWidth) {
  each_level([] {
    Full whole({.name = "width",
                .batch = 3,
                .q_tokens = 300,
                .kv_tokens = 300,
                .heads = 4,
                .kv_heads = 1,
                .head_dim = 64,
                .value_dim = 64});
    attention(whole.args, online());
    for (Index width = 1; width <= 16; ++width)
      expect_chunk_is_part(whole, whole.out, whole.lse, 300 - width, 300);
  });
}

/// R050, R052, R053, R055, R058, R059: the layout matrix, q, k and v each in another form.
TEST(Bits, R050_R052_R053_R055_R058_R059_AnyLayout) {
  const std::pair<const char*, Placement> ways[] = {
      {"bhsd", {.order = {0, 2, 1, 3}}},
      {"sbhd", {.order = {1, 0, 2, 3}}},
      {"dim first", {.order = {3, 0, 2, 1}}},
      {"step 2", {.inner = 2}},
      {"step 3 gaps", {.inner = 3, .gap = 7, .first = 1}},
      {"gap 1", {.gap = 1}},
      {"shift 1", {.first = 1}},
      {"shift 3", {.gap = 5, .first = 3}},
      {"shift 15", {.first = 15}},
      {"junk", {.junk = true}},
  };
  each_level([&] {
    for (const DType dtype : kHalves)
      for (const Index batch : {1, 2}) {
        Full plain(with_dtype({.name = "layout",
                               .batch = batch,
                               .q_tokens = 35,
                               .kv_tokens = 41,
                               .heads = batch == 1 ? 1 : 4,
                               .kv_heads = batch == 1 ? 1 : 2,
                               .head_dim = 20,
                               .value_dim = 33},
                              dtype));
        attention(plain.args, online());
        for (const auto& [name, way] : ways)
          for (int which = 0; which < 8; ++which) {  // bits: q, k, v
            if (which == 0) continue;
            AttentionArgs a = plain.args;
            const Placed q = place(a.q, way), k = place(a.k, way), v = place(a.v, way);
            if (which & 1) a.q = q.view;
            if (which & 2) a.k = k.view;
            if (which & 4) a.v = v.view;
            const Placed out = place(plain.out.view(), way);
            poison(out.memory);
            a.out = out.view;
            attention(a, online());
            EXPECT_TRUE(same_bits(converted(out.view, dtype), plain.out))
                << name << " " << which << " " << dtype;
          }
      }
  });
}

TEST(Bits, ProbesDoNotTouchTheOutput) {
  each_level([] {
    for (const DType dtype : kHalves) {
      const Index q = 40, kv = 2300;
      Full r(
          with_dtype({.name = "probes", .q_tokens = q, .kv_tokens = kv, .heads = 2, .kv_heads = 1}, dtype));
      Tensor start = tensor_of(std::vector<Index>{kStartEnd});
      r.args.q_start = start.view();
      attention(r.args, online());
      Tensor out = r.out.clone(), lse = r.lse.clone();
      Tensor f[5], position(DType::i64, {1, 2, q}), keys(DType::i64, {1, 2, q, 3}),
          weights(DType::f32, {1, 2, q, 3});
      for (Tensor& t : f) t = Tensor(DType::f32, {1, 2, q});
      r.args.probe = {.entropy = f[0].view(),
                      .top_weight = f[1].view(),
                      .second_moment = f[2].view(),
                      .mean_distance = f[3].view(),
                      .sink_mass = f[4].view(),
                      .top_position = position.view(),
                      .top_keys = keys.view(),
                      .top_weights = weights.view()};
      attention(r.args, online(), {.rows = true, .top_k = 3});
      EXPECT_TRUE(same_bits(out, r.out)) << dtype;
      EXPECT_TRUE(same_bits(lse, r.lse)) << dtype;
    }
  });
}

}  // namespace
}  // namespace headwise::test
