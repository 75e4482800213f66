// Bands, key tiles and shared-memory layout of the CUDA kernels, on the CPU: constexpr code against brute
// force.
#include "headwise/kernels/cuda/inputs/band.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "headwise/kernels/cuda/device/divisor.h"
#include "headwise/kernels/cuda/device/tile.h"
#include "headwise/kernels/cuda/inputs/blocks.h"
#include "headwise/kernels/cuda/inputs/places.h"
#include "headwise/masks/mask.h"

namespace headwise::cuda {
namespace {

Band band_of_text(const std::string& text, Index sequence = 0) {
  const Mask mask = parse_mask(text);
  Band band;
  const char* why = "";
  EXPECT_TRUE(band_of(mask.set(), sequence, band, why)) << text << ": " << why;
  return band;
}

TEST(Band, ConjunctionsBecomeNumbers) {
  const Band causal = band_of_text("causal & window(100, 7)");
  EXPECT_EQ(causal.back, 100);
  EXPECT_EQ(causal.ahead, 0);
  EXPECT_FALSE(causal.whole);
  const Band lengths = band_of_text("lengths(3, 9) & prefix(5)", 1);
  EXPECT_EQ(lengths.keys, 5);
  EXPECT_TRUE(lengths.whole && lengths.by_length);
  EXPECT_EQ(band_of_text("lengths(3, 9)", 0).keys, 3);
  EXPECT_TRUE(band_of_text("all").whole);
}

TEST(Band, WhatIsNoBandSaysWhichPart) {
  for (const auto& [text, word] : {std::pair{"causal | prefix(3)", "|"},
                                   {"documents(0, 4) & documents(0, 2)", "documents"},
                                   {"strided(3)", "strided"},
                                   {"global(2)", "global"},
                                   {"blocks(2, 2; 0, 1; 0) & blocks(3, 3; 0, 1; 0)", "blocks"},
                                   {"per_head(causal; all)", "head"}}) {
    const Mask mask = parse_mask(text);
    Band band;
    const char* why = "";
    EXPECT_FALSE(band_of(mask.set(), 0, band, why)) << text;
    EXPECT_NE(std::string(why).find(word), std::string::npos) << text << ": " << why;
  }
}

// Bits of a block mask, and what a tile meets of them, against the mask's own answers.
TEST(Blocks, TilesAgreeWithMasks) {
  int open = 0, full = 0, checked = 0;
  for (const char* text :
       {"blocks(64, 64; 0, 2, 2, 5, 6; 0, 3, 1, 2, 9, 7)", "blocks(7, 9; 0, 1, 4; 40, 0, 1, 2)",
        "blocks(1000, 8; 0, 4; 0, 1, 2, 33)", "blocks(1, 300; 0, 1, 1, 2; 1, 0)"}) {
    const Mask mask = parse_mask(text);
    Band band;
    const char* why = "";
    ASSERT_TRUE(band_of(mask.set(), 0, band, why) && band.blocks) << why;
    EXPECT_FALSE(band.whole);
    for (const int keys : {80, 128})
      for (const int kv_tokens : {1, 100, 700}) {
        const Index words = block_words(*band.blocks, kv_tokens, keys);
        std::vector<std::uint32_t> bits;
        each_block_word(*band.blocks, words, [&](std::uint32_t x) { return bits.push_back(x), true; });
        ASSERT_EQ(bits.size(), static_cast<std::size_t>(words * band.blocks->n));
        BlockLists b;
        b.bits = bits.data(), b.rows = static_cast<int>(band.blocks->n), b.words = static_cast<int>(words);
        b.q_block = static_cast<int>(band.blocks->a), b.kv_block = static_cast<int>(band.blocks->b);
        for (int q0 = -130; q0 < 1100; q0 += 61)
          for (const int rows : {1, 128})
            for (int k0 = 0; k0 < kv_tokens; k0 += keys, ++checked) {
              const int k1 = std::min(k0 + keys, kv_tokens);
              const TileOfBlocks t = tile_of_blocks(b, q0, q0 + rows, k0, k1);
              const TileKind kind = mask.set().views[0].tile(q0, q0 + rows, k0, k1);
              EXPECT_EQ(t.open, kind != TileKind::empty) << text << " q " << q0 << " k " << k0;
              EXPECT_EQ(t.open && t.closed, kind == TileKind::mixed) << text << " q " << q0 << " k " << k0;
              open += t.open, full += t.open && !t.closed;
            }
      }
  }
  EXPECT_GT(open, 100);
  EXPECT_GT(full, 10);
  EXPECT_GT(checked, 1000);
}

// Every tile of keys: visited when any pair of it is open, full only when all are, as MaskView::tile says.
TEST(Band, KeyTilesAgreeWithMasks) {
  int checked = 0;
  for (const int width : {80, 128})
    for (const int back : {0, 5, 79, 200, 100000})
      for (const int ahead : {0, 3, 130, 100000})
        for (const int keys : {1, 79, 80, 81, 400, 1000})
          for (const int first : {-300, -1, 0, 64, 500, 1500})
            for (const int rows : {1, 64, 192}) {
              const int last = first + rows - 1;
              const Mask view = Mask::window(back, ahead);
              const KeyTiles t = key_tiles(first, last, back, ahead, keys, width);
              ASSERT_LT(t.begin, t.end);
              ASSERT_LE(t.begin, t.full_begin);
              ASSERT_LE(t.full_begin, t.full_end);
              ASSERT_LE(t.full_end, t.end);
              for (int n = 0; n * width < keys; ++n) {
                const int k1 = std::min((n + 1) * width, keys);
                const TileKind kind = view.tile(first, last + 1, n * width, k1);
                const bool cut = k1 < (n + 1) * width;
                ASSERT_TRUE(kind == TileKind::empty || (t.begin <= n && n < t.end)) << n;
                const bool full = t.full_begin <= n && n < t.full_end;
                ASSERT_TRUE(!full || (kind == TileKind::full && !cut)) << n;
                ++checked;
              }
            }
  EXPECT_GT(checked, 1000);
}

// Gradients: every open pair lies in a tile that is met, and the tiles of keys that meet a tile of queries
// are those from the first adder on, without a gap: a turn that nobody takes would hang the kernel.
TEST(Band, QueryTilesAgreeWithPairsAndTurns) {
  constexpr int kWidth = 128;
  for (const int rows : {64, 128})
    for (const int back : {0, 5, 200, 1 << 29})
      for (const int ahead : {0, 3, 130, 1 << 29})
        for (const int keys : {1, 127, 128, 129, 700})
          for (const int queries : {1, 64, 129, 500})
            for (const int start : {-300, -1, 0, 100, 650, 2000}) {
              const int key_tiles = (keys + kWidth - 1) / kWidth, query_count = (queries + rows - 1) / rows;
              std::vector<std::vector<int>> adders(static_cast<std::size_t>(query_count));
              for (int n = 0; n < key_tiles; ++n) {
                const QueryTiles t =
                    query_tiles({n * kWidth, kWidth, keys}, {queries, start, back, ahead}, rows);
                ASSERT_TRUE(0 <= t.begin && t.begin <= t.end && t.end <= query_count);
                for (int m = t.begin; m < t.end; ++m) adders[static_cast<std::size_t>(m)].push_back(n);
                for (int q = 0; q < queries; q += 7)
                  for (int k = n * kWidth; k < std::min((n + 1) * kWidth, keys); k += 9)
                    ASSERT_TRUE(k > start + q + ahead || k < start + q - back ||
                                (t.begin <= q / rows && q / rows < t.end))
                        << q << " " << k;
              }
              for (int m = 0; m < query_count; ++m)
                for (std::size_t i = 0; i < adders[static_cast<std::size_t>(m)].size(); ++i)
                  ASSERT_EQ(adders[static_cast<std::size_t>(m)][i],
                            first_adder(start + m * rows, back, kWidth) + static_cast<int>(i))
                      << m << " back " << back << " ahead " << ahead << " start " << start;
            }
}

TEST(Tile, ChunksCoverATileOnceAndSpreadOverBanks) {
  for (const int rows : {64, 80, 128, 192})
    for (const int columns : {64, 128, 256}) {
      std::set<std::uint32_t> seen;
      for (int row = 0; row < rows; ++row)
        for (int chunk = 0; chunk < columns / 8; ++chunk) seen.insert(chunk_offset(rows, row, chunk));
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(rows * columns / 8));
      EXPECT_EQ(*seen.rbegin(), static_cast<std::uint32_t>(rows * columns * 2 - 16));
      // Eight rows of one column of chunks, what one 8x8 matrix is, meet all 32 banks.
      for (int chunk = 0; chunk < columns / 8; ++chunk) {
        std::set<std::uint32_t> banks;
        for (int row = 0; row < 8; ++row) banks.insert(chunk_offset(rows, row, chunk) % 128 / 16);
        EXPECT_EQ(banks.size(), 8u);
      }
    }
}

// A copy with 128-byte swizzle writes its box in order and exchanges bits 4 to 6 of an address by bits 7
// to 9.
TEST(Tile, ChunksLieWhereASwizzledCopyPutsThem) {
  const auto put = [](std::uint32_t at) { return at ^ (at >> 3 & 0x70u); };
  for (const int rows : {16, 64, 128})
    for (const int panels : {1, 2, 4}) {
      std::uint32_t at = 0;  // rows of a panel, panels
      for (int panel = 0; panel < panels; ++panel)
        for (int row = 0; row < rows; ++row)
          for (int chunk = 0; chunk < 8; ++chunk, at += 16)
            ASSERT_EQ(chunk_offset(rows, row, 8 * panel + chunk), put(at)) << row << " " << panel;
      at = 0;  // panels of a row, rows
      for (int row = 0; row < rows; ++row)
        for (int chunk = 0; chunk < 8 * panels; ++chunk, at += 16)
          ASSERT_EQ(row_chunk_offset(panels, row, chunk), put(at)) << row << " " << chunk;
    }
}

// Steps of wgmma along k: 16 columns are two chunks of a row, and panels follow each other.
TEST(Tile, DescriptorStepsFollowTheChunks) {
  for (const int rows : {80, 128, 192})
    for (int i = 0; i < 16; ++i) EXPECT_EQ(k_step(rows, i), chunk_offset(rows, 0, 2 * i)) << rows << " " << i;
  EXPECT_EQ(kRowStep, chunk_offset(128, 16, 0));
  constexpr std::uint64_t d = rows_descriptor(0x12400);
  static_assert((d & 0x3FFF) == 0x1240 && (d >> 32 & 0x3FFF) == 64 && d >> 62 == 1);
  static_assert((advanced(d, 32) & 0x3FFF) == 0x1242);
}

// Documents become sequences of their own: every query is in one piece, which holds the keys it may see.
TEST(Place, DocumentsCutASequenceIntoPieces) {
  AttentionProblem p;
  p.batch = 2, p.q_tokens = 40, p.kv_tokens = 50;
  for (const Index start : {Index{-7}, Index{0}, Index{10}, Index{33}})
    for (const char* text : {"documents(0, 9, 9, 30, 50)", "documents(5, 20) & lengths(50, 12)",
                             "documents(12, 45, 90) & causal"}) {
      const Mask mask = parse_mask(text);
      AttentionArgs a;
      a.mask = mask.set();
      a.q_start = ConstView::packed(&start, DType::i64, {1});
      for (Index b = 0; b < p.batch; ++b) {
        Band band;
        const char* why = "";
        ASSERT_TRUE(band_of(a.mask, b, band, why));
        EXPECT_FALSE(alike(p, a, band));
        std::vector<int> seen(40, 0);
        for (Index piece = 0; piece < pieces_of(band); ++piece) {
          Place place;
          ASSERT_TRUE(place_for(p, a, b, piece, band, place));
          EXPECT_EQ(place.batch, b);
          for (int i = 0; i < place.q_tokens; ++i) {
            const int row = place.q_row + i;
            ++seen[static_cast<std::size_t>(row)];
            for (Index k = 0; k < p.kv_tokens; ++k) {
              const Index key = k - place.kv_row, q = place.q_start + i;
              const bool open =
                  0 <= key && key < place.kv_tokens && key <= q + band.ahead && key >= q - band.back;
              EXPECT_EQ(open, a.mask.of(0).may_attend(start + row, k, {b, 0, start}))
                  << text << row << " " << k;
            }
          }
        }
        EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 40) << text << " from " << start;
      }
    }
}

TEST(Place, RefusesWhatAnIntCannotHold) {
  AttentionProblem p;
  p.batch = 1, p.q_tokens = 4, p.kv_tokens = 9;
  AttentionArgs a;
  Place place;
  EXPECT_TRUE(place_for(p, a, 0, 0, {.keys = 5}, place));
  EXPECT_EQ(place.kv_tokens, 5);
  Index start = kStartEnd;
  a.q_start = AnyView::packed(&start, DType::i64, {1});
  EXPECT_TRUE(place_for(p, a, 0, 0, {}, place));
  EXPECT_EQ(place.q_start, 5);
  start = Index{1} << 40;
  EXPECT_FALSE(place_for(p, a, 0, 0, {}, place));
}

TEST(Splits, FollowEachOtherAndHoldWholeTiles) {
  EXPECT_EQ(split_begin(0), 0);
  for (int split = 0; split < 40; ++split) {
    const int begin = split_begin(split), end = split_begin(split + 1);
    EXPECT_EQ(end - begin, split < kShortSplits ? kShortSplit : kLongSplit);
    EXPECT_EQ(begin % 128, 0) << "a tile of decode lies in one split";
    for (const int key : {begin, begin + 1, end - 1}) EXPECT_EQ(split_of(key), split) << key;
  }
  constexpr Index kLast = (Index{1} << 40) - 1;
  EXPECT_EQ(split_begin(split_of(kLast) + 1), kLast + 1) << "positions past 2^31";
}

TEST(Divisor, DividesAsThePlainOperatorDoes) {
  constexpr int kMost = 2147483647;
  std::vector<int> numbers;
  for (int n = 1; n <= 300; ++n) numbers.push_back(n);
  for (int shift = 8; shift < 31; ++shift)
    for (int near = -2; near <= 2; ++near) numbers.push_back((1 << shift) + near);
  for (const int n : {641, 6700417, 715827883, 1431655765, kMost - 1, kMost}) numbers.push_back(n);
  for (const int by : numbers) {
    const Divisor divisor(by);
    for (const int n : numbers) {
      EXPECT_EQ(divisor.quotient(n), n / by) << n << " / " << by;
      const int last = kMost / by * by - 1;  // the last before the largest multiple
      EXPECT_EQ(divisor.quotient(last), last / by) << last << " / " << by;
      const int product = static_cast<int>(Index{n} * by % kMost);
      EXPECT_EQ(divisor.quotient(product), product / by) << product << " / " << by;
    }
    EXPECT_EQ(divisor.quotient(0), 0);
    EXPECT_EQ(divisor.quotient(kMost), kMost / by) << by;
  }
}

}  // namespace
}  // namespace headwise::cuda
