// Laws of attention: what must hold whatever the numbers are.
#include <cmath>
#include <limits>

#include "tests/selftest/check.h"

namespace headwise::selftest {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double near(DType t) { return t == DType::bf16 ? 2e-2 : t == DType::f16 ? 3e-3 : 5e-6; }

/// Axis 2 (heads) of a packed [batch tokens heads dim] tensor in reverse order.
Tensor reversed_heads(const Tensor& t) {
  Tensor r = t.clone();
  const InputView& v = t.view();
  for (Index b = 0; b < v.size[0]; ++b)
    for (Index n = 0; n < v.size[1]; ++n)
      for (Index h = 0; h < v.size[2]; ++h)
        for (Index d = 0; d < v.size[3]; ++d) put(r.view(), at(v, b, n, h, d), b, n, v.size[2] - 1 - h, d);
  return r;
}
void replace(Tensor& store, AnyView& view, Tensor with) {
  store = std::move(with);
  view = store.view();
}

void permute_heads(const Setup& base) {
  Setup s = base;
  s.kv_heads = s.heads;
  const Inputs in = make_inputs(s);
  Inputs turned = make_inputs(s);
  replace(turned.q_store, turned.q, reversed_heads(in.q_store));
  replace(turned.k_store, turned.k, reversed_heads(in.k_store));
  replace(turned.v_store, turned.v, reversed_heads(in.v_store));
  check(same_bits(run(turned).out, reversed_heads(run(in).out)), "law permute heads", describe(s));
}

void shift_logits(const Setup& base) {
  Setup s = base;
  s.terms.bias = true;
  Inputs in = make_inputs(s);
  Outputs plain = run(in);
  for (float& x : in.bias.values<float>()) x += 3.0f;
  const Outputs shifted = run(in);
  check_near("law shift logits " + describe(s), shifted.out.view(), plain.out.view(), near(s.dtype));
  for (float& x : plain.lse.values<float>()) x += 3.0f;
  check_near("law shift logits lse " + describe(s), shifted.lse.view(), plain.lse.view(), 5e-6);
}

/// Keys beyond the first `keep` are closed by a prefix, or not there at all: equal bits, NaN in the closed
/// ones included.
void append_masked_keys(const Setup& base) {
  const Index keep = base.kv_tokens / 2 + 1;
  Setup s = base;
  s.mask = text("prefix(", keep, ")");
  const Inputs in = make_inputs(s);
  Inputs shorter = make_inputs(s);
  shorter.k.size[1] = shorter.v.size[1] = keep;
  const Outputs want = run(shorter);
  for (Index b = 0; b < s.batch; ++b)
    for (Index k = keep; k < s.kv_tokens; ++k)
      for (Index h = 0; h < s.kv_heads; ++h) {
        for (Index d = 0; d < s.head_dim; ++d) put(in.k, kNaN, b, k, h, d);
        for (Index d = 0; d < s.value_dim; ++d) put(in.v, kNaN, b, k, h, d);
      }
  const Outputs got = run(in);
  check(same_bits(got.out, want.out) && same_bits(got.lse, want.lse), "law append masked keys", describe(s));
}

/// Every key twice, each with bias -ln 2: nothing changes.
void duplicate_keys(const Setup& base) {
  Setup s = base;
  s.mask = "all";
  const Outputs want = run(make_inputs(s));
  Setup twice = s;
  twice.kv_tokens = 2 * s.kv_tokens;
  twice.terms.bias = true;
  Inputs in = make_inputs(twice);
  const Inputs once = make_inputs(s);
  for (Index b = 0; b < s.batch; ++b)
    for (Index k = 0; k < twice.kv_tokens; ++k)
      for (Index h = 0; h < s.kv_heads; ++h) {
        for (Index d = 0; d < s.head_dim; ++d) put(in.k, at(once.k, b, k / 2, h, d), b, k, h, d);
        for (Index d = 0; d < s.value_dim; ++d) put(in.v, at(once.v, b, k / 2, h, d), b, k, h, d);
      }
  for (float& x : in.bias.values<float>()) x = -0.69314718f;
  const Outputs got = run(in);
  check_near("law duplicate keys " + describe(s), got.out.view(), want.out.view(), near(s.dtype));
  check_near("law duplicate keys lse " + describe(s), got.lse.view(), want.lse.view(), 5e-6);
}

void ones_give_one(const Setup& s) {
  const Inputs in = make_inputs(s);
  for (Index b = 0; b < s.batch; ++b)
    for (Index k = 0; k < s.kv_tokens; ++k)
      for (Index h = 0; h < s.kv_heads; ++h)
        for (Index d = 0; d < s.value_dim; ++d) put(in.v, 1, b, k, h, d);
  const Outputs o = run(in);
  const double ulps = s.dtype == DType::bf16 ? 0x1p-8 : s.dtype == DType::f16 ? 0x1p-11 : 4 * 0x1p-24;
  double worst = 0;
  for (Index i = 0; i < o.out.view().count(); ++i)
    worst = std::fmax(worst, std::abs(load_double(o.out.view().data, o.out.dtype(), i) - 1));
  check(worst <= ulps, "law V = 1 gives 1", text(describe(s), ": ", worst, " off"));
}

/// Under a causal mask, rows before `cut` never see keys from `cut` on.
void causal_prefix(const Setup& base) {
  Setup s = base;
  s.mask = "causal";
  s.q_tokens = s.kv_tokens;
  const Index cut = s.kv_tokens / 2;
  const Inputs in = make_inputs(s);
  const Outputs before = run(in);
  for (Index b = 0; b < s.batch; ++b)
    for (Index k = cut; k < s.kv_tokens; ++k)
      for (Index h = 0; h < s.kv_heads; ++h) {
        put(in.k, kNaN, b, k, h, s.head_dim / 2);
        put(in.v, k % 2 == 0 ? kNaN : std::numeric_limits<double>::infinity(), b, k, h, s.value_dim / 2);
      }
  const Outputs after = run(in);
  const std::size_t row = static_cast<std::size_t>(s.heads * s.value_dim * size_of(s.dtype));
  bool same = true;
  for (Index b = 0; b < s.batch; ++b) {
    const std::size_t begin = static_cast<std::size_t>(b * s.q_tokens) * row;
    same &= std::memcmp(static_cast<const std::byte*>(before.out.view().data) + begin,
                        static_cast<const std::byte*>(after.out.view().data) + begin,
                        static_cast<std::size_t>(cut) * row) == 0;
  }
  check(same, "law causal prefix", describe(s));
}

/// A NaN in one value reaches its column of every row that may see it, and no other row; the same for a key.
void nan_reaches_its_rows(const Setup& base) {
  Setup s = base;
  s.mask = "causal";
  s.q_tokens = s.kv_tokens;
  const Outputs clean = run(make_inputs(s));
  for (const bool in_key : {false, true}) {
    const Inputs in = make_inputs(s);
    const Index key = s.kv_tokens / 2, column = (in_key ? s.head_dim : s.value_dim) - 1,
                group = s.heads / s.kv_heads;
    put(in_key ? in.k : in.v, kNaN, 0, key, 0, column);
    const Outputs got = run(in);
    bool reached = true, kept = true;
    for (Index b = 0; b < s.batch; ++b)
      for (Index i = 0; i < s.q_tokens; ++i)
        for (Index h = 0; h < s.heads; ++h) {
          const bool sees = b == 0 && h < group && i >= key;
          for (Index d = 0; d < s.value_dim; ++d) {
            const double x = at(got.out.view(), b, i, h, d);
            if (!sees) kept &= x == at(clean.out.view(), b, i, h, d);
            if (sees && (in_key || d == column)) reached &= std::isnan(x);
          }
        }
    check(reached && kept, in_key ? "law NaN in a key" : "law NaN in a value",
          text(describe(s), reached ? "" : ": a row that sees it is not NaN",
               kept ? "" : ": another row changed"));
  }
}

/// Two parts of the keys, joined by their lse, are the whole.
void split_merge(const Setup& base) {
  Setup s = base;
  s.mask = "all";
  const Index cut = s.kv_tokens / 3 + 1;
  const Inputs in = make_inputs(s);
  const Outputs whole = run(in);
  Inputs left = make_inputs(s), right = make_inputs(s);
  left.k.size[1] = left.v.size[1] = cut;
  for (AnyView* v : std::initializer_list<AnyView*>{&right.k, &right.v}) {
    v->size[1] -= cut;
    v->data = static_cast<std::byte*>(v->data) + cut * v->step[1] * size_of(v->dtype);
  }
  const Outputs a = run(left), b = run(right);
  Tensor joined(DType::f64, {s.batch, s.q_tokens, s.heads, s.value_dim});
  for (Index n = 0; n < s.batch; ++n)
    for (Index i = 0; i < s.q_tokens; ++i)
      for (Index h = 0; h < s.heads; ++h) {
        const double la = at(a.lse.view(), n, h, i), lb = at(b.lse.view(), n, h, i),
                     wa = 1 / (1 + std::exp(lb - la));
        for (Index d = 0; d < s.value_dim; ++d)
          put(joined.view(), wa * at(a.out.view(), n, i, h, d) + (1 - wa) * at(b.out.view(), n, i, h, d), n,
              i, h, d);
      }
  check_near("law split and merge " + describe(s), whole.out.view(), joined.view(), near(s.dtype));
}

/// Shared kv heads are repeated kv heads.
void grouped_is_repeated(const Setup& base) {
  Setup s = base;
  s.heads = 6, s.kv_heads = 2;
  Setup full = s;
  full.kv_heads = s.heads;
  const Inputs in = make_inputs(s);
  const Inputs wide = make_inputs(full);
  for (Index b = 0; b < s.batch; ++b)
    for (Index k = 0; k < s.kv_tokens; ++k)
      for (Index h = 0; h < s.heads; ++h) {
        for (Index d = 0; d < s.head_dim; ++d) put(wide.k, at(in.k, b, k, h / 3, d), b, k, h, d);
        for (Index d = 0; d < s.value_dim; ++d) put(wide.v, at(in.v, b, k, h / 3, d), b, k, h, d);
      }
  check(same_bits(run(in).out, run(wide).out), "law grouped is repeated", describe(s));
}

/// A sink is one more key with value 0.
void sink_is_a_key(const Setup& base) {
  Setup s = base;
  s.terms.sinks = true;
  const Inputs with = make_inputs(s);
  s.terms.sinks = false;
  const Inputs without = make_inputs(s);
  const Outputs a = run(with), b = run(without);
  Tensor want(DType::f64, {s.batch, s.q_tokens, s.heads, s.value_dim});
  for (Index n = 0; n < s.batch; ++n)
    for (Index i = 0; i < s.q_tokens; ++i)
      for (Index h = 0; h < s.heads; ++h) {
        const double mass = 1 / (1 + std::exp(at(with.sinks.view(), h) - at(b.lse.view(), n, h, i)));
        for (Index d = 0; d < s.value_dim; ++d)
          put(want.view(), mass * at(b.out.view(), n, i, h, d), n, i, h, d);
      }
  check_near("law sink is a key " + describe(s), a.out.view(), want.view(), near(s.dtype));
}

/// Rows without an open key, and sizes of 0: zeros and -inf, and no fault.
void nothing_to_see(DType dtype) {
  Setup s{.dtype = dtype,
          .batch = 2,
          .q_tokens = 9,
          .kv_tokens = 7,
          .heads = 3,
          .kv_heads = 3,
          .mask = "prefix(0)"};
  const auto zero = [](const Outputs& o, const Setup& which) {
    bool ok = true;
    for (Index i = 0; i < o.out.view().count(); ++i) {
      const double x = load_double(o.out.view().data, o.out.dtype(), i);
      ok &= x == 0 && !std::signbit(x);
    }
    for (const float x : o.lse.values<float>()) ok &= x == -std::numeric_limits<float>::infinity();
    check(ok, "law empty rows", describe(which));
  };
  zero(run(make_inputs(s)), s);
  s.mask = "all";
  s.kv_tokens = 0;
  zero(run(make_inputs(s)), s);
  for (Index Setup::*size : {&Setup::q_tokens, &Setup::batch}) {
    Setup none = s;
    none.*size = 0;
    check(run(make_inputs(none)).out.view().count() == 0, "law sizes of 0", describe(none));
  }
}

}  // namespace

void check_laws(const Options& options) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const bool awkward : {false, true}) {
      if (options.quick && awkward && dtype == DType::f16) continue;
      Setup s{.dtype = dtype,
              .batch = 2,
              .q_tokens = 19,
              .kv_tokens = 41,
              .heads = 4,
              .kv_heads = 2,
              .head_dim = 64,
              .value_dim = 64};
      if (awkward) s.q_tokens = 33, s.kv_tokens = options.quick ? 77 : 301, s.head_dim = 20, s.value_dim = 33;
      const auto law = [&](const char* name, void (*body)(const Setup&)) { piece(name, [&] { body(s); }); };
      law("law permute heads", permute_heads);
      law("law shift logits", shift_logits);
      law("law append masked keys", append_masked_keys);
      law("law duplicate keys", duplicate_keys);
      law("law V = 1 gives 1", ones_give_one);
      law("law causal prefix", causal_prefix);
      law("law NaN reaches its rows", nan_reaches_its_rows);
      law("law split and merge", split_merge);
      law("law grouped is repeated", grouped_is_repeated);
      law("law sink is a key", sink_is_a_key);
    }
    piece("law empty rows", [&] { nothing_to_see(dtype); });
  }
}

}  // namespace headwise::selftest
