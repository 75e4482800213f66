// Properties over random options, sizes and mask expressions: a run equals ref.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/support/setting/setting.h"

namespace headwise::test {
namespace {

Choice random_choice() {
  Choice c{};
  for (int option = 0; option < kOptions; ++option)
    c[static_cast<std::size_t>(option)] = *rc::gen::inRange(0, values_of(option));
  return c;
}
Sizes random_sizes(const Choice& c) {
  const Index kv_heads = *rc::gen::inRange<Index>(0, 4), group = *rc::gen::inRange<Index>(1, 5);
  return {sizes_of(c).dtype,
          *rc::gen::inRange<Index>(0, 4),
          *rc::gen::inRange<Index>(0, 50),
          *rc::gen::inRange<Index>(0, 300),
          kv_heads * group,
          kv_heads,
          *rc::gen::inRange<Index>(1, 40),
          *rc::gen::inRange<Index>(1, 40)};
}

RC_GTEST_PROP(Properties, AnyMaskExpressionEqualsRef, ()) {
  Choice c{};
  c[kLse] = 1;
  c[kDtype] = *rc::gen::inRange(0, 3);
  c[kStart] = *rc::gen::inRange(0, values_of(kStart));
  c[kRagged] = *rc::gen::inRange(0, 2);
  const Sizes s = random_sizes(c);
  Sizes of_mask = s;
  if (c[kRagged] == 1 && s.batch == 0) of_mask.q_tokens = of_mask.kv_tokens = 0;
  const auto codes = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, mask_kinds() + 2));
  const auto seed = *rc::gen::inRange<std::uint64_t>(1, 1000);
  const Mask mask = mask_of_codes(codes, of_mask, seed);
  RC_ASSERT(judge(c, {.seed = seed, .sizes = &s, .mask = &mask}).fault == "");
}

RC_GTEST_PROP(Properties, AnyOptionsEqualRef, ()) {
  const Choice c = random_choice();
  const Sizes s = random_sizes(c);
  const auto seed = *rc::gen::inRange<std::uint64_t>(1, 1000);
  RC_LOG() << describe(c) << " " << to_text(c);
  RC_ASSERT(judge(c, {.seed = seed, .sizes = &s}).fault == "");
}

}  // namespace
}  // namespace headwise::test
