#!/usr/bin/env python3
"""Writes the wrappers over wgmma.mma_async m64nNk16: float += 16-bit x 16-bit, for the widths the kernels use.

Usage: make_wgmma.py OUT"""
import pathlib
import sys

WIDTHS = (32, 64, 80, 96, 128, 192, 256)
TYPES = {"bf16": "bf16", "f16": "f16"}

HEAD = """// Made by make_wgmma.py: the matrix products of a warpgroup, one struct a width and number format.
#pragma once
#include <cstdint>

#include "headwise/base/half.h"

namespace headwise::cuda {

/// d [64 N] is spread over 128 threads, N / 2 floats each: row 16 * warp + lane / 4 + 8 * ((i >> 1) & 1), column
/// 8 * (i / 4) + 2 * (lane % 4) + (i & 1). keep = 0 overwrites d, 1 adds to it.
template <int N, class T>
struct Wgmma;
"""

BODY = """
template <>
struct Wgmma<{n}, {t}> {{
  /// Both factors in shared memory, rows of k consecutive: d += a b^T.
  static __device__ __forceinline__ void both_shared(float (&d)[{half}], std::uint64_t a, std::uint64_t b, int keep) {{
    asm volatile(
        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{keep_ss}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{i}.{i} {{{regs}}}, %{half}, %{b_ss}, p, 1, 1, 0, 0;\\n}}\\n"
        : {outs}
        : "l"(a), "l"(b), "r"(keep));
  }}
  /// d = a b^T or, TurnB = 1, a b with b's columns consecutive. The old d is dead: it holds no registers.
  template <int TurnB>
  static __device__ __forceinline__ void first_shared(float (&d)[{half}], std::uint64_t a, std::uint64_t b) {{
    asm volatile(
        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, 0, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{i}.{i} {{{regs}}}, %{half}, %{b_ss}, p, 1, 1, 0, %{keep_ss};\\n}}\\n"
        : {dead}
        : "l"(a), "l"(b), "n"(TurnB));
  }}
  template <int TurnB>
  static __device__ __forceinline__ void more_shared(float (&d)[{half}], std::uint64_t a, std::uint64_t b) {{
    asm volatile(
        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{i}.{i} {{{regs}}}, %{half}, %{b_ss}, p, 1, 1, 0, %{keep_ss};\\n}}\\n"
        : {outs}
        : "l"(a), "l"(b), "n"(TurnB));
  }}
  /// Both factors in shared memory, their columns consecutive: d += a^T b.
  static __device__ __forceinline__ void both_turned(float (&d)[{half}], std::uint64_t a, std::uint64_t b) {{
    asm volatile(
        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{i}.{i} {{{regs}}}, %{half}, %{b_ss}, p, 1, 1, 1, 1;\\n}}\\n"
        : {outs}
        : "l"(a), "l"(b));
  }}
  /// a in shared memory with its columns consecutive, b with its rows of k consecutive: d += a^T b^T.
  static __device__ __forceinline__ void left_turned(float (&d)[{half}], std::uint64_t a, std::uint64_t b) {{
    asm volatile(
        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{i}.{i} {{{regs}}}, %{half}, %{b_ss}, p, 1, 1, 1, 0;\\n}}\\n"
        : {outs}
        : "l"(a), "l"(b));
  }}
  /// a in registers, b in shared memory with its rows of k consecutive: d = a b^T, and more of it.
  static __device__ __forceinline__ void first_registers(float (&d)[{half}], const std::uint32_t* a, std::uint64_t b) {{
    asm volatile(
        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, 0, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{i}.{i} {{{regs}}}, {{%{half}, %{a1}, %{a2}, %{a3}}}, %{b_rs}, p, 1, 1, 0;\\n}}\\n"
        : {dead}
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }}
  static __device__ __forceinline__ void more_registers(float (&d)[{half}], const std::uint32_t* a, std::uint64_t b) {{
    asm volatile(
        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{i}.{i} {{{regs}}}, {{%{half}, %{a1}, %{a2}, %{a3}}}, %{b_rs}, p, 1, 1, 0;\\n}}\\n"
        : {outs}
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }}
  /// a in registers, b in shared memory with its columns consecutive: d += a b.
  static __device__ __forceinline__ void left_registers(float (&d)[{half}], const std::uint32_t* a, std::uint64_t b) {{
    asm volatile(
        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{i}.{i} {{{regs}}}, {{%{half}, %{a1}, %{a2}, %{a3}}}, %{b_rs}, p, 1, 1, 1;\\n}}\\n"
        : {outs}
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }}
}};
"""


def main(out):
    text = HEAD
    for name, instruction in TYPES.items():
        for n in WIDTHS:
            half = n // 2
            text += BODY.format(n=n, t=name, i=instruction, half=half, b_ss=half + 1, keep_ss=half + 2,
                                a1=half + 1, a2=half + 2, a3=half + 3, b_rs=half + 4,
                                regs=", ".join(f"%{i}" for i in range(half)),
                                outs=", ".join(f'"+f"(d[{i}])' for i in range(half)),
                                dead=", ".join(f'"=f"(d[{i}])' for i in range(half)))
    text += "\n}  // namespace headwise::cuda\n"
    pathlib.Path(out).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
