// Runs: consecutive elements of an axis of any step and float type as f32 side by side, and back.
// Included by every ISA level after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/tile/row_load.h"

namespace headwise::cpu::gemm {
namespace {

inline Index offset_of(const Axis& axis, Index i) {
  return i / axis.inner * axis.outer_step + i % axis.inner * axis.step;
}
inline Index unit_of(RowType type) { return type == RowType::f32 ? 4 : 2; }

/// Calls part(address of the first, step, count, done so far) for each piece of the run inside one inner
/// level.
template <class Part>
inline void each_piece(const Axis& axis, Index start, Index count, Part&& part) {
  for (Index done = 0; done < count;) {
    const Index left = axis.inner - (start + done) % axis.inner,
                n = left < count - done ? left : count - done;
    part(offset_of(axis, start + done), n, done);
    done += n;
  }
}

inline void load_stretch(const void* data, RowType type, const Axis& axis, Index start, Index count,
                         float* out) {
  each_piece(axis, start, count, [&](Index offset, Index n, Index done) {
    const Rows rows{static_cast<const char*>(data) + offset * unit_of(type), 0, axis.step, 0, n, type};
    load_row(rows, 0, n, out + done);
  });
}
inline void store_stretch(const float* from, Index count, RowType type, void* data, const Axis& axis,
                          Index start) {
  each_piece(axis, start, count, [&](Index offset, Index n, Index done) {
    store_row(from + done, n, type, static_cast<char*>(data) + offset * unit_of(type), axis.step);
  });
}

/// Elements of `line` from k0 on; zeros up to `padded`.
inline void load_line(const Side& side, Index line, Index k0, Index k, Index padded, float* out) {
  const char* at = static_cast<const char*>(side.data) + offset_of(side.line, line) * unit_of(side.type);
  load_stretch(at, side.type, side.k, k0, k, out);
  for (Index i = k; i < padded; ++i) out[i] = 0.0f;
}
/// The same across: lines first .. first + count at one k.
inline void load_across(const Side& side, Index first, Index count, Index k, Index padded, float* out) {
  const char* at = static_cast<const char*>(side.data) + offset_of(side.k, k) * unit_of(side.type);
  load_stretch(at, side.type, side.line, first, count, out);
  for (Index i = count; i < padded; ++i) out[i] = 0.0f;
}

/// Lines lie side by side at each k: packing copies. Otherwise each line is read along k.
inline bool lies_across(const Side& side) {
  return side.line.step == 1 && side.line.inner > 1 && side.k.step != 1;
}

}  // namespace
}  // namespace headwise::cpu::gemm
