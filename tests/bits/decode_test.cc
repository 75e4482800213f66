// cpu/decode has the bits of cpu/online: every dtype, score term, mask, width, split, thread count and ISA
// level.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "tests/support/decode.h"

namespace headwise::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};

/// Every score term at once, and none of them.
struct Terms {
  Tensor scale, slopes, bias, relative, sinks, gate;
  explicit Terms(const Case& c)
      : scale(filled(c.heads, 0.3)),
        slopes(filled(c.heads, 0.05)),
        bias(random_normal({1, c.heads, 1, c.kv_tokens}, DType::f32, 7)),
        relative(random_normal({16, c.heads}, DType::f32, 8)),
        sinks(filled(c.heads, 0.5)),
        gate(random_normal({c.batch, c.q_tokens, c.heads}, DType::f32, 9)) {}
  HeadInputs all() const {
    return {.scale = scale.view(),
            .softcap = 20,
            .slopes = slopes.view(),
            .bias = bias.view(),
            .relative = relative.view(),
            .buckets = {.buckets = 16, .max_distance = 90, .bidirectional = true},
            .sinks = sinks.view(),
            .gate = gate.view(),
            .dropout = 0.1,
            .seed = 5};
  }
};
/// The last query meets the last key.
const Tensor& at_end() {
  static Tensor start = tensor_of(std::vector<Index>{kStartEnd});
  return start;
}

TEST(DecodeBits, AnyWidthOfQueriesAndHeads) {
  each_level([] {
    for (const DType dtype : kFloats)
      for (const Index q_tokens : {1, 2, 3, 5, 16})
        for (const Index group : {1, 4, 7}) {
          const Case c = with_dtype({.name = "width",
                                     .q_tokens = q_tokens,
                                     .kv_tokens = 700,
                                     .heads = 2 * group,
                                     .kv_heads = 2,
                                     .head_dim = 64,
                                     .value_dim = 32},
                                    dtype);
          CaseRun r(c);
          r.args.q_start = at_end().view();
          const Mask causal = Mask::causal();
          r.args.mask = causal.set();
          expect_decode_is_online_both(r, text(c));
        }
  });
}

TEST(DecodeBits, AnyHeadWidth) {
  each_level([] {
    for (const DType dtype : kFloats)
      for (const Index dim : {1, 5, 8, 16, 33, 80, 128, 576}) {
        const Case c = with_dtype({.name = "dim",
                                   .q_tokens = 2,
                                   .kv_tokens = 513,
                                   .heads = 3,
                                   .kv_heads = 1,
                                   .head_dim = dim,
                                   .value_dim = dim == 576 ? 512 : dim},
                                  dtype);
        CaseRun r(c);
        expect_decode_is_online_both(r, text(c));
      }
  });
}

TEST(DecodeBits, EveryTermAcrossSplits) {
  each_level([] {
    for (const DType dtype : kFloats)
      for (const Index kv_tokens : {512, 2047, 2048, 2049, 4100}) {
        const Case c = with_dtype({.name = "terms",
                                   .batch = 2,
                                   .q_tokens = 3,
                                   .kv_tokens = kv_tokens,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 16,
                                   .value_dim = 16},
                                  dtype);
        CaseRun r(c);
        const Terms terms(c);
        r.args.q_start = at_end().view();
        expect_decode_is_online_both(r, text("plain ", c));
        r.args.inputs = terms.all();
        const Mask mask = Mask::causal() & (Mask::window(1500, 0) | Mask::strided(9, 2));
        r.args.mask = mask.set();
        expect_decode_is_online_both(r, text("terms ", c));
        const Mask far = Mask::causal() & Mask::window(40, 0);  // whole splits are closed
        r.args.mask = far.set();
        expect_decode_is_online_both(r, text("window ", c));
      }
  });
}

/// The last keys fill no block of 16, some no vector; one row and several read them.
TEST(DecodeBits, EveryNumberOfLastKeys) {
  each_level([] {
    for (Index kv_tokens = 1; kv_tokens < 36; ++kv_tokens)
      for (const Index q_tokens : {1, 2, 4}) {
        CaseRun r({.name = "last",
                   .q_tokens = q_tokens,
                   .kv_tokens = kv_tokens,
                   .heads = 1,
                   .head_dim = 16,
                   .value_dim = 16});
        expect_decode_is_online_both(r, text(q_tokens, " rows, ", kv_tokens, " keys"));
      }
  });
}

/// Lengths end inside a granule, at a split, before the first key; memory past them is NaN.
TEST(DecodeBits, LengthsAndRaggedBatches) {
  each_level([] {
    for (const DType dtype : kFloats) {
      const Case c = with_dtype({.name = "lengths",
                                 .batch = 5,
                                 .q_tokens = 1,
                                 .kv_tokens = 2500,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 32,
                                 .value_dim = 32},
                                dtype);
      const std::vector<Index> lengths = {2500, 2048, 1, 0, 777};
      CaseRun r(c);
      const Mask mask = Mask::lengths(lengths);
      r.args.mask = mask.set();
      expect_decode_is_online_both(r, "lengths");
      attention(r.args, decoding());
      Tensor clean = r.out.clone();
      for (std::size_t b = 0; b < lengths.size(); ++b)
        for (Tensor* t : {&r.k, &r.v})
          for (Index n = lengths[b] * 64; n < 2500 * 64; ++n)
            store_double(t->view().data, dtype, static_cast<Index>(b) * 2500 * 64 + n, kNan);
      poison(r.out);
      attention(r.args, decoding());
      EXPECT_TRUE(same_bits(clean, r.out)) << "poison " << dtype;
      const Packed packed(r.args.k);
      AttentionArgs a = r.args;
      packed.use(a);
      poison(r.out);
      attention(a, decoding());
      EXPECT_TRUE(same_bits(clean, r.out)) << "poison, packed " << dtype;

      CaseRun ragged(with_dtype({.name = "ragged",
                                 .q_tokens = 6,
                                 .kv_tokens = 5326,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 32,
                                 .value_dim = 32},
                                dtype));
      Tensor q_offsets = tensor_of(std::vector<Index>{0, 1, 1, 5, 6}),
             kv_offsets = tensor_of(std::vector<Index>{0, 2500, 2501, 5325, 5326});
      ragged.args.q_offsets = q_offsets.view(), ragged.args.kv_offsets = kv_offsets.view();
      expect_decode_is_online_both(ragged, "ragged");
    }
  });
}

/// NaN and Inf reach the rows that may see them and no other, as in cpu/online.
TEST(DecodeBits, UnusualValues) {
  each_level([] {
    for (const DType dtype : kFloats) {
      CaseRun r(with_dtype({.name = "unusual",
                            .q_tokens = 3,
                            .kv_tokens = 2200,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .value_dim = 32},
                           dtype));
      const auto put = [&](Tensor& t, Index token, Index width, double x) {
        store_double(t.view().data, dtype, token * width + 3, x);
      };
      put(r.v, 100, 64, kNan), put(r.v, 101, 64, kInf), put(r.v, 2100, 64, -kInf), put(r.v, 2198, 64, kInf);
      r.args.q_start = at_end().view();
      const Mask causal = Mask::causal(), near = Mask::causal() & Mask::window(50, 0);
      for (const Mask* mask : {&causal, &near}) {
        r.args.mask = mask->set();
        expect_decode_is_online_both(r, "values");
      }
      put(r.k, 7, 32, kNan), put(r.k, 2150, 32, kInf);
      expect_decode_is_online_both(r, "keys");
    }
  });
}

TEST(DecodeBits, AnyLayout) {
  each_level([] {
    for (const DType dtype : kFloats) {
      CaseRun r(with_dtype({.name = "layout",
                            .batch = 2,
                            .q_tokens = 2,
                            .kv_tokens = 600,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 48,
                            .value_dim = 32},
                           dtype));
      attention(r.args, online());
      Tensor plain = r.out.clone();
      for (const auto& order : {std::array{0, 2, 1, 3}, std::array{3, 0, 2, 1}, std::array{1, 0, 3, 2}}) {
        AttentionArgs a = r.args;
        Tensor moved[2];
        for (int which = 0; which < 2; ++which) {
          AnyView& view = which ? a.v : a.k;
          Index step[4], count = 1;
          for (int n = 3; n >= 0; --n) {
            const auto axis = order[static_cast<std::size_t>(n)];
            step[axis] = count, count *= view.size[axis];
          }
          moved[which] = Tensor(dtype, {count});
          AnyView to = view;
          to.data = moved[which].view().data;
          std::copy_n(step, 4, to.step);
          for (Index n = 0; n < count; ++n) {
            Index rest = n, from = 0, at = 0;
            for (int axis = 3; axis >= 0; --axis) {
              const Index i = rest % view.size[axis];
              rest /= view.size[axis], from += i * view.step[axis], at += i * to.step[axis];
            }
            store_double(to.data, dtype, at, load_double(view.data, dtype, from));
          }
          view = to;
        }
        poison(r.out);
        attention(a, decoding());
        EXPECT_TRUE(same_bits(plain, r.out)) << dtype << " order " << order[0] << order[1] << order[2];
      }
    }
  });
}

/// What the probes of rows and classes write.
struct RowLooks {
  static constexpr ProbeSpec kAsked{.rows = true, .classes = 2};
  Tensor entropy, top, second, distance, sink, mass, key, out;
  std::vector<std::int32_t> classes;

  explicit RowLooks(const AttentionArgs& a, DType dtype = DType::f32)
      : mass(dtype, {a.q.size[0], a.q.size[2], a.q.size[1], 2}),
        key(DType::i64, {a.q.size[0], a.q.size[2], a.q.size[1]}) {
    for (Tensor* t : {&entropy, &top, &second, &distance, &sink})
      *t = Tensor(dtype, {a.q.size[0], a.q.size[2], a.q.size[1]}), poison(*t);
    poison(mass);
    for (Index i = 0; i < a.k.size[0] * a.k.size[1]; ++i)
      classes.push_back(i % a.k.size[1] == 0 ? 0 : i % 5 == 0 ? 1 : -1);
  }
  /// `a` with these probes, run.
  void run(AttentionArgs a, Context& ctx) {
    ProbeOut& o = a.probe;
    o.entropy = entropy.view(), o.top_weight = top.view(), o.second_moment = second.view();
    o.mean_distance = distance.view(), o.sink_mass = sink.view(), o.top_position = key.view();
    o.class_mass = mass.view();
    o.class_of = AnyView::packed(classes.data(), DType::i32, {a.k.size[0], a.k.size[1]});
    attention(a, ctx, kAsked);
  }
  auto all() const { return std::array{&entropy, &top, &second, &distance, &sink, &mass, &key}; }
};
void expect_same_looks(const RowLooks& want, const RowLooks& got, const std::string& what) {
  const char* const names[] = {"entropy", "top", "second", "distance", "sink", "mass", "key"};
  for (std::size_t i = 0; i < want.all().size(); ++i)
    EXPECT_TRUE(same_bits(*want.all()[i], *got.all()[i])) << what << ": " << names[i];
}
/// Probes of cpu/decode: those of cpu/online as integers, beside the bits of a run without them.
void expect_same_probes(CaseRun& r, const std::string& what) {
  RowLooks want(r.args);
  attention(r.args, decoding());
  const Tensor out = r.out.clone();
  want.run(r.args, online());
  for (const int threads : {1, 5}) {
    RowLooks got(r.args);
    poison(r.out);
    got.run(r.args, decoding(threads));
    EXPECT_TRUE(same_bits(out, r.out)) << what << ", threads " << threads;
    expect_same_looks(want, got, text(what, ", threads ", threads));
  }
}

TEST(DecodeBits, ProbesOfRowsAndClasses) {
  each_level([] {
    for (const DType dtype : kFloats)
      for (const Index q_tokens : {1, 3})
        for (const Index kv_tokens : {1, 40, 700, 2049, 4100}) {
          CaseRun r(with_dtype({.name = "probes",
                                .q_tokens = q_tokens,
                                .kv_tokens = kv_tokens,
                                .heads = 6,
                                .kv_heads = 2,
                                .head_dim = 16,
                                .value_dim = 16},
                               dtype));
          const std::string what = text(dtype, " ", q_tokens, " rows, ", kv_tokens, " keys");
          r.args.q_start = at_end().view();
          const Mask causal = Mask::causal(),
                     some = Mask::causal() & (Mask::window(300, 0) | Mask::prefix(2));
          r.args.mask = causal.set();
          expect_same_probes(r, what);
          const Terms terms({.name = "", .q_tokens = q_tokens, .kv_tokens = kv_tokens, .heads = 6});
          r.args.inputs = terms.all();
          r.args.mask = some.set();
          expect_same_probes(r, what + ", terms");
          r.args.inputs = {};
          const Quantized eight(r.args.k, r.args.v);
          eight.use(r.args);
          expect_same_probes(r, what + ", eight bits");
        }
  });
}

/// A granule that is worked on twice counts once.
TEST(DecodeBits, ProbesBesideUnusualValues) {
  each_level([] {
    CaseRun r({.name = "unusual",
               .q_tokens = 3,
               .kv_tokens = 2200,
               .heads = 4,
               .kv_heads = 2,
               .head_dim = 16,
               .value_dim = 32});
    for (const Index token : {100, 2100, 2198})
      store_double(r.v.view().data, DType::f32, token * 64 + 3, token == 100 ? kNan : kInf);
    r.args.q_start = at_end().view();
    const Mask causal = Mask::causal(), near = Mask::causal() & Mask::window(50, 0);
    for (const Mask* mask : {&causal, &near}) {
      r.args.mask = mask->set();
      expect_same_probes(r, "values");
    }
  });
}

TEST(Decode, ProbesAreThoseOfRef) {
  each_level([] {
    CaseRun r({.name = "ref",
               .batch = 2,
               .q_tokens = 2,
               .kv_tokens = 2300,
               .heads = 6,
               .kv_heads = 2,
               .head_dim = 32,
               .value_dim = 32});
    r.args.q_start = at_end().view();
    const Mask causal = Mask::causal();
    r.args.mask = causal.set();
    Tensor sinks = filled(6, 0.5);
    r.args.inputs.sinks = sinks.view();
    RowLooks got(r.args), truth(r.args, DType::f64);
    got.run(r.args, decoding(5));
    const Tensor q = converted(r.args.q, DType::f64), k = converted(r.args.k, DType::f64),
                 v = converted(r.args.v, DType::f64);
    Tensor out(DType::f64, {2, 2, 6, 32});
    AttentionArgs wide = r.args;
    wide.q = q.view(), wide.k = k.view(), wide.v = v.view(), wide.out = out.view(), wide.lse = {};
    truth.run(wide, reference());
    const auto got_all = got.all(), want = truth.all();
    for (std::size_t i = 0; i + 1 < want.size(); ++i)
      for (Index n = 0; n < want[i]->view().count(); ++n) {
        const double x = want[i]->values<double>()[static_cast<std::size_t>(n)];
        EXPECT_NEAR(got_all[i]->values<float>()[static_cast<std::size_t>(n)], x, 2e-6 * std::fabs(x) + 1e-9)
            << "probe " << i << " of row " << n;
      }
    EXPECT_TRUE(same_bits(truth.key, got.key));
  });
}

/// The plan takes decode where it can and says why where it cannot.
TEST(Decode, ThePlanChoosesAndRefuses) {
  CaseRun r({.name = "plan", .q_tokens = 16, .kv_tokens = 512});
  EXPECT_STREQ(AttentionPlan(problem_of(r.args), Context({.threads = 1})).kernel(), "cpu/decode");
  CaseRun many({.name = "plan", .q_tokens = 17, .kv_tokens = 512});
  const AttentionPlan next(problem_of(many.args), Context({.threads = 1}));
  EXPECT_STREQ(next.kernel(), "cpu/online");
  ASSERT_EQ(next.refusals().size(), 1u);
  EXPECT_EQ(next.refusals()[0].why, "q_tokens is 17: decode takes up to 16");
  EXPECT_EQ(next.numerics(), AttentionPlan(problem_of(r.args), Context({.threads = 1})).numerics());
  CaseRun brief({.name = "plan", .kv_tokens = 3});
  EXPECT_STREQ(AttentionPlan(problem_of(brief.args), Context({.threads = 1})).kernel(), "cpu/decode");
  CaseRun rows({.name = "plan", .kv_tokens = 511, .heads = 80});
  const std::string why = AttentionPlan(problem_of(rows.args), Context({.threads = 1})).refusals()[0].why;
  EXPECT_EQ(why.find("kv_tokens is 511 and 80 query rows meet each key: below 512 keys cpu/online, which "
                     "packs keys, is sooner done"),
            0u)
      << why;
  const AttentionPlan watched(problem_of(r.args, {.rows = true, .classes = 3}), Context({.threads = 1}));
  EXPECT_STREQ(watched.kernel(), "cpu/decode");
  for (const ProbeSpec& probe : {ProbeSpec{.top_k = 2}, ProbeSpec{.columns = true}, ProbeSpec{.picked = 1}})
    EXPECT_EQ(AttentionPlan(problem_of(r.args, probe), Context({.threads = 1})).refusals()[0].why,
              "of probes this kernel gathers those of rows and classes; cpu/online gathers the others");
}

}  // namespace
}  // namespace headwise::test
