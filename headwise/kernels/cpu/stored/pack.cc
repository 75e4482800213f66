// Rows of files into units, and back.
#include <cstring>

#include "headwise/base/half.h"
#include "headwise/kernels/cpu/stored/layout.h"
#include "headwise/kernels/cpu/stored/stored.h"

namespace headwise::cpu::stored {
namespace {

int byte_at(const std::byte* p, int i) { return std::to_integer<int>(p[i]); }
void put(std::byte* at, int value) { *at = static_cast<std::byte>(value); }

/// 32 numbers of one row as files have them: two bytes of scale, two of minimum, steps, codes.
struct Group {
  std::byte scale[2] = {}, minimum[2] = {};
  int steps[2] = {};
  int codes[32] = {};
};

void nibbles(const std::byte* q, Group& g) {
  for (int i = 0; i < 16; ++i) g.codes[i] = byte_at(q, i) & 15, g.codes[i + 16] = byte_at(q, i) >> 4;
}
void take(std::byte (&to)[2], const std::byte* from) { std::memcpy(to, from, 2); }

/// Group `j` of 8 in a block of 256.
void read_q4_k(const std::byte* b, int j, Group& g) {
  take(g.scale, b), take(g.minimum, b + 2);
  const std::byte *packed = b + 4, *q = b + 16 + j / 2 * 32;
  g.steps[0] = byte_at(packed, j) & 63, g.steps[1] = byte_at(packed, j + 4) & 63;
  if (j >= 4) {
    g.steps[0] = (byte_at(packed, j + 4) & 15) | (byte_at(packed, j - 4) >> 6) << 4;
    g.steps[1] = (byte_at(packed, j + 4) >> 4) | (byte_at(packed, j) >> 6) << 4;
  }
  for (int i = 0; i < 32; ++i) g.codes[i] = j % 2 == 0 ? byte_at(q, i) & 15 : byte_at(q, i) >> 4;
}
void read_q6_k(const std::byte* b, int j, Group& g) {
  take(g.scale, b + 208);
  const int part = j / 4, line = j % 4;
  const std::byte *four = b + part * 64 + line % 2 * 32, *two = b + 128 + part * 32;
  for (int h = 0; h < 2; ++h) g.steps[h] = byte_at(b + 192 + part * 8 + line * 2, h);
  for (int i = 0; i < 32; ++i) {
    const int low = line < 2 ? byte_at(four, i) & 15 : byte_at(four, i) >> 4;
    g.codes[i] = low | ((byte_at(two, i) >> (2 * line)) & 3) << 4;
  }
}

Group read_group(StoredFormat format, const std::byte* row, Index group) {
  const StoredFacts& facts = facts_of(format);
  const Index each = facts.numbers / kGroup;
  const std::byte* b = row + group / each * facts.bytes;
  const int j = static_cast<int>(group % each);
  Group g;
  switch (format) {
    case StoredFormat::q4_0: take(g.scale, b), nibbles(b + 2, g); break;
    case StoredFormat::q4_1: take(g.scale, b), take(g.minimum, b + 2), nibbles(b + 4, g); break;
    case StoredFormat::q5_0: {
      take(g.scale, b), nibbles(b + 6, g);
      std::uint32_t fifth = 0;
      std::memcpy(&fifth, b + 2, 4);
      for (int i = 0; i < 32; ++i) g.codes[i] |= static_cast<int>((fifth >> i) & 1u) << 4;
      break;
    }
    case StoredFormat::q8_0:
      take(g.scale, b);
      for (int i = 0; i < 32; ++i) g.codes[i] = byte_at(b + 2, i);
      break;
    case StoredFormat::q4_k: read_q4_k(b, j, g); break;
    case StoredFormat::q6_k: read_q6_k(b, j, g); break;
    default: break;
  }
  return g;
}

void put_group(const UnitLayout& u, StoredFormat format, const Group& g, int column, std::byte* unit) {
  std::memcpy(unit + 2 * column, g.scale, 2);
  if (u.minima > 0) std::memcpy(unit + u.minima + 2 * column, g.minimum, 2);
  if (u.steps > 0)
    for (int h = 0; h < 2; ++h) put(unit + u.steps + 16 * h + column, g.steps[h]);
  for (int i = 0; i < 32; ++i) {
    const int t = i / 4, place = column * 4 + i % 4;
    if (format == StoredFormat::q8_0) {
      put(unit + u.low + t * 64 + place, g.codes[i]);
      continue;
    }
    std::byte& low = unit[u.low + t % 4 * 64 + place];
    low |= static_cast<std::byte>((g.codes[i] & 15) << (t < 4 ? 0 : 4));
    if (u.high > 0)
      unit[u.high + t % 2 * 64 + place] |= static_cast<std::byte>((g.codes[i] >> 4) << (t / 2 * 2));
  }
}

Index units_of(StoredFormat format, Index k) { return is_quantized(format) ? k / kGroup : k; }
const UnitLayout& layout_of(StoredFormat format) { return kUnits[static_cast<int>(format)]; }

float half_at(const std::byte* p) {
  f16 h;
  std::memcpy(&h.bits, p, 2);
  return static_cast<float>(h);
}

/// One number of a unit, in the order of kernels.
float number(StoredFormat format, const UnitLayout& u, const std::byte* unit, int column, int i) {
  const int t = i / 4, place = column * 4 + i % 4;
  int code = 0;
  if (format == StoredFormat::q8_0) {
    code = static_cast<std::int8_t>(unit[u.low + t * 64 + place]);
  } else {
    code = (byte_at(unit + u.low, t % 4 * 64 + place) >> (t < 4 ? 0 : 4)) & 15;
    if (u.high > 0) code |= ((byte_at(unit + u.high, t % 2 * 64 + place) >> (t / 2 * 2)) & 3) << 4;
    code -= u.offset;
  }
  double scale = static_cast<double>(half_at(unit + 2 * column)), minimum = 0;
  if (u.minima > 0) minimum = static_cast<double>(half_at(unit + u.minima + 2 * column));
  if (format == StoredFormat::q6_k) scale *= static_cast<std::int8_t>(unit[u.steps + i / 16 * 16 + column]);
  if (format == StoredFormat::q4_k)
    scale *= byte_at(unit + u.steps, column), minimum = -minimum * byte_at(unit + u.steps + 16, column);
  return static_cast<float>(scale * code + minimum);
}

}  // namespace

std::size_t bytes_of(StoredFormat format, Index n, Index k) {
  return static_cast<std::size_t>(ceil_div(n, Index{kUnitColumns}) * units_of(format, k) *
                                  layout_of(format).bytes);
}

void pack(StoredFormat format, Index k, Index first, Index count, const std::byte* rows, std::byte* units) {
  const UnitLayout& u = layout_of(format);
  const StoredFacts& facts = facts_of(format);
  const Index each = units_of(format, k), row_bytes = k / facts.numbers * facts.bytes;
  for (Index r0 = 0; r0 < count; r0 += kUnitColumns) {
    std::byte* column = units + (first + r0) / kUnitColumns * each * u.bytes;
    std::memset(column, 0, static_cast<std::size_t>(each * u.bytes));
    for (Index r = r0; r < count && r < r0 + kUnitColumns; ++r) {
      const std::byte* row = rows + r * row_bytes;
      const int at = static_cast<int>(r - r0);
      for (Index i = 0; i < each; ++i) {
        if (is_quantized(format))
          put_group(u, format, read_group(format, row, i), at, column + i * u.bytes);
        else
          std::memcpy(column + i * u.bytes + at * facts.bytes, row + i * facts.bytes,
                      static_cast<std::size_t>(facts.bytes));
      }
    }
  }
}

void read_row(StoredFormat format, Index k, Index row, const std::byte* units, float* to) {
  const UnitLayout& u = layout_of(format);
  const Index each = units_of(format, k);
  const std::byte* column = units + row / kUnitColumns * each * u.bytes;
  const int at = static_cast<int>(row % kUnitColumns);
  for (Index i = 0; i < k; ++i) {
    if (is_quantized(format)) {
      to[i] = number(format, u, column + i / kGroup * u.bytes, at, static_cast<int>(i % kGroup));
      continue;
    }
    const std::byte* p = column + i * u.bytes + at * facts_of(format).bytes;
    if (format == StoredFormat::f32) {
      std::memcpy(to + i, p, 4);
    } else if (format == StoredFormat::f16) {
      to[i] = half_at(p);
    } else {
      bf16 b;
      std::memcpy(&b.bits, p, 2);
      to[i] = static_cast<float>(b);
    }
  }
}

}  // namespace headwise::cpu::stored
