// The bit matrix: repeats, threads, neighbours in the batch, chunks, layouts; compared as integers.
#include "tests/selftest/check.h"

namespace headwise::selftest {
namespace {

bool same(const Outputs& a, const Outputs& b) { return same_bits(a.out, b.out) && same_bits(a.lse, b.lse); }

/// Sequence b of a run, as if it had run alone.
Outputs sequence(const Outputs& o, Index b) {
  const InputView& v = o.out.view();
  Outputs one;
  one.out = Tensor(o.out.dtype(), {1, v.size[1], v.size[2], v.size[3]});
  one.lse = Tensor(DType::f32, {1, v.size[2], v.size[1]});
  const std::size_t out_bytes = static_cast<std::size_t>(one.out.view().count() * size_of(v.dtype));
  const std::size_t lse_bytes = static_cast<std::size_t>(one.lse.view().count()) * sizeof(float);
  const auto n = static_cast<std::size_t>(b);
  std::memcpy(one.out.view().data, static_cast<const std::byte*>(v.data) + n * out_bytes, out_bytes);
  std::memcpy(one.lse.view().data, static_cast<const std::byte*>(o.lse.view().data) + n * lse_bytes,
              lse_bytes);
  return one;
}

void repeats(const Inputs& in, int times) {
  const Outputs first = run(in);
  bool ok = true;
  for (int n = 0; n < times; ++n) ok &= same(run(in), first);
  check(ok, "bits repeats", describe(in.setup));
}

void threads(const Inputs& in) {
  const Outputs first = run(in, "", 1);
  for (const int n : {2, 3, 4, 7, 8, 16})
    check(same(run(in, "", n), first), text("bits ", n, " threads"), describe(in.setup));
}

void alone(const Inputs& in) {
  const Outputs together = run(in);
  for (Index b = 0; b < in.setup.batch; ++b) {
    Inputs one = make_inputs(in.setup);
    one.setup.batch = 1;
    for (AnyView* v : std::initializer_list<AnyView*>{&one.q, &one.k, &one.v}) {
      v->data = static_cast<std::byte*>(v->data) + b * v->step[0] * size_of(v->dtype);
      v->size[0] = 1;
    }
    check(same(run(one), sequence(together, b)), text("bits alone, sequence ", b), describe(in.setup));
  }
}

/// Causal prefill in chunks, each with only the keys that exist by then.
void chunks(const Inputs& in, Index chunk) {
  const Outputs whole = run(in);
  const Setup& s = in.setup;
  Inputs part = make_inputs(s);
  part.q_start = Tensor(DType::i64, {1});
  bool ok = true;
  for (Index begin = 0; begin < s.q_tokens && ok; begin += chunk) {
    const Index end = min_of(begin + chunk, s.q_tokens);
    part.q.data = static_cast<std::byte*>(in.q.data) + begin * in.q.step[1] * size_of(s.dtype);
    part.q.size[1] = end - begin;
    part.k.size[1] = part.v.size[1] = end;
    part.q_start.values<Index>()[0] = begin;
    const Outputs o = run(part);
    const InputView& v = o.out.view();
    for (Index b = 0; b < s.batch; ++b) {
      const std::size_t row = static_cast<std::size_t>(s.heads * s.value_dim * size_of(s.dtype));
      ok &= std::memcmp(
                static_cast<const std::byte*>(v.data) + static_cast<std::size_t>(b * (end - begin)) * row,
                static_cast<const std::byte*>(whole.out.view().data) +
                    static_cast<std::size_t>(b * s.q_tokens + begin) * row,
                static_cast<std::size_t>(end - begin) * row) == 0;
      for (Index h = 0; h < s.heads; ++h)
        for (Index i = begin; i < end; ++i)
          ok &= at(o.lse.view(), b, h, i - begin) == at(whole.lse.view(), b, h, i);
    }
  }
  check(ok, text("bits chunks of ", chunk), describe(s));
}

void layouts(const Setup& s) {
  const Outputs first = run(make_inputs(s));
  for (const Layout layout : {Layout::bhsd, Layout::packed, Layout::spread}) {
    Setup other = s;
    other.layout = layout;
    check(same(run(make_inputs(other)), first), "bits layout", describe(other));
  }
}

/// A ragged batch gives each sequence what it gets alone.
void ragged(Setup s) {
  s.ragged = true;
  s.batch = 4;
  const Inputs in = make_inputs(s);
  const Outputs together = run(in);
  const AttentionProblem p = in.problem();
  const AttentionArgs a = in.args();
  for (Index b = 0; b < s.batch; ++b) {
    const SequenceLocation at_row = place_of(p, a, b);
    Inputs one = make_inputs(s);
    one.q_offsets = Tensor();
    one.kv_offsets = Tensor();
    const auto cut = [](AnyView& v, Index row, Index count) {
      v.data = static_cast<std::byte*>(v.data) + row * v.step[1] * size_of(v.dtype);
      v.size[1] = count;
    };
    cut(one.q, at_row.q_row, at_row.q_tokens);
    cut(one.k, at_row.kv_row, at_row.kv_tokens);
    cut(one.v, at_row.kv_row, at_row.kv_tokens);
    const Outputs o = run(one);
    const std::size_t row = static_cast<std::size_t>(s.heads * s.value_dim * size_of(s.dtype));
    const bool ok =
        at_row.q_tokens == 0 || std::memcmp(o.out.view().data,
                                            static_cast<const std::byte*>(together.out.view().data) +
                                                static_cast<std::size_t>(at_row.q_row) * row,
                                            static_cast<std::size_t>(at_row.q_tokens) * row) == 0;
    check(ok, text("bits ragged, sequence ", b), describe(s));
  }
}

}  // namespace

void check_bits(const Options& options) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Setup s{.dtype = dtype,
            .batch = 3,
            .q_tokens = 70,
            .kv_tokens = 70,
            .heads = 4,
            .kv_heads = 2,
            .head_dim = 64,
            .value_dim = 64,
            .mask = "causal & window(50, 0)"};
    piece("bits repeats", [&] { repeats(make_inputs(s), options.quick ? 3 : 50); });
    piece("bits threads", [&] { threads(make_inputs(s)); });
    piece("bits alone", [&] { alone(make_inputs(s)); });
    piece("bits layout", [&] { layouts(s); });
    piece("bits ragged", [&] { ragged(s); });

    // Long enough to cross granules (64 or 256 keys) and, further down, a split of 2,048.
    Setup prefill{.dtype = dtype,
                  .q_tokens = options.quick ? 70 : 600,
                  .kv_tokens = options.quick ? 70 : 600,
                  .heads = 2,
                  .kv_heads = 1,
                  .head_dim = 33,
                  .value_dim = 20,
                  .mask = "causal"};
    const Inputs in = make_inputs(prefill);
    for (const Index chunk : {Index{1}, Index{7}, Index{16}, Index{63}, Index{257}}) {
      if (options.quick && chunk != 1 && chunk != 16) continue;
      piece("bits chunks", [&] { chunks(in, chunk); });
    }
    if (options.quick && dtype == DType::f16) continue;
    Setup far{.dtype = dtype,
              .batch = 2,
              .q_tokens = 5,
              .kv_tokens = 2300,
              .heads = 2,
              .kv_heads = 1,
              .head_dim = 64,
              .value_dim = 64,
              .mask = "causal",
              .q_start = 2295};
    if (!options.quick) piece("bits threads", [&] { threads(make_inputs(far)); });
    piece("bits alone", [&] { alone(make_inputs(far)); });
  }
}

}  // namespace headwise::selftest
