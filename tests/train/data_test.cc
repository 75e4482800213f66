// Training data: every epoch is a permutation drawn from counters, token files come back, toy tasks are what
// they say.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/train/data.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/base/sentence.h"
#include "tests/model/safetensors_bytes.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

TEST(ExampleOrder, EveryEpochIsAnotherPermutation) {
  ExampleOrder order(100, 5), jumps(100, 5), other(100, 6);
  std::vector<std::vector<Index>> epochs(3);
  for (Index t = 0; t < 300; ++t) epochs[static_cast<std::size_t>(order.epoch_of(t))].push_back(order.at(t));
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  for (std::vector<Index> e : epochs) {
    std::sort(e.begin(), e.end());
    for (Index i = 0; i < 100; ++i) EXPECT_EQ(e[static_cast<std::size_t>(i)], i);
  }
  // Any place, in any order of asking: nothing but (seed, t) counts.
  for (const Index t : {250, 3, 199, 200, 0})
    EXPECT_EQ(jumps.at(t), epochs[static_cast<std::size_t>(t / 100)][static_cast<std::size_t>(t % 100)]);
  int same = 0;
  for (Index t = 0; t < 100; ++t) same += other.at(t) == epochs[0][static_cast<std::size_t>(t)];
  EXPECT_LT(same, 10);
  ExampleOrder one(1, 0);
  EXPECT_EQ(one.at(7), 0);
}

TEST(ExampleOrder, PlacesAreUniform) {
  constexpr Index kEpochs = 6000, kCount = 6;
  ExampleOrder order(kCount, 1);
  double seen[kCount][kCount] = {};
  for (Index t = 0; t < kEpochs * kCount; ++t) ++seen[t % kCount][order.at(t)];
  for (const auto& place : seen)
    for (const double n : place) EXPECT_NEAR(n, 1000, 5 * 29);  // sqrt(6000 * 5 / 36) = 29
}

TEST(TokenFiles, ComeBack) {
  const ScratchFolder folder;
  const std::vector<std::int32_t> tokens = {5, -1, 2147483647, 0};
  write_tokens(folder / "t.safetensors", tokens);
  EXPECT_EQ(read_tokens(folder / "t.safetensors"), tokens);
  const std::string odd =
      folder.file("o", file_of(R"({"tokens":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", "12345678"));
  EXPECT_EQ(sentence_of(ErrorKind::bad_dtype, [&] { read_tokens(odd); }),
            "read_tokens: " + odd + ": \"tokens\" is I64 with 1 sizes; it must be I32 with one");
}

TEST(TokenWindows, LabelsAreOneFurther) {
  const TokenWindows windows({0, 1, 2, 3, 4, 5, 6, 7}, 3);
  EXPECT_EQ(windows.count(), 2);
  std::vector<std::int32_t> x(3), y(3);
  windows.read(1, x, y);
  EXPECT_EQ(x, (std::vector<std::int32_t>{3, 4, 5}));
  EXPECT_EQ(y, (std::vector<std::int32_t>{4, 5, 6}));
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { windows.read(2, x, y); }),
            "token windows: got example 2; they are numbered from 0 to 1");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                        [] {
                          TokenWindows({1, 2, 3}, 3);
                        }),
            "token windows: the data set is empty: 3 tokens do not fill one window of 3 and its labels; give "
            "more text or a "
            "smaller width");
  EXPECT_EQ(TokenWindows({1, 2, 3, 4}, 3).count(), 1);
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { ExampleOrder(0, 1); }),
            "training data: the data set is empty; give it one example or more");
}

TEST(ToyExamples, AskWhatTheySay) {
  for (const ToyTask task : {ToyTask::copy, ToyTask::reverse, ToyTask::sort}) {
    const ToyExamples toy{.task = task, .length = 7, .symbols = 5, .seed = 3};
    std::vector<std::int32_t> x(14), y(14), again(14);
    bool varied = false;
    for (Index e = 0; e < 50; ++e) {
      toy.read(e, x, y);
      std::vector<std::int32_t> source(x.begin(), x.begin() + 7), target(y.begin() + 7, y.end());
      EXPECT_TRUE(std::all_of(source.begin(), source.end(), [](int s) { return s >= 0 && s < 5; }));
      EXPECT_TRUE(std::all_of(y.begin(), y.begin() + 7, [](int s) { return s == -100; }));
      EXPECT_EQ(x[7], 5);
      EXPECT_TRUE(std::equal(target.begin(), target.end() - 1, x.begin() + 8));
      if (task == ToyTask::reverse) std::reverse(source.begin(), source.end());
      if (task == ToyTask::sort) std::sort(source.begin(), source.end());
      EXPECT_EQ(source, target);
      varied |= e > 0 && x != again;
      again = x;
    }
    EXPECT_TRUE(varied);
  }
}

}  // namespace
}  // namespace headwise
