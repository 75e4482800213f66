// Row lists: a head that lists its query rows does these alone, with the bits it gives without lists.
// SPDX-License-Identifier: Apache-2.0
#include "tests/base/sentence.h"
#include "tests/support/backward_run.h"

namespace headwise::test {
namespace {

/// About a third of the rows of every head but head 0, which lists all, and the last, which lists none.
struct Lists {
  Tensor offsets, index;
  std::vector<std::uint8_t> listed;  // [batch heads q]
  Lists(Index batch, Index heads, Index q_tokens, std::uint64_t seed) {
    std::vector<Index> starts = {0}, rows;
    for (Index n = 0; n < batch * heads; ++n) {
      const std::vector<Index> draw = random_integers(q_tokens, 0, 2, seed + static_cast<std::uint64_t>(n));
      for (Index i = 0; i < q_tokens; ++i) {
        const bool in = n % heads == 0 || (n % heads != heads - 1 && draw[static_cast<std::size_t>(i)] == 0);
        if (in) rows.push_back(i);
        listed.push_back(in);
      }
      starts.push_back(static_cast<Index>(rows.size()));
    }
    offsets = tensor_of(starts), index = tensor_of(rows);
  }
  RowLists view() const { return {offsets.view(), index.view()}; }
  bool has(const Case& c, Index b, Index h, Index i) const {
    return listed[static_cast<std::size_t>((b * c.heads + h) * c.q_tokens + i)] != 0;
  }
};

Case sizes(DType dtype, Index kv_heads = 5) {
  return {.name = "rows",
          .batch = 2,
          .q_tokens = 90,
          .kv_tokens = 150,
          .heads = 5,
          .kv_heads = kv_heads,
          .head_dim = 64,
          .value_dim = 48,
          .dtype = dtype};
}

/// Bytes of row i of one head of out or dq.
testing::AssertionResult same_row(const Tensor& a, const Tensor& b, Index batch, Index i, Index h) {
  const InputView x = a.view(), y = b.view();
  const Index at = (batch * x.step[0] + i * x.step[1] + h * x.step[2]) * size_of(x.dtype);
  if (std::memcmp(static_cast<const char*>(x.data) + at, static_cast<const char*>(y.data) + at,
                  static_cast<std::size_t>(x.size[3] * size_of(x.dtype))) == 0)
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << "row " << i << " of head " << h << " of sequence " << batch;
}
testing::AssertionResult zero_row(const Tensor& a, Index batch, Index i, Index h) {
  const InputView& x = a.view();
  for (Index c = 0; c < x.size[3]; ++c)
    if (load_double(x.data, x.dtype, batch * x.step[0] + i * x.step[1] + h * x.step[2] + c) != 0)
      return testing::AssertionFailure() << "row " << i << " of head " << h << " of sequence " << batch;
  return testing::AssertionSuccess();
}

TEST(RowLists, ListedRowsHaveTheirBitsAndOthersAreZero) {
  each_level([] {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Index kv_heads : {5, 1}) {
        const Case c = sizes(dtype, kv_heads);
        const Lists lists(c.batch, c.heads, c.q_tokens, 3);
        for (const Mask& mask : {Mask::causal(), Mask::window(30, 0)}) {
          BackwardRun all(c), some(c);
          for (BackwardRun* r : {&all, &some}) {
            r->args.forward.mask = mask.set();
            if (r == &some) r->args.forward.inputs.rows = lists.view();
            poison(r->inputs.out), poison(r->inputs.lse);
            attention(r->args.forward, context_of("cpu/online"));
            run_backward(r->args, "cpu/backward");
          }
          for (Index b = 0; b < c.batch; ++b)
            for (Index h = 0; h < c.heads; ++h)
              for (Index i = 0; i < c.q_tokens; ++i) {
                const auto n = static_cast<std::size_t>((b * c.heads + h) * c.q_tokens + i);
                const float lse = some.inputs.lse.values<float>()[n];
                if (lists.has(c, b, h, i)) {
                  ASSERT_TRUE(same_row(some.inputs.out, all.inputs.out, b, i, h));
                  ASSERT_TRUE(same_row(some.dq, all.dq, b, i, h));
                  ASSERT_EQ(lse, all.inputs.lse.values<float>()[n]);
                } else {
                  ASSERT_TRUE(zero_row(some.inputs.out, b, i, h));
                  ASSERT_TRUE(zero_row(some.dq, b, i, h));
                  ASSERT_EQ(lse, -kInf);
                }
              }
        }
      }
  });
}

/// variants.md calls it: skip mode equals gate-only mode exactly, and dg of rows that are not chosen is 0.
TEST(RowLists, SkipModeEqualsGateOnlyModeExactly) {
  each_level([] {
    const Case c = sizes(DType::f32);
    const Lists lists(c.batch, c.heads, c.q_tokens, 5);
    Tensor gate = random_normal({c.batch, c.q_tokens, c.heads}, DType::f32, 9), dgate = gate.clone();
    for (Index b = 0; b < c.batch; ++b)
      for (Index i = 0; i < c.q_tokens; ++i)
        for (Index h = 0; h < c.heads; ++h)
          if (!lists.has(c, b, h, i))
            gate.values<float>()[static_cast<std::size_t>((b * c.q_tokens + i) * c.heads + h)] = 0;
    const Mask causal = Mask::causal();
    BackwardRun dense(c), skip(c);
    Gradients of_dense, of_skip;
    for (BackwardRun* r : {&dense, &skip}) {
      r->args.forward.mask = causal.set();
      r->args.forward.inputs.gate = gate.view(), r->args.dgate = dgate.view();
      if (r == &skip) r->args.forward.inputs.rows = lists.view();
      attention(r->args.forward, context_of("cpu/online"));
      (r == &skip ? of_skip : of_dense) = run_backward(r->args, "cpu/backward");
    }
    for (Index n = 0; n < skip.inputs.out.view().count(); ++n)  // a gate of 0 leaves signs of 0
      ASSERT_EQ(skip.inputs.out.values<float>()[static_cast<std::size_t>(n)],
                dense.inputs.out.values<float>()[static_cast<std::size_t>(n)]);
    // Tiles add many rows at once, and lists put other rows beside each other: the sums over queries differ
    // in their last bits there.
    const bool by_tiles = cpu::chosen_isa().kernels()->f32_parts_gradients != nullptr;
    EXPECT_TRUE(same_bits(of_skip.at("q"), of_dense.at("q")));
    for (const char* name : {"k", "v"})
      if (by_tiles)
        EXPECT_LE(distance_of(of_skip.at(name).view(), of_dense.at(name).view()).relative, 1e-6) << name;
      else
        EXPECT_TRUE(same_bits(of_skip.at(name), of_dense.at(name))) << name;
    for (Index n = 0; n < gate.view().count(); ++n) {
      const auto at = static_cast<std::size_t>(n);
      const bool listed = lists.has(c, n / (c.q_tokens * c.heads), n % c.heads, n / c.heads % c.q_tokens);
      const float want = listed ? of_dense.at("gate").values<float>()[at] : 0;
      ASSERT_EQ(of_skip.at("gate").values<float>()[at], want) << n;
    }
  });
}

TEST(RowLists, BitsDependOnNeitherThreadsNorForm) {
  const Case c = sizes(DType::f32, 1);
  const Lists lists(c.batch, c.heads, c.q_tokens, 7);
  each_level([&] {
    BackwardRun r(c);
    r.args.forward.inputs.rows = lists.view();
    attention(r.args.forward, context_of("cpu/online", 1));
    Tensor out = r.inputs.out.clone();
    const Gradients one = run_backward(r.args, "cpu/backward", 1);
    for (const int threads : {2, 3, 7}) {
      poison(r.inputs.out);
      attention(r.args.forward, context_of("cpu/online", threads));
      EXPECT_TRUE(same_bits(r.inputs.out, out));
      expect_same_bits(run_backward(r.args, "cpu/backward", threads), one, std::to_string(threads));
    }
  });
}

TEST(RowLists, BadListsAreRefusedInWords) {
  CaseRun r({.name = "bad", .q_tokens = 4, .kv_tokens = 4, .heads = 2, .kv_heads = 2});
  const auto run = [&](const std::vector<Index>& offsets, const std::vector<Index>& index,
                       ErrorKind kind = ErrorKind::bad_shape) {
    Tensor o = tensor_of(offsets), i = tensor_of(index);
    r.args.inputs.rows = {o.view(), i.view()};
    return sentence_of(kind, [&] { attention(r.args, online()); });
  };
  EXPECT_EQ(run({0, 4, 5}, {0, 1, 2, 3, 2}), "(nothing was thrown)");
  EXPECT_EQ(run({0, 4, 5}, {0, 1, 2, 3, 4}, ErrorKind::bad_argument),
            "attention: rows of head 1 of sequence 0 have 4 after -1; a list ascends and stays inside the "
            "sequence's 4 query rows");
  EXPECT_EQ(run({0, 2, 4}, {1, 1, 2, 3}, ErrorKind::bad_argument),
            "attention: rows of head 0 of sequence 0 have 1 after 1; a list ascends and stays inside the "
            "sequence's 4 query rows");
  EXPECT_EQ(run({0, 3, 2}, {1, 2}), "attention: rows.offsets fall from 3 to 2 at list 1; offsets never fall");
  EXPECT_EQ(run({0, 1, 3}, {1, 2}),
            "attention: rows.offsets run from 0 to 3 but must run from 0 to 2, the size of rows.index");
  EXPECT_EQ(run({0, 2}, {1, 2}),
            "attention: rows.offsets is i64 [2] but i64 [3] is needed, [batch * heads + 1]");
}

}  // namespace
}  // namespace headwise::test
