// Keys in pages: the bits of keys in one piece, whatever the pages' size, order, layout and threads; bad
// tables are refused in words.
// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "tests/base/sentence.h"
#include "tests/support/decode.h"

namespace headwise::test {
namespace {

/// Sequences of different lengths, their keys once in one piece and once in pages: `apart` from the last
/// one, NaN wherever no token lies, heads inside tokens or tokens inside heads.
struct Paged {
  std::vector<Index> lengths;
  Index size, each, pages;
  Tensor k, v, k_scale, v_scale;
  std::vector<std::int32_t> table;

  Paged(const AttentionArgs& from, std::vector<Index> tokens, Index page_size, bool by_head, Index apart = 7)
      : lengths(std::move(tokens)), size(page_size) {
    const Index batch = from.k.size[0];
    each = ceil_div(from.k.size[1], size) + 1, pages = batch * each + 2;
    while (pages % 7 == 0) ++pages;  // so that steps of 7 or 1 meet every page once
    table.assign(static_cast<std::size_t>(batch * each), -9);
    for (Index b = 0; b < batch; ++b)
      for (Index i = 0; i * size < lengths[static_cast<std::size_t>(b)]; ++i)
        table[static_cast<std::size_t>(b * each + i)] =
            static_cast<std::int32_t>((apart * (b * each + i) + 3) % pages);
    k = pool_of(from.k, by_head), v = pool_of(from.v, by_head);
    if (from.k_scale.given())
      k_scale = pool_of(from.k_scale, by_head), v_scale = pool_of(from.v_scale, by_head);
  }
  Tensor pool_of(const InputView& x, bool by_head) {
    const Index dim = x.rank == 4 ? x.size[3] : 1;  // scales have none
    Tensor pool = by_head ? Tensor(x.dtype, {pages, x.size[2], size, dim})
                          : Tensor(x.dtype, {pages, size, x.size[2], dim});
    poison(pool);
    const AnyView to = turned(pool.view(), by_head);
    for (Index b = 0; b < x.size[0]; ++b)
      for (Index t = 0; t < lengths[static_cast<std::size_t>(b)]; ++t)
        for (Index h = 0; h < x.size[2]; ++h)
          for (Index c = 0; c < dim; ++c) {
            const Index page = table[static_cast<std::size_t>(b * each + t / size)];
            store_double(
                to.data, x.dtype, page * to.step[0] + t % size * to.step[1] + h * to.step[2] + c * to.step[3],
                load_double(x.data, x.dtype, b * x.step[0] + t * x.step[1] + h * x.step[2] + c * x.step[3]));
          }
    return pool;
  }
  static AnyView turned(AnyView v, bool by_head) {
    if (by_head) std::swap(v.size[1], v.size[2]), std::swap(v.step[1], v.step[2]);
    return v;
  }
  void use(AttentionArgs& a, bool by_head) {
    a.k = turned(k.view(), by_head), a.v = turned(v.view(), by_head);
    const auto batch = static_cast<Index>(lengths.size());
    if (a.k_scale.given())
      a.k_scale = turned(k_scale.view(), by_head), a.v_scale = turned(v_scale.view(), by_head);
    a.k_scale.rank = a.v_scale.rank = a.k_scale.given() ? 3 : 0;
    a.page_table.table = AnyView::packed(table.data(), DType::i32, {batch, each});
    a.page_table.lengths = AnyView::packed(lengths.data(), DType::i64, {batch});
  }
};

const Tensor& at_end() {
  static Tensor start = tensor_of(std::vector<Index>{kStartEnd});
  return start;
}

/// `kv`: none, or what k and v are quantized to.
void expect_bits_of_one_piece(std::optional<DType> kv) {
  each_level([&] {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const Index size : {8, 32, 256})
        for (const Index q_tokens : {1, 20}) {
          const Case c = with_dtype({.name = "pages",
                                     .batch = 3,
                                     .q_tokens = q_tokens,
                                     .kv_tokens = 290,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 32,
                                     .value_dim = 32},
                                    dtype);
          CaseRun r(c);
          const Quantized eight(r.k.view(), r.v.view(), kv.value_or(DType::i8));
          if (kv) eight.use(r.args);
          const std::vector<Index> lengths = {290, 0, 77};
          const Mask mask = Mask::window(200, 0) & Mask::lengths(lengths);
          const std::vector<Index> starts = {290 - q_tokens, -q_tokens, 77 - q_tokens};
          r.args.q_start = ConstView::packed(starts.data(), DType::i64, {3});
          r.args.mask = mask.set();
          attention(r.args, online(1));
          Tensor out = r.out.clone(), lse = r.lse.clone();
          const Mask window = Mask::window(200, 0);
          for (const auto& [by_head, apart] : {std::pair{false, 7}, {true, 7}, {false, 1}, {true, 1}}) {
            Paged paged(r.args, lengths, size, by_head, apart);
            AttentionArgs a = r.args;
            a.q_start = at_end().view(), a.mask = window.set();
            paged.use(a, by_head);
            for (const int threads : {1, 2}) {
              poison(r.out), poison(r.lse);
              attention(a, decoding(threads));
              EXPECT_TRUE(same_bits(out, r.out)) << text(c) << " of " << size << " by_head " << by_head;
              EXPECT_TRUE(same_bits(lse, r.lse)) << text(c) << " of " << size << " lse " << by_head;
            }
          }
        }
  });
}

TEST(Pages, HaveTheBitsOfOnePiece) { expect_bits_of_one_piece({}); }
TEST(Pages, HaveTheBitsOfOnePieceInInt8) { expect_bits_of_one_piece(DType::i8); }
TEST(Pages, HaveTheBitsOfOnePieceInE4m3) { expect_bits_of_one_piece(DType::e4m3); }

/// Rows of a prompt are cut into tasks where threads would wait: 500 rows a kv head, causal, ragged.
TEST(Pages, RowsOfAPromptAreCutWithoutABit) {
  each_level([&] {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Case c = with_dtype({.name = "prompt",
                                 .batch = 2,
                                 .q_tokens = 250,
                                 .kv_tokens = 300,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 32,
                                 .value_dim = 32},
                                dtype);
      CaseRun r(c);
      const std::vector<Index> lengths = {300, 251}, starts = {50, 1};
      const Mask causal = Mask::causal(), mask = causal & Mask::lengths(lengths);
      r.args.q_start = ConstView::packed(starts.data(), DType::i64, {2});
      r.args.mask = mask.set();
      attention(r.args, online(1));
      Tensor out = r.out.clone(), lse = r.lse.clone();
      Paged paged(r.args, lengths, 32, false);
      AttentionArgs a = r.args;
      a.q_start = at_end().view(), a.mask = causal.set();
      paged.use(a, false);
      for (const int threads : {1, 2, 4, 8}) {
        poison(r.out), poison(r.lse);
        attention(a, decoding(threads));
        EXPECT_TRUE(same_bits(out, r.out)) << text(c) << threads;
        EXPECT_TRUE(same_bits(lse, r.lse)) << text(c) << threads;
      }
    }
  });
}

TEST(Pages, SplitsAreFoldedAlike) {
  const Case c{.name = "splits",
               .batch = 1,
               .q_tokens = 1,
               .kv_tokens = 2150,
               .heads = 2,
               .kv_heads = 1,
               .head_dim = 16,
               .value_dim = 16};
  CaseRun r(c);
  attention(r.args, online(1));
  Tensor out = r.out.clone();
  Paged paged(r.args, {2150}, 16, false);
  AttentionArgs a = r.args;
  paged.use(a, false);
  for (const int threads : {1, 2}) {
    poison(r.out);
    attention(a, decoding(threads));
    EXPECT_TRUE(same_bits(out, r.out)) << threads;
  }
}

TEST(Pages, RefReadsThem) {
  const Case c{.name = "ref",
               .batch = 2,
               .q_tokens = 2,
               .kv_tokens = 40,
               .heads = 4,
               .kv_heads = 2,
               .head_dim = 8,
               .value_dim = 8};
  CaseRun r(c);
  const Quantized eight(r.k.view(), r.v.view()), floats(r.k.view(), r.v.view(), DType::e4m3);
  Context ref({.threads = 1, .kernels = "ref"});
  for (int way = 0; way < 6; ++way) {
    const bool by_head = way % 2 == 1;
    if (way == 2) eight.use(r.args);
    if (way == 4) floats.use(r.args);
    poison(r.out);
    attention(r.args, ref);
    Tensor out = r.out.clone();
    Paged paged(r.args, {40, 40}, 16, by_head);
    AttentionArgs a = r.args;
    paged.use(a, by_head);
    poison(r.out);
    attention(a, ref);
    EXPECT_TRUE(same_bits(out, r.out));
  }
}

/// Every probe of one run.
struct Probes {
  Tensor entropy, top, keys, weights, mass, sums, picked;
  std::vector<std::int32_t> classes;
  std::vector<Index> picks = {0, 1, 2, 2, 3, 0};
  explicit Probes(const AttentionArgs& a, Index tokens)
      : entropy(DType::f32, {a.q.size[0], a.q.size[2], a.q.size[1]}),
        top(DType::f32, {a.q.size[0], a.q.size[2], a.q.size[1]}),
        keys(DType::i64, {a.q.size[0], a.q.size[2], a.q.size[1], 3}),
        weights(DType::f32, {a.q.size[0], a.q.size[2], a.q.size[1], 3}),
        mass(DType::f32, {a.q.size[0], a.q.size[2], a.q.size[1], 2}),
        sums(DType::f32, {a.q.size[0], a.q.size[2], tokens}),
        picked(DType::f32, {2, tokens}) {
    for (Index i = 0; i < a.q.size[0] * tokens; ++i) classes.push_back(static_cast<std::int32_t>(i % 3) - 1);
    for (Tensor* t : {&entropy, &top, &weights, &mass, &sums, &picked}) poison(*t);
  }
  static constexpr ProbeSpec kAll{.rows = true, .top_k = 3, .classes = 2, .columns = true, .picked = 2};
  void use(AttentionArgs& a) {
    ProbeOut& o = a.probe;
    o.entropy = entropy.view(), o.top_weight = top.view(), o.top_keys = keys.view();
    o.top_weights = weights.view(), o.class_mass = mass.view(), o.column_sums = sums.view();
    o.picked_weights = picked.view();
    o.class_of = AnyView::packed(classes.data(), DType::i32, {sums.view().size[0], sums.view().size[2]});
    o.picks = AnyView::packed(picks.data(), DType::i64, {2, 3});
  }
  bool same(const Probes& other) const {
    return same_bits(entropy, other.entropy) && same_bits(top, other.top) && same_bits(keys, other.keys) &&
           same_bits(weights, other.weights) && same_bits(mass, other.mass) && same_bits(sums, other.sums) &&
           same_bits(picked, other.picked);
  }
};

TEST(Pages, ProbesHaveTheBitsOfOnePiece) {
  each_level([&] {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool eight : {false, true})
        for (const Index size : {8, 64}) {
          const Case c = with_dtype({.name = "probes",
                                     .batch = 3,
                                     .q_tokens = 5,
                                     .kv_tokens = 290,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 32,
                                     .value_dim = 32},
                                    dtype);
          CaseRun r(c);
          const Quantized small(r.k.view(), r.v.view());
          if (eight) small.use(r.args);
          const std::vector<Index> lengths = {290, 5, 77};
          std::vector<Index> starts = {285, 0, 72};
          const Mask mask = Mask::window(200, 0) & Mask::lengths(lengths), window = Mask::window(200, 0);
          AttentionArgs whole = r.args;
          whole.q_start = AnyView::packed(starts.data(), DType::i64, {3});
          whole.mask = mask.set();
          Probes in_one(whole, 290), in_pages(whole, 290);
          in_one.use(whole);
          attention(whole, online(1), Probes::kAll);
          const Tensor out = r.out.clone();
          Paged paged(r.args, lengths, size, eight);
          for (Index i = 0; (i + 1) * size <= 285 - 200; ++i) paged.table[static_cast<std::size_t>(i)] = -1;
          AttentionArgs a = r.args;
          paged.use(a, eight);
          a.q_start = at_end().view(), a.mask = window.set();
          in_pages.use(a);
          poison(r.out);
          attention(a, online(2), Probes::kAll);
          EXPECT_TRUE(same_bits(out, r.out)) << text(c) << " of " << size << " eight " << eight;
          EXPECT_TRUE(in_one.same(in_pages)) << text(c) << " of " << size << " eight " << eight;
        }
  });
}

TEST(Pages, PagesGoneUnderTheMaskChangeNoBit) {
  each_level([&] {
    for (const Index size : {8, 16, 256})
      for (const Index q_tokens : {1, 40}) {
        const Case c{.name = "gone",
                     .batch = 1,
                     .q_tokens = q_tokens,
                     .kv_tokens = 900,
                     .heads = 4,
                     .kv_heads = 2,
                     .head_dim = 32,
                     .value_dim = 32};
        CaseRun r(c);
        const Mask mask = Mask::causal() & (Mask::prefix(20) | Mask::sliding(100));
        Paged paged(r.args, {900}, size, false);
        AttentionArgs a = r.args;
        paged.use(a, false);
        a.q_start = at_end().view(), a.mask = mask.set();
        attention(a, decoding(1));
        const Tensor out = r.out.clone();
        Index gone = 0;
        for (Index i = ceil_div(Index{20}, size); (i + 1) * size <= 901 - q_tokens - 100; ++i, ++gone)
          paged.table[static_cast<std::size_t>(i)] = -1;
        EXPECT_GT(gone, 0);
        for (const int threads : {1, 2}) {
          poison(r.out);
          attention(a, decoding(threads));
          EXPECT_TRUE(same_bits(out, r.out)) << size << " " << q_tokens;
        }
      }
  });
}

/// Four sequences of ragged queries at the end of keys in pages, causal.
struct RaggedPages {
  std::vector<Index> tokens = {3, 0, 1, 20}, offsets = {0, 3, 3, 4, 24};
  CaseRun keys{{.name = "keys",
                .batch = 4,
                .q_tokens = 1,
                .kv_tokens = 290,
                .heads = 4,
                .kv_heads = 2,
                .head_dim = 32,
                .value_dim = 32}};
  CaseRun rows{{.name = "rows",
                .batch = 1,
                .q_tokens = 24,
                .kv_tokens = 1,
                .heads = 4,
                .kv_heads = 2,
                .head_dim = 32,
                .value_dim = 32},
               9};
  Paged paged{keys.args, {290, 12, 77, 130}, 16, false};
  Mask causal = Mask::causal();
  AttentionArgs padded = keys.args, ragged;

  RaggedPages() {
    paged.use(padded, false);
    padded.q = rows.q.view(), padded.out = rows.out.view(), padded.lse = rows.lse.view();
    padded.q_start = at_end().view(), padded.mask = causal.set();
    ragged = padded;
    ragged.q_offsets = AnyView::packed(offsets.data(), DType::i64, {5});
  }
};

TEST(Pages, RaggedQueriesHaveTheBitsOfEachAlone) {
  each_level([&] {
    RaggedPages r;
    attention(r.ragged, decoding(2));
    const Tensor out = r.rows.out.clone(), lse = r.rows.lse.clone();
    poison(r.rows.out), poison(r.rows.lse);
    for (std::size_t b = 0; b < r.tokens.size(); ++b) {
      const auto part = [&](AnyView v, int axis) {
        v.data = static_cast<float*>(v.data) + r.offsets[b] * v.step[axis];
        v.size[axis] = r.tokens[b];
        return v;
      };
      AttentionArgs one = r.padded;
      one.q = part(one.q, 1), one.out = part(one.out, 1), one.lse = part(one.lse, 2);
      one.page_table.table = AnyView::packed(r.paged.table.data() + static_cast<Index>(b) * r.paged.each,
                                             DType::i32, {1, r.paged.each});
      one.page_table.lengths = AnyView::packed(r.paged.lengths.data() + b, DType::i64, {1});
      if (r.tokens[b] > 0) attention(one, decoding(1));
    }
    EXPECT_TRUE(same_bits(out, r.rows.out) && same_bits(lse, r.rows.lse));
    r.ragged.kv_offsets = r.ragged.q_offsets;
    EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { attention(r.ragged, decoding(1)); }),
              "attention: kv_offsets came with a page table, which says where keys lie; leave them out");
  });
}

// The lists are checked by places; these were read before the pages' offsets stood there.
TEST(Pages, ListsOfAllRaggedRowsChangeNoBit) {
  RaggedPages r;
  Context one({.threads = 1});
  attention(r.ragged, one);
  const Tensor out = r.rows.out.clone();
  poison(r.rows.out);
  std::vector<Index> starts = {0}, listed;
  for (const Index tokens : r.tokens)
    for (Index head = 0; head < 4; ++head) {
      for (Index row = 0; row < tokens; ++row) listed.push_back(row);
      starts.push_back(static_cast<Index>(listed.size()));
    }
  r.ragged.inputs.rows = {AnyView::packed(starts.data(), DType::i64, {17}),
                          AnyView::packed(listed.data(), DType::i64, {static_cast<Index>(listed.size())})};
  attention(r.ragged, one);
  EXPECT_TRUE(same_bits(out, r.rows.out));
}

struct BadPages : testing::Test {
  CaseRun run{{.name = "bad",
               .batch = 2,
               .q_tokens = 1,
               .kv_tokens = 20,
               .heads = 2,
               .kv_heads = 2,
               .head_dim = 8,
               .value_dim = 8}};
  Paged paged{run.args, {20, 9}, 8, false};
  AttentionArgs args = run.args;
  Context ctx{{.threads = 1}};
  BadPages() { paged.use(args, false); }
  std::string sentence(ErrorKind kind) {
    return sentence_of(kind, [&] { attention(args, ctx); });
  }
};

TEST_F(BadPages, AreRefusedInWords) {
  attention(args, ctx);
  paged.table[static_cast<std::size_t>(paged.each + 1)] = static_cast<std::int32_t>(paged.pages);
  EXPECT_EQ(sentence(ErrorKind::bad_argument), text("attention: page 1 of sequence 1 is ", paged.pages,
                                                    " but there are ", paged.pages, " pages"));
  paged.table[static_cast<std::size_t>(paged.each + 1)] = -1;
  EXPECT_EQ(
      sentence(ErrorKind::bad_argument),
      "attention: page 1 of sequence 1 is -1 but the mask lets a query see its keys; close them or give "
      "the page");
  paged.table[static_cast<std::size_t>(paged.each + 1)] = -2;
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            text("attention: page 1 of sequence 1 is -2 but there are ", paged.pages, " pages"));
}
TEST_F(BadPages, LengthsBeyondTheTable) {
  paged.lengths[1] = 8 * paged.each + 1;
  EXPECT_EQ(sentence(ErrorKind::bad_shape), text("attention: sequence 1 has ", 8 * paged.each + 1,
                                                 " tokens but its row of the page table names ", paged.each,
                                                 " pages of 8 tokens; give it a longer row"));
  const AttentionProblem p = [&] {
    paged.lengths[1] = 9;
    return problem_of(args);
  }();
  const AttentionPlan plan(p, ctx);
  paged.lengths[0] = -3;
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape, [&] { plan.run(args, ctx); }),
            "attention: sequence 0 has -3 tokens in pages but the plan was made for 0 to 20; plan for these "
            "lengths");
}
TEST_F(BadPages, SizesAndCompany) {
  AnyView wide = args.k;
  wide.size[1] = 7;
  args.k = wide, args.v.size[1] = 7;
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: a page has 7 tokens; it may have 8, 16, 32, 64, 128 or 256");
  args.k.size[1] = args.v.size[1] = 8;
  AttentionArgs alone = run.args;
  alone.page_table = args.page_table;
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument, [&] { AttentionPlan(problem_of(run.args), ctx).run(alone, ctx); }),
      "attention: a page table is given but the plan is for k and v in one piece; plan for pages");
}
TEST_F(BadPages, TheOthersSayWhy) {
  const float alpha[] = {1.5f, 1.5f};
  args.inputs.alpha = ConstView::packed(alpha, DType::f32, {2});
  Context entmax_only({.threads = 1, .kernels = "cpu/entmax"});
  const std::string why = sentence_of(ErrorKind::unsupported, [&] { attention(args, entmax_only); });
  EXPECT_NE(why.find("keys lie in pages: cpu/decode, cpu/online and ref read them"), std::string::npos)
      << why;
}

}  // namespace
}  // namespace headwise::test
