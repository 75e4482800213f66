// Arena: measuring and handing out take the same steps; too little memory and too large sizes are sentences.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/base/arena.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "headwise/base/buffer.h"
#include "tests/base/sentence.h"

namespace headwise {
namespace {

struct Pieces {
  float* lse;
  double* sums;
  std::uint8_t* none;
  bf16* keys;
};
Pieces book(Arena& arena, Index tokens) {
  Pieces p;
  p.lse = arena.take<float>("attention.lse", tokens);
  p.sums = arena.take<double>("attention.sums", 3);
  p.none = arena.take<std::uint8_t>("attention.none", 0);
  p.keys = arena.take<bf16>("attention.keys", tokens * 7);
  return p;
}

TEST(Arena, MeasuringEqualsHandingOut) {
  for (const Index tokens : {0, 1, 31, 32, 33, 1000}) {
    Arena count = Arena::measuring();
    const Pieces nothing = book(count, tokens);
    EXPECT_EQ(nothing.lse, nullptr);
    EXPECT_EQ(nothing.keys, nullptr);
    const Buffer memory(count.used());
    Arena arena(memory.span());
    const Pieces p = book(arena, tokens);
    EXPECT_EQ(arena.used(), count.used());
    const std::byte* const end = memory.data() + memory.size();
    EXPECT_LE(reinterpret_cast<std::byte*>(p.keys + tokens * 7), end);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p.sums) % Arena::kAlign, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p.keys) % Arena::kAlign, 0u);
    EXPECT_GE(reinterpret_cast<std::byte*>(p.sums), reinterpret_cast<std::byte*>(p.lse + tokens));
    EXPECT_GE(reinterpret_cast<std::byte*>(p.keys), reinterpret_cast<std::byte*>(p.sums + 3));
  }
}

TEST(Arena, OneByteLessThanMeasuredIsRefused) {
  Arena count = Arena::measuring();
  book(count, 33);
  const Buffer memory(count.used());
  Arena arena(memory.span().first(count.used() - 1));
  EXPECT_EQ(sentence_of(ErrorKind::out_of_workspace, [&] { book(arena, 33); }),
            text("attention.keys: needs 462 bytes at offset 384 but the workspace has ", count.used() - 1,
                 "; size it with plan.workspace_bytes()"));
}

TEST(Arena, TooSmallAWorkspaceIsTheLiteralSentence) {
  std::vector<std::byte> memory(100);
  Arena arena(memory);
  EXPECT_EQ(sentence_of(ErrorKind::out_of_workspace, [&] { arena.take<float>("attention.lse", 1000); }),
            "attention.lse: needs 4000 bytes at offset 0 but the workspace has 100; size it with "
            "plan.workspace_bytes()");
}

TEST(Arena, SizesThatWrapAreRefusedWhileMeasuring) {
  constexpr Index most = std::numeric_limits<Index>::max();
  Arena count = Arena::measuring();
  EXPECT_EQ(sentence_of(ErrorKind::out_of_memory, [&] { count.take<double>("attention.lse", most / 4); }),
            text("attention.lse: needs ", most / 4,
                 " items of 8 bytes, more than any address space holds; use smaller sizes"));
  EXPECT_EQ(sentence_of(ErrorKind::out_of_memory, [&] { count.take<char>("bytes", -1); }),
            "bytes: needs -1 items of 1 bytes, more than any address space holds; use smaller sizes");
  count.take<char>("half of it", most / 2);
  EXPECT_EQ(sentence_of(ErrorKind::out_of_memory, [&] { count.take<char>("the rest", most / 2 + 1); }),
            text("the rest: needs ", most / 2 + 1,
                 " items of 1 bytes, more than any address space holds; use smaller sizes"));
  EXPECT_NO_THROW(count.take<char>("nearly the rest", most / 2 - 300));
  EXPECT_EQ(sentence_of(ErrorKind::out_of_memory, [&] { count.take<char>("one too many", 300); }),
            "one too many: needs 300 items of 1 bytes, more than any address space holds; use smaller sizes");
}

}  // namespace
}  // namespace headwise
