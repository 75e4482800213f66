// Row products against sums written out: every size of the last tile, strides, and sums onto what is there.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/lab/matrix/product_rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "headwise/base/random.h"

namespace headwise {
namespace {

/// Whole numbers, so that sums are exact. x [rows terms], or its transpose; m and to have lines of their own
/// length.
template <class T>
void expect_sums(Index rows, Index terms, Index columns, bool turned, bool onto) {
  const auto draw = [](std::uint64_t stream, Index count) {
    std::vector<T> all;
    for (Index i = 0; i < count; ++i)
      all.push_back(static_cast<T>(Philox::block(stream, {static_cast<std::uint32_t>(i), 0, 0, 0})[0] % 17) -
                    8);
    return all;
  };
  const Index m_step = columns + 3, to_step = columns + 5;
  const std::vector<T> x = draw(1, rows * terms), m = draw(2, terms * m_step);
  std::vector<T> to = draw(3, rows * to_step), expected = to;
  const Index row_step = turned ? 1 : terms, term_step = turned ? rows : 1;
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < columns; ++c) {
      T sum = onto ? expected[static_cast<std::size_t>(r * to_step + c)] : T(0);
      for (Index k = 0; k < terms; ++k)
        sum += x[static_cast<std::size_t>(r * row_step + k * term_step)] *
               m[static_cast<std::size_t>(k * m_step + c)];
      expected[static_cast<std::size_t>(r * to_step + c)] = sum;
    }
  multiply_rows<T>({.x = x.data(),
                    .row_step = row_step,
                    .term_step = term_step,
                    .m = m.data(),
                    .m_step = m_step,
                    .to = to.data(),
                    .to_step = to_step,
                    .rows = rows,
                    .terms = terms,
                    .columns = columns,
                    .onto = onto});
  EXPECT_EQ(to, expected) << rows << " " << terms << " " << columns << " " << turned << " " << onto;
}

TEST(RowProduct, GivesTheSumsWrittenOut) {
  for (const Index rows : {1, 3, 4, 9})
    for (const Index columns : {1, 7, 8, 15, 16, 21})
      for (const bool turned : {false, true})
        for (const bool onto : {false, true}) {
          expect_sums<float>(rows, 13, columns, turned, onto);
          expect_sums<double>(rows, 13, columns, turned, onto);
        }
  for (const Index terms : {0, 32, 33, 70})
    for (const Index rows : {1, 6}) {
      expect_sums<float>(rows, terms, 37, false, false);
      expect_sums<double>(rows, terms, 37, true, true);
    }
}

}  // namespace
}  // namespace headwise
