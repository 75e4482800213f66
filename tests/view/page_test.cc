// Packed weights against the weights themselves, the budget of a page, and hostile files of arrays.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>

#include "headwise/base/error.h"
#include "headwise/view/array_maps.h"
#include "headwise/view/npy.h"
#include "headwise/view/packed_maps.h"
#include "headwise/view/view_page.h"

namespace headwise {
namespace {

AttentionMaps maps_like(Index layers, Index heads, Index tokens) {
  AttentionMaps m;
  for (Index t = 0; t < tokens; ++t) m.queries.texts.push_back("t" + std::to_string(t));
  m.keys = m.queries;
  m.heads.assign(static_cast<std::size_t>(layers), heads);
  m.row = [](Index layer, Index head, Index query, std::span<float> row) {
    double sum = 0;
    for (std::size_t j = 0; j < row.size(); ++j) {
      const double far = static_cast<double>(j) - static_cast<double>(query + head - layer);
      row[j] = static_cast<float>(std::exp(-0.05 * far * far));
      sum += row[j];
    }
    for (float& w : row) w = static_cast<float>(w / sum);
  };
  return m;
}

/// What the page's script does with one head's bytes.
std::vector<std::vector<float>> unpacked(const PackedLayer& layer, Index tokens, std::size_t& at) {
  std::vector<std::vector<float>> rows;
  for (Index i = 0; i < tokens; ++i) {
    const auto place = static_cast<std::size_t>(2 * i);
    const int count = layer.counts[place] | (layer.counts[place + 1] << 8);
    std::vector<float> row(static_cast<std::size_t>(tokens), 0.0f);
    std::size_t key = 0;
    for (int e = 0; e < count; ++e, ++key) {
      const auto half = [&] {
        const unsigned byte = layer.halves[at / 2], shift = at % 2 ? 4 : 0;
        ++at;
        return (byte >> shift) & 15u;
      };
      unsigned skipped = half();
      for (; skipped == 15; skipped = half()) key += 15;
      key += skipped;
      const unsigned low = half();
      row[key] = weight_of_code(static_cast<unsigned char>(low | (half() << 4u)));
    }
    rows.push_back(row);
  }
  return rows;
}

TEST(View, CodesKeepWeightsWithinTheirStep) {
  EXPECT_EQ(weight_code(0), 0);
  EXPECT_EQ(weight_code(-1), 0);
  EXPECT_EQ(weight_code(std::nanf("")), 0);
  EXPECT_EQ(weight_code(1), 255);
  EXPECT_EQ(weight_code(7), 255);
  EXPECT_EQ(weight_of_code(255), 1.0f);
  for (double w = 1; w > 1e-7; w *= 0.97)
    EXPECT_NEAR(weight_of_code(weight_code(static_cast<float>(w))) / w, 1, 0.034) << w;
}

TEST(View, PackedRowsComeBack) {
  const AttentionMaps m = maps_like(1, 1, 700);  // gaps above 255 too
  const PackedMaps packed = pack_maps(m, 1);
  std::size_t at = 0;
  const auto rows = unpacked(packed.layers[0], 700, at);
  EXPECT_EQ((at + 1) / 2, packed.layers[0].halves.size());
  std::vector<float> row(700);
  for (Index i = 0; i < 700; i += 37) {
    m.row(0, 0, i, row);
    for (std::size_t j = 0; j < 700; ++j)
      EXPECT_NEAR(rows[static_cast<std::size_t>(i)][j], row[j], 0.034 * row[j] + 6e-8) << i << " " << j;
  }
  EXPECT_LT(packed.left_out, 1e-4);
  EXPECT_EQ(packed.unusual, 0);
  EXPECT_NEAR(packed.layers[0].figures[0].self, 0.126, 0.01);  // sqrt(0.05 / pi)
}

TEST(View, WhatDoesNotFitIsLeftOutSmallestFirstAndCounted) {
  const AttentionMaps m = maps_like(2, 4, 128);
  const int least = least_code_that_fits(std::span(&m, 1), 20'000);
  EXPECT_GT(least, 1);
  const PackedMaps packed = pack_maps(m, least);
  std::size_t bytes = 0;
  double kept = 0;
  for (const PackedLayer& l : packed.layers) {
    bytes += l.halves.size() + l.counts.size() + l.rest.size();
    for (const unsigned char r : l.rest) kept += 1 - r / 255.0;
  }
  EXPECT_NEAR(static_cast<double>(bytes), 19'500, 900);
  EXPECT_NEAR(1 - kept / static_cast<double>(packed.rows), packed.left_out, 0.004);
  EXPECT_GT(packed.left_out, 0.01);
}

TEST(View, UnusualRowsAreSaidNotRefused) {
  AttentionMaps m = maps_like(1, 1, 4);
  m.row = [](Index, Index, Index query, std::span<float> row) {
    row[0] = query == 0 ? std::numeric_limits<float>::quiet_NaN() : 0.5f;
    row[1] = query == 1 ? -1.0f : 0.5f;
  };
  m.queries.texts[2] = "</script><b>";
  m.keys = m.queries;
  const ViewPage page = view_page(std::span(&m, 1));
  ASSERT_EQ(page.warnings.size(), 2u);
  EXPECT_NE(page.warnings[0].find("2 weights"), std::string::npos) << page.warnings[0];
  EXPECT_NE(page.warnings[1].find("2 of 4 rows"), std::string::npos) << page.warnings[1];
  EXPECT_EQ(page.page.find("</script><b>"), std::string::npos);
}

std::string npy_text(const std::string& header, std::size_t data) {
  std::string s = "\x93NUMPY";
  s += '\x01', s += '\0';
  s += static_cast<char>(header.size() & 255), s += static_cast<char>(header.size() >> 8);
  return s + header + std::string(data, '\0');
}
std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

TEST(View, HeadersOfArraysAreRead) {
  const std::string s = npy_text("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", 24);
  const FileArray a = parse_npy(bytes_of(s), "view: x");
  EXPECT_EQ(a.sizes, (std::vector<Index>{2, 3}));
  EXPECT_EQ(a.number(5), 0.0f);
}

TEST(View, HostileArraysAreRefusedInWords) {
  for (const std::string& header :
       {std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }"),
        std::string("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }"),
        std::string("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"),
        std::string("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }"),
        std::string("{'descr': '<f4', 'shape': (99999999999999999999, 2), 'fortran_order': False}"),
        std::string("{'shape'"), std::string("")}) {
    const std::string s = npy_text(header, 24);
    EXPECT_THROW(parse_npy(bytes_of(s), "view: x"), Error) << header;
  }
  std::string zip = "PK\5\6" + std::string(18, '\xff');
  EXPECT_THROW(parse_npz(bytes_of(zip), "view: x"), Error);
  // Any bytes: an error or arrays that lie inside the file, never a crash.
  std::uint32_t state = 1;
  const std::string whole = npy_text("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", 24);
  for (int n = 0; n < 3000; ++n) {
    std::string s = whole;
    for (int k = 0; k < 3; ++k) {
      state = state * 1664525 + 1013904223;
      s[(state >> 8) % s.size()] = static_cast<char>(state >> 24);
    }
    try {
      const FileArray a = parse_npy(bytes_of(s), "view: x");
      if (a.count() > 0 && !a.is_text()) {
        EXPECT_LE(reinterpret_cast<const char*>(a.data) + a.count() * a.element_bytes, s.data() + s.size());
      }
    } catch (const Error&) {
    }
  }
}

/// Kilobytes of files that this process holds in memory.
Index file_kilobytes() {
  std::ifstream status("/proc/self/status");
  Index sum = 0;
  for (std::string word; status >> word;)
    if (word == "RssFile:" || word == "RssShmem:") {
      Index part = 0;
      status >> part;
      sum += part;
    }
  return sum;
}

TEST(View, RowsThatWereReadLeaveMemory) {
  const std::string path = testing::TempDir() + "rows.npy";
  const std::string head =
      npy_text("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 1024, 4096), }\n", 0);
  constexpr Index kBytes = Index{4} * 1024 * 4096 * 4;
  {
    std::ofstream out(path, std::ios::binary);
    out << head;
    const float last = 0.5F;  // the rest is a hole in the file: zeros
    out.seekp(static_cast<std::streamoff>(head.size()) + kBytes - 4);
    out.write(reinterpret_cast<const char*>(&last), 4);
  }
  const ArrayFile file(path, "view");
  const AttentionMaps maps = maps_of_arrays(file, {})[0];
  std::vector<float> row(4096);
  const Index before = file_kilobytes();
  for (int round = 0; round < 2; ++round)
    for (Index h = 0; h < 4; ++h)
      for (Index i = 0; i < 1024; ++i) {
        maps.row(0, h, i, row);
        ASSERT_EQ(row[4095], h == 3 && i == 1023 ? 0.5F : 0.0F);
        if (i % 256 == 255) {
          ASSERT_LE(file_kilobytes() - before, 12 * 1024) << h << " " << i;
        }
      }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace headwise
