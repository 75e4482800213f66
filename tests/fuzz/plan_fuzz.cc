// Fuzzes the plan: any sizes, layouts and options give an Error or a result equal to ref.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "headwise/kernels/cpu/isa/isa.h"
#include "tests/support/setting/setting.h"

namespace {

using namespace headwise;
using namespace headwise::test;

/// The bytes of an input, one number after the other; zeros past the end.
struct Bytes {
  const std::uint8_t* data;
  std::size_t size;

  unsigned byte() {
    if (size == 0) return 0;
    --size;
    return *data++;
  }
  /// Mostly small, now and then anything.
  Index number() {
    const unsigned kind = byte();
    if (kind < 200) return static_cast<Index>(kind % 9);
    std::uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word = word << 8 | byte();
    return static_cast<Index>(word >> (kind % 64));
  }
};

HeadLayout random_layout(Bytes& in) {
  HeadLayout l;
  l.heads = in.number(), l.dim = in.number(), l.group = in.number();
  if (in.byte() % 2) l.step = in.number(), l.begin = in.number() - in.number(), l.row = in.number();
  return l;
}

/// Problems and views that need not fit each other: planning and checking must survive them.
void plan_anything(Bytes& in) {
  AttentionProblem p;
  p.dtype = static_cast<DType>(in.byte() % 7);
  p.heads.q = random_layout(in);
  p.heads.k = in.byte() % 2 ? p.heads.q : random_layout(in),
  p.heads.v = in.byte() % 2 ? p.heads.q : random_layout(in);
  p.batch = in.number(), p.q_tokens = in.number(), p.kv_tokens = in.number();
  p.ragged = in.byte() % 4 == 0, p.q_total = in.number(), p.kv_total = in.number();
  p.probe = {.rows = in.byte() % 2 == 0,
             .top_k = in.number(),
             .classes = in.number(),
             .columns = in.byte() % 2 == 0,
             .picked = in.number()};
  p.lse = in.byte() % 2;
  try {
    const AttentionPlan plan(p, 1 + static_cast<int>(in.byte() % 16),
                             in.byte() % 2 ? "cpu/online" : "cpu/online,ref");
    plan.refusals();
    plan.numerics();
    AttentionArgs a;
    static float memory[64];
    for (AnyView* v : std::initializer_list<AnyView*>{&a.q, &a.k, &a.v, &a.out}) {
      v->rank = static_cast<int>(in.byte() % 5), v->dtype = p.dtype,
      v->data = in.byte() % 8 ? memory : nullptr;
      for (int axis = 0; axis < v->rank; ++axis) v->size[axis] = in.number(), v->step[axis] = in.number();
    }
    static ThreadPool pool(1);
    // An empty workspace: what fits its views is refused for that, unless it needs none and there is nothing
    // to do.
    if (plan.workspace_bytes() > 0) plan.run(a, {}, pool);
  } catch (const Error& e) {
    if (std::strlen(e.what()) < 10) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes in{data, size};
  if (in.byte() % 2) {
    plan_anything(in);
    return 0;
  }
  Choice c{};
  for (int option = 0; option < kOptions; ++option)
    c[static_cast<std::size_t>(option)] =
        static_cast<int>(in.byte() % static_cast<unsigned>(values_of(option)));
  c[kThreads] = 1;  // one thread: a million runs would else wait for each other
  const Index kv_heads = in.byte() % 3, group = 1 + in.byte() % 3;
  const Sizes s{sizes_of(c).dtype, in.byte() % 3, in.byte() % 7,     in.byte() % 24,
                kv_heads * group,  kv_heads,      1 + in.byte() % 9, 1 + in.byte() % 9};
  const auto levels = cpu::isa_levels();
  const cpu::IsaLevel& level = levels[in.byte() % levels.size()];
  cpu::force_isa(level.supported() ? &level : nullptr);
  const Verdict v = judge(c, {.seed = 1 + in.byte(), .sizes = &s, .every_isa = false});
  if (!v.fault.empty()) {
    std::fprintf(stderr, "%s\n%s\n%s\n", v.fault.c_str(), describe(c).c_str(), to_text(c).c_str());
    std::abort();
  }
  return 0;
}
