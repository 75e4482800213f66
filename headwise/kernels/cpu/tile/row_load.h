// Rows: strided rows of any 16- or 32-bit float to packed f32 rows and back, columns that do not exist as 0.
// Included by every ISA level after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/tile_kernels.h"

namespace headwise::cpu {
namespace {

inline Index rounded(Index n, Index multiple) { return (n + multiple - 1) / multiple * multiple; }

/// Walks over the lines of rows that come later. Rows side by side are taken in eight places at once: memory
/// gives a core more that way (two cores, pages of 4 KB: 33 GB/s, from one place 24). Rows far apart go one
/// by one, and only to L2: they fall on few sets of L1 (4 KB from row to row: eight places lose 10 %).
struct Fetch {
  static constexpr Index kPlaces = 8;
  const char* row;
  Index step, bytes;
  bool apart;
  Index each, rows, part, at = 0, due = 0;  // each: lines of a round; rows: left of every place
  explicit Fetch(const Ahead& a)
      : row(static_cast<const char*>(a.data)),
        step(a.step),
        bytes(a.bytes),
        apart(bytes > 0 && step >= 2 * bytes),
        each(apart ? (bytes + 63) / 64 : kPlaces),
        rows(apart ? a.rows : (a.rows + kPlaces - 1) / kPlaces),
        part(rows * step) {}
  void next(Index lines) {
    if constexpr (Lanes::prefetches)
      for (due += lines; due >= each; due -= each) round();
  }

 private:
  static constexpr Index kNever = Index{-1} << 60;
  /// One line of every place, or a row.
  void round() {
    if (apart) {
      for (Index i = 0; i < bytes; i += 64) Lanes::prefetch_far(row + i);
    } else {
      const char* line = row + at;
#pragma GCC unroll 8
      for (Index i = 0; i < kPlaces; ++i) Lanes::prefetch(line + i * part);
      at += 64;
      if (at < bytes) return;
      at = 0;
    }
    row += step;
    if (--rows <= 0) due = kNever;
  }
};
/// Of one row; 0: nothing is fetched.
inline Index lines_of(const Ahead& a) { return Lanes::prefetches ? (a.bytes + 63) / 64 : 0; }

template <RowType T>
struct Element;
template <>
struct Element<RowType::f32> {
  using type = float;
  static Lanes::F load(const float* p) { return Lanes::load(p); }
  static void store(float* p, Lanes::F x) { Lanes::store(p, x); }
};
template <>
struct Element<RowType::bf16> {
  using type = std::uint16_t;
  static Lanes::F load(const std::uint16_t* p) { return Lanes::load_bf16(p); }
  static void store(std::uint16_t* p, Lanes::F x) { Lanes::store_bf16(p, x); }
};
template <>
struct Element<RowType::f16> {
  using type = std::uint16_t;
  static Lanes::F load(const std::uint16_t* p) { return Lanes::load_f16(p); }
  static void store(std::uint16_t* p, Lanes::F x) { Lanes::store_f16(p, x); }
};

template <>
struct Element<RowType::i8> {
  using type = std::int8_t;
  static Lanes::F load(const std::int8_t* p) { return Lanes::load_i8(p); }
};
template <>
struct Element<RowType::e4m3> {
  using type = std::uint8_t;
  static Lanes::F load(const std::uint8_t* p) { return Lanes::load_e4m3(p); }
};

/// Elements from the first row to this one.
inline Index row_offset(const Rows& rows, Index row) {
  return rows.block > 0 ? row / 16 * rows.block + row % 16 : row * rows.row_step;
}
/// What the numbers of a row are multiplied by as they are loaded.
template <RowType T>
Lanes::F row_scale(const Rows& rows, Index row) {
  if constexpr (is_eight_bits(T))
    return Lanes::set(rows.scale ? rows.scale[row * rows.scale_step] : 1.0f);
  else
    return Lanes::zero();
}
template <RowType T>
Lanes::F scaled(Lanes::F x, Lanes::F scale) {
  if constexpr (is_eight_bits(T))
    return Lanes::mul(x, scale);
  else
    return x;
}

template <RowType T>
void load_row(const Rows& rows, Index row, Index count, float* out) {
  using E = Element<T>;
  const auto* from = static_cast<const typename E::type*>(rows.data) + row_offset(rows, row);
  const Lanes::F scale = row_scale<T>(rows, row);
  const Index begin = rows.begin, end = rows.end < count ? rows.end : count;
  for (Index c = 0; c < begin && c < count; ++c) out[c] = 0.0f;
  Index c = begin;
  if (rows.column_step == 1) {
    for (; c + Lanes::width <= end; c += Lanes::width)
      Lanes::store(out + c, scaled<T>(E::load(from + c), scale));
  }
  if (c < end) {
    typename E::type rest[Lanes::width] = {};
    float wide[Lanes::width];
    while (c < end) {
      const Index n = end - c < Lanes::width ? end - c : Lanes::width;
      for (Index i = 0; i < n; ++i) rest[i] = from[(c + i) * rows.column_step];
      Lanes::store(wide, scaled<T>(E::load(rest), scale));
      for (Index i = 0; i < n; ++i) out[c + i] = wide[i];
      c += n;
    }
  }
  for (c = end > begin ? end : begin; c < count; ++c) out[c] = 0.0f;
}

/// Columns 0..count of one row as f32.
inline void load_row(const Rows& rows, Index row, Index count, float* out) {
  switch (rows.type) {
    case RowType::f32: return load_row<RowType::f32>(rows, row, count, out);
    case RowType::bf16: return load_row<RowType::bf16>(rows, row, count, out);
    case RowType::f16: return load_row<RowType::f16>(rows, row, count, out);
    case RowType::i8: return load_row<RowType::i8>(rows, row, count, out);
    case RowType::e4m3: return load_row<RowType::e4m3>(rows, row, count, out);
  }
}

/// `count` rows from `first` on, each as f32 columns 0..columns of out + k * out_step.
template <RowType T>
void load_rows(const Rows& rows, Index first, Index count, Index columns, float* out, Index out_step) {
  using E = Element<T>;
  const bool whole =
      rows.column_step == 1 && rows.begin == 0 && rows.end == columns && columns % Lanes::width == 0;
  for (Index k = 0; k < count; ++k) {
    if (!whole) {
      load_row<T>(rows, first + k, columns, out + k * out_step);
      continue;
    }
    const auto* from = static_cast<const typename E::type*>(rows.data) + (first + k) * rows.row_step;
    const Lanes::F scale = row_scale<T>(rows, first + k);
    for (Index c = 0; c < columns; c += Lanes::width)
      Lanes::store(out + k * out_step + c, scaled<T>(E::load(from + c), scale));
  }
}
inline void load_rows(const Rows& rows, Index first, Index count, Index columns, float* out, Index out_step) {
  switch (rows.type) {
    case RowType::f32: return load_rows<RowType::f32>(rows, first, count, columns, out, out_step);
    case RowType::bf16: return load_rows<RowType::bf16>(rows, first, count, columns, out, out_step);
    case RowType::f16: return load_rows<RowType::f16>(rows, first, count, columns, out, out_step);
    case RowType::i8: return load_rows<RowType::i8>(rows, first, count, columns, out, out_step);
    case RowType::e4m3: return load_rows<RowType::e4m3>(rows, first, count, columns, out, out_step);
  }
}

/// The same rows seen from column c0 on; no column past `dim` exists.
inline Rows columns_from(const Rows& rows, Index c0, Index dim) {
  Rows part = rows;
  const Index unit = bytes_of(rows.type), end = rows.end < dim ? rows.end : dim;
  part.data = static_cast<const char*>(rows.data) + c0 * rows.column_step * unit;
  part.end = end > c0 ? end - c0 : 0;
  part.begin = rows.begin > c0 ? rows.begin - c0 : 0;
  if (part.begin > part.end) part.begin = part.end;
  return part;
}

template <RowType T>
void store_row(const float* row, Index count, void* out, Index column_step) {
  using E = Element<T>;
  auto* to = static_cast<typename E::type*>(out);
  Index c = 0;
  if (column_step == 1)
    for (; c + Lanes::width <= count; c += Lanes::width) E::store(to + c, Lanes::load(row + c));
  typename E::type narrow[Lanes::width];
  for (; c < count; c += Lanes::width) {
    const Index n = count - c < Lanes::width ? count - c : Lanes::width;
    E::store(narrow, Lanes::load_part(row + c, static_cast<int>(n)));
    for (Index i = 0; i < n; ++i) to[(c + i) * column_step] = narrow[i];
  }
}
inline void store_row(const float* row, Index count, RowType type, void* out, Index column_step) {
  switch (type) {
    case RowType::f32: return store_row<RowType::f32>(row, count, out, column_step);
    case RowType::bf16: return store_row<RowType::bf16>(row, count, out, column_step);
    case RowType::f16: return store_row<RowType::f16>(row, count, out, column_step);
    case RowType::i8:
    case RowType::e4m3: return;  // no op writes rows of 8 bits
  }
}

/// in [W * NV rows][in_step] -> out [columns][W * NV]; columns may be any number, in rows hold
/// rounded(columns, W) floats.
template <int NV>
void transpose_panel(const float* in, Index in_step, Index columns, float* out) {
  constexpr int W = Lanes::width, kPanel = NV * W;
  for (Index c = 0; c < columns; c += W)
    for (int j = 0; j < NV; ++j) {
      Lanes::F t[W];
      for (int i = 0; i < W; ++i) t[i] = Lanes::load(in + (j * W + i) * in_step + c);
      Lanes::transpose(t);
      for (int i = 0; i < W && c + i < columns; ++i) Lanes::store(out + (c + i) * kPanel + j * W, t[i]);
    }
}

}  // namespace
}  // namespace headwise::cpu
