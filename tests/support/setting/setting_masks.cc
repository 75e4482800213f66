// Masks of settings: each kind of term with numbers that open and close something, and expressions of them.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/random_rows.h"
#include "tests/support/setting/setting.h"

namespace headwise::test {
namespace {

Tensor random_open(std::initializer_list<Index> sizes, std::uint64_t seed) {
  Tensor t(DType::u8, sizes);
  Tensor normal = random_normal(sizes, DType::f32, seed);
  for (std::size_t n = 0; n < t.values<std::uint8_t>().size(); ++n)
    t.values<std::uint8_t>()[n] = normal.values<float>()[n] > -0.3f;
  return t;
}

Mask random_blocks(const Sizes& s, std::uint64_t seed) {
  std::vector<Index> rows = {0}, columns;
  const Index q_block = 16, kv_block = 24;
  for (Index r = 0; r * q_block < s.q_tokens + 20; ++r) {
    for (Index c = 0; c * kv_block < s.kv_tokens; ++c)
      if (random_integers(1, 0, 3, seed + static_cast<std::uint64_t>(100 * r + c))[0] == 0)
        columns.push_back(c);
    rows.push_back(static_cast<Index>(columns.size()));
  }
  return Mask::blocks(q_block, kv_block, rows, columns);
}

enum Kind {
  kNone,
  kEmpty,
  kCausal,
  kWindow,
  kSliding,
  kPrefix,
  kLengths,
  kDocuments,
  kBlocks,
  kDense,
  kDenseHeads,
  kDenseMerged,
  kStrided,
  kGlobal,
  kCausalWindow,
  kCausalOrPrefix,
  kMany,
  kPerHead,
  kKinds
};
constexpr const char* kNames[] = {
    "none",    "empty",     "causal",          "window",          "sliding",        "prefix",
    "lengths", "documents", "blocks",          "dense",           "dense per head", "dense merged",
    "strided", "global",    "causal & window", "causal | prefix", "many terms",     "per head"};
static_assert(std::size(kNames) == kKinds);

}  // namespace

int mask_kinds() { return kKinds; }
const char* mask_kind_name(int kind) { return kNames[kind]; }

Mask make_mask(int kind, const Sizes& s, std::uint64_t seed) {
  switch (kind) {
    case kEmpty: return Mask::prefix(0);
    case kCausal: return Mask::causal();
    case kWindow: return Mask::window(5, 3);
    case kSliding: return Mask::sliding(40);
    case kPrefix: return Mask::prefix(37);
    case kLengths: return Mask::lengths(random_integers(s.batch, 0, s.kv_tokens + 2, seed));
    case kDocuments: return Mask::documents(offsets_of({9, 0, 30, 1, 250, 1800, 5000}));
    case kBlocks: return random_blocks(s, seed);
    case kDense: {
      Tensor open = random_open({s.q_tokens, s.kv_tokens}, seed);
      return Mask::dense(open.view());
    }
    case kDenseHeads: {
      Tensor open = random_open({1, s.heads, s.q_tokens, s.kv_tokens}, seed);
      return Mask::from_blocked(open.view());
    }
    case kDenseMerged: {
      if (s.heads == 0) return Mask::causal();
      Tensor open = random_open({s.batch * s.heads, s.q_tokens, s.kv_tokens}, seed);
      return Mask::dense(unmerge_heads(open.view(), s.heads));
    }
    case kStrided: return Mask::strided(7, 2);
    case kGlobal: return Mask::global(std::vector<Index>{0, 3, 40, 299});
    case kCausalWindow: return Mask::causal() & Mask::window(20, 4);
    case kCausalOrPrefix: return Mask::causal() | Mask::prefix(11);
    case kMany:
      return ((Mask::causal() & Mask::strided(5, 2)) | Mask::global(std::vector<Index>{2, 33}) |
              Mask::window(3, 0)) &
             Mask::documents(offsets_of({64, 6000}));
    case kPerHead: {
      std::vector<Mask> masks;
      for (Index h = 0; h < s.heads; ++h) masks.push_back(make_mask(static_cast<int>(h % 5) + 1, s, seed));
      if (masks.size() > 1) masks[0] = Mask::causal() & Mask::sliding(9);
      return s.heads > 1 ? Mask::per_head(masks) : Mask::causal();
    }
    default: return Mask::all();
  }
}

Mask mask_of_codes(const std::vector<int>& codes, const Sizes& s, std::uint64_t seed) {
  std::vector<Mask> stack;
  int terms = 0;
  for (const int code : codes) {
    const int kind = code % (kKinds + 2);
    if (kind >= kKinds) {
      if (stack.size() < 2) continue;
      Mask right = std::move(stack.back());
      stack.pop_back();
      stack.back() = kind == kKinds ? std::move(stack.back()) & right : std::move(stack.back()) | right;
    } else if (kind != kPerHead && ++terms <= 8) {  // `many terms` brings four of its own; 16 are read
      stack.push_back(kind == kMany ? make_mask(kStrided, s, seed)
                                    : make_mask(kind, s, seed + static_cast<std::uint64_t>(terms)));
    }
  }
  while (stack.size() > 1) {
    const Mask right = std::move(stack.back());
    stack.pop_back();
    stack.back() = std::move(stack.back()) | right;
  }
  return stack.empty() ? Mask::all() : std::move(stack.back());
}

}  // namespace headwise::test
