// Every kernel of this CPU level against `ref` in double, over sizes, masks, terms, layouts and probes that
// are awkward.
#include <map>

#include "tests/selftest/check.h"

namespace headwise::selftest {
namespace {

std::map<std::string, int>& cases_run() {
  static std::map<std::string, int> runs;
  return runs;
}

void against_ref(const Setup& s) {
  const Inputs in = make_inputs(s);
  Outputs truth;
  bool known = false;
  for (const AttentionKernel& kernel : attention_kernels(Device::Kind::cpu)) {
    if (std::string(kernel.name) == "ref" || !kernel.refuse(in.problem()).empty()) continue;
    piece(text(kernel.name, " ", describe(s)), [&] {
      if (!known) {
        Inputs exact = in_double(in);
        if (s.probe.any() && !s.ragged) exact.setup.probe.scores = ScoreStage::weights;
        truth = run(exact, "ref");
        known = true;
      }
      const Outputs got = run(in, kernel.name);
      check_close(kernel.name, in, got, truth);
      if (s.probe.any()) check_probes(kernel.name, in, got, truth);
      ++cases_run()[kernel.name];
    });
  }
}

constexpr DType kDtypes[] = {DType::f32, DType::bf16, DType::f16};

void dims(const Options& options) {
  std::uint64_t seed = 100;
  for (const DType dtype : kDtypes)
    for (const Index dim : {1, 3, 8, 16, 20, 33, 64, 65, 96, 128, 192, 256}) {
      if (options.quick && (dim == 3 || dim == 96 || dim == 192)) continue;
      Setup s{
          .dtype = dtype, .q_tokens = 13, .kv_tokens = 37, .head_dim = dim, .value_dim = dim, .seed = ++seed};
      against_ref(s);
      if (options.quick) continue;
      s.value_dim = dim == 64 ? 128 : 65 - dim % 60;
      s.mask = "causal", s.q_start = 24;
      against_ref(s);
    }
}

/// Around the edges of panels (queries), granules and splits (keys).
void tokens(const Options& options) {
  std::uint64_t seed = 200;
  for (const DType dtype : kDtypes) {
    for (const Index q : {1, 2, 15, 16, 17, 31, 33, 64, 65})
      for (const Index kv : {1, 31, 64, 65, 128, 129, 255, 256, 257}) {
        if ((q + kv) % 3 != 0 && (options.quick || kv > 65)) continue;
        if (options.quick && (kv > 65 || dtype == DType::f16)) continue;
        against_ref({.dtype = dtype,
                     .q_tokens = q,
                     .kv_tokens = kv,
                     .heads = 1,
                     .kv_heads = 1,
                     .head_dim = 24,
                     .value_dim = 40,
                     .mask = (q + kv) % 2 ? "all" : "causal",
                     .q_start = (q + kv) % 2 ? 0 : kv - q,
                     .seed = ++seed});
      }
    for (const Index kv : {256, 257, 2047, 2048, 2049, 4100}) {
      if (options.quick && (kv == 2047 || kv == 2048 || kv == 4100)) continue;
      against_ref({.dtype = dtype,
                   .q_tokens = 3,
                   .kv_tokens = kv,
                   .heads = 2,
                   .kv_heads = 1,
                   .head_dim = 32,
                   .value_dim = 32,
                   .mask = "causal",
                   .q_start = kv - 3,
                   .seed = ++seed});
    }
  }
}

void masks(const Options& options) {
  const char* texts[] = {"causal",
                         "window(5, 3)",
                         "window(0, 0)",
                         "sliding(7)",
                         "prefix(11)",
                         "causal | prefix(9)",
                         "causal & window(6, 0)",
                         "lengths(0, 30, 61)",
                         "causal & lengths(5, 61, 17)",
                         "documents(0, 10, 11, 40, 61)",
                         "causal & documents(0, 33, 61)",
                         "strided(4)",
                         "causal & strided(8, 3)",
                         "global(0, 17) | window(3, 3)",
                         "blocks(16, 16; 0, 1, 3, 4, 6; 0, 0, 1, 3, 1, 3)",
                         "dense",
                         "per head"};
  std::uint64_t seed = 300;
  for (const DType dtype : kDtypes)
    for (const char* mask : texts) {
      if (options.quick && dtype != (seed % 2 ? DType::f32 : DType::bf16)) {
        ++seed;
        continue;
      }
      Setup s{.dtype = dtype,
              .batch = 3,
              .q_tokens = 45,
              .kv_tokens = 61,
              .heads = 3,
              .kv_heads = 1,
              .head_dim = 16,
              .value_dim = 24,
              .mask = mask,
              .seed = ++seed};
      against_ref(s);
      if (std::string(mask).find("blocks") != 0 && std::string(mask) != "dense" && !options.quick) {
        s.q_start = 16;
        against_ref(s);
      }
    }
}

void terms(const Options& options) {
  std::uint64_t seed = 400;
  for (const DType dtype : kDtypes) {
    // Each term alone, then all, then mixtures counted in bits.
    for (const unsigned set : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 128u, 255u, 0x35u, 0x4au, 0x9du, 0xe3u}) {
      if (options.quick && dtype == DType::f16 && set != 255u) continue;
      const auto has = [&](unsigned bit) { return (set & bit) != 0; };
      Setup s{.dtype = dtype,
              .batch = 2,
              .q_tokens = 21,
              .kv_tokens = 70,
              .heads = 4,
              .kv_heads = set % 3 ? 2 : 1,
              .head_dim = 20,
              .value_dim = 33,
              .mask = set % 2 ? "all" : "causal & window(20, 0)",
              .seed = ++seed};
      s.terms = {.softcap = has(1),
                 .alibi = has(2),
                 .bias = has(4),
                 .relative = has(8),
                 .sinks = has(16),
                 .dropout = has(32),
                 .gate = has(64)};
      s.head_scales = has(128);
      s.q_start = set % 2 ? 3 : 49;
      against_ref(s);
    }
  }
}

void shapes(const Options& options) {
  std::uint64_t seed = 500;
  for (const DType dtype : kDtypes) {
    const Setup base{.dtype = dtype,
                     .batch = 2,
                     .q_tokens = 18,
                     .kv_tokens = 50,
                     .heads = 6,
                     .kv_heads = 3,
                     .head_dim = 24,
                     .value_dim = 16,
                     .mask = "causal",
                     .q_start = 32};
    for (const Layout layout : {Layout::bhsd, Layout::packed, Layout::spread}) {
      Setup s = base;
      s.layout = layout, s.seed = ++seed;
      if (!options.quick || layout == Layout::spread) against_ref(s);
    }
    for (const HeadKind kind : {HeadKind::overlapped, HeadKind::shared_key}) {
      Setup s = base;
      s.kind = kind, s.kv_heads = s.heads, s.seed = ++seed;
      against_ref(s);
      s.terms.sinks = s.terms.alibi = true, s.seed = ++seed;
      if (!options.quick) against_ref(s);
    }
    for (const Index kv_heads : {1, 2, 6}) {
      Setup s = base;
      s.kv_heads = kv_heads, s.mask = "all", s.seed = ++seed;
      against_ref(s);
    }
    for (const char* mask : {"all", "causal", "window(9, 4)"}) {
      Setup s = base;
      s.ragged = true, s.batch = 4, s.mask = mask, s.q_start = 0, s.seed = ++seed;
      against_ref(s);
      s.terms.gate = s.terms.sinks = s.terms.dropout = s.terms.bias = true;
      if (!options.quick) against_ref(s);
    }
    // Sizes that hide a swapped axis.
    against_ref({.dtype = dtype,
                 .batch = 4,
                 .q_tokens = 4,
                 .kv_tokens = 4,
                 .heads = 4,
                 .kv_heads = 4,
                 .head_dim = 4,
                 .value_dim = 4,
                 .mask = "causal",
                 .seed = ++seed});
    against_ref({.dtype = dtype,
                 .batch = 2,
                 .q_tokens = 16,
                 .kv_tokens = 16,
                 .heads = 16,
                 .kv_heads = 2,
                 .head_dim = 16,
                 .seed = ++seed});
  }
}

void probes(const Options& options) {
  std::uint64_t seed = 600;
  for (const DType dtype : kDtypes)
    for (int which = 0; which < 6; ++which) {
      if (options.quick && which != 5) continue;
      Setup s{.dtype = dtype,
              .batch = 2,
              .q_tokens = 27,
              .kv_tokens = 70,
              .heads = 4,
              .kv_heads = 2,
              .head_dim = 32,
              .value_dim = 32,
              .mask = which % 2 ? "causal & lengths(70, 41)" : "causal",
              .q_start = 10,
              .seed = ++seed};
      s.probe = {.rows = which == 0 || which == 5,
                 .top_k = which == 1 || which == 5 ? 8 : 0,
                 .classes = which == 2 || which == 5 ? 5 : 0,
                 .columns = which == 3 || which == 5,
                 .picked = which == 4 || which == 5 ? 6 : 0};
      s.terms.sinks = which >= 4;
      s.terms.dropout = which == 5;  // probes describe the weights before dropout
      against_ref(s);
    }
}

/// Few queries against keys enough for decode.
void long_keys(const Options& options) {
  std::uint64_t seed = 700;
  for (const DType dtype : kDtypes)
    for (const Index dim : {8, 20, 33, 64, 80, 128})
      for (const Index q : {1, 2, 5}) {
        Setup s{.dtype = dtype,
                .q_tokens = q,
                .kv_tokens = 512 + dim,
                .heads = 4,
                .kv_heads = 2,
                .head_dim = dim,
                .value_dim = dim == 33 ? 48 : dim,
                .mask = q == 2 ? "causal & window(300, 0)" : "causal",
                .q_start = 512 + dim - q,
                .seed = ++seed};
        against_ref(s);
        s.terms = {
            .softcap = true, .alibi = true, .bias = true, .sinks = true, .dropout = true, .gate = true};
        if (!options.quick) against_ref(s);
      }
}

}  // namespace

void check_kernels(const Options& options) {
  for (const auto part : {dims, tokens, masks, terms, shapes, probes, long_keys})
    piece("kernels", [&] { part(options); });
  // A kernel that refused everything was not tested; that must not look like success.
  for (const AttentionKernel& kernel : attention_kernels(Device::Kind::cpu))
    // check_mixed and check_entmax have theirs; cpu/f64 is the same at every level: kernels_cpu_f64_test.
    if (const std::string_view name = kernel.name;
        name != "ref" && !name.starts_with("cpu/mixed") && name != "cpu/entmax" && name != "cpu/f64")
      check(cases_run()[kernel.name] > 50, kernel.name,
            text("ran only ", cases_run()[kernel.name], " cases"));
}

}  // namespace headwise::selftest
