#!/usr/bin/env python3
"""Is this build right on this GPU? Every kernel against double, its laws, its bits. Ends in "N passed, M failed".

Usage: check.py [selftest] [laws] [module] [backward] [heads] [probes] [growth] [processors] [products] [phase] [blocks] [eight] [graphs] [edges] [adapters] [--json FILE]
(the last twelve: what selftest and laws hold of gradients, of mixed heads and entmax, of probes, of rising scores, of the number of processors, of the two kinds
of products, of cuda/phase, of block masks, of 8-bit keys and values, of graphs, of edges, of flash_attn's names and
transformers)"""
import json
import math
import random
import sys
import time

import torch

from adapter_cases import ADAPTERS
from backward_cases import BACKWARD_LAWS, BACKWARD_SELFTEST
from block_cases import BLOCK_SELFTEST
from common import DEVICE, TALLY, check, guarded, normal
from graph_cases import GRAPH_LAWS
from growth_cases import growth_cases, growth_laws
from head_cases import HEAD_LAWS, HEAD_SELFTEST
from harness import GUARD, Attention, Failed, Mask, devices, formula, open_pairs, relative
from edge_cases import EDGE_SELFTEST
from eight_cases import EIGHT_LAWS, EIGHT_MODULE, EIGHT_SELFTEST
from module_cases import MODULE
from page_cases import page_cases
from phase_cases import PHASE_LAWS
from probe_cases import look_cases, look_laws, row_cases, some_row_cases
from processor_cases import processor_laws
from product_cases import product_laws

BEST = Attention("")  # the kernel the plan chooses
RUN = {name: Attention(name) for name in ("cuda/hopper", "cuda/decode", "cuda/mma", "cuda/plain")}


def judge(part, dtype, out, lse, truth, truth_lse, yard, reach=0.0):
    """Policy T1 or T2 for out; lse within 1e-6 of max(1, |lse|), four roundings more of the largest term `reach`."""
    out, lse = out.double(), lse.double()
    if bool(torch.isnan(out).any()) or bool(torch.isnan(lse).any()):
        return check(False, part, "NaN in the output")
    error, limit = relative(out, truth), max(GUARD[dtype], relative(yard.double(), truth))
    finite = torch.isfinite(truth_lse)
    lse_error = ((lse - truth_lse).abs() / truth_lse.abs().clamp(min=1))[finite].max().item() if finite.any() else 0.0
    lse_limit = 1e-13 if dtype == torch.float64 else 1e-6 + 4 * 2.0 ** -24 * reach
    name = part.split()[0] + " " + str(dtype)[6:]
    worst = TALLY["worst"].setdefault(name, {"out": 0.0, "lse": 0.0})
    worst["out"], worst["lse"] = max(worst["out"], error), max(worst["lse"], lse_error)
    check(error <= limit, part, f"relative error {error:.2e}, allowed {limit:.2e}")
    check(lse_error <= lse_limit and bool((lse[~finite] == -math.inf).all()), part, f"lse error {lse_error:.2e} > {lse_limit:.1e}")


def case(kernel, dtype, b, h, kv, tq, tk, d, dv=None, mask=None, band=None, q_start=0, layout="bshd", start_end=False, **terms):
    """One padded run; `band` = (back, ahead) is what the mask text means."""
    dv = dv or d
    part = (f"{kernel} {str(dtype)[6:]} {b}x{h}/{kv} {tq}x{tk} d{d}/{dv} {mask or 'all'} start {q_start} {layout} "
            + " ".join(terms))
    q, k, v = normal(b, tq, h, d, dtype=dtype, layout=layout), normal(b, tk, kv, d, dtype=dtype, layout=layout), \
        normal(b, tk, kv, dv, dtype=dtype, layout=layout)
    out, out_ok = guarded(b, tq, h, dv, dtype=dtype)
    lse, lse_ok = guarded(b, h, tq, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    open_ = open_pairs(tq, tk, q_start, *(band or (None, None)))
    given = dict(terms)
    if q_start:
        given["q_start"] = torch.tensor([q_start])
    try:
        RUN[kernel](q, k, v, out, lse, mask=mask, **given)
        torch.cuda.synchronize()
    except Failed as fault:
        return check(False, part, str(fault))
    math_terms = {n: x for n, x in terms.items() if n in ("softcap", "slopes", "sinks", "bias")}
    if "scale" in terms:
        math_terms["scale"] = terms["scale"].to(DEVICE).view(1, -1, 1, 1).double()
    truth, truth_lse = formula(q, k, v, open_, q_start=q_start, **math_terms)
    yard, _ = formula(q, k, v, open_, q_start=q_start, dtype=dtype, **{n: (x.to(dtype) if torch.is_tensor(x) else x)
                                                                      for n, x in math_terms.items()})
    if "gate" in terms:
        truth, yard = truth * terms["gate"].double()[..., None], yard * terms["gate"].to(dtype)[..., None]
    reach = terms["slopes"].max().item() * max(tq + abs(q_start), tk) if "slopes" in terms else 0.0
    judge(part, dtype, out, lse, truth, truth_lse, yard, reach)
    check(out_ok() and lse_ok(), part, "wrote outside of its output")


def plain_cases():
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for i, (b, h, kv, tq, tk, d, dv) in enumerate([(1, 1, 1, 1, 1, 1, 1), (2, 4, 2, 33, 65, 59, 80), (1, 2, 1, 7, 100, 300, 20),
                                                       (3, 3, 3, 40, 31, 64, 64), (1, 4, 4, 64, 64, 96, 520)]):
            for mask, band in ((None, None), ("causal", (None, 0)), ("window(5, 3)", (5, 3))):
                if dtype != torch.float64 and max(d, dv) <= 512:
                    case("cuda/mma", dtype, b, h, kv, tq, tk, d, dv, mask, band, layout=("bshd", "bhsd", "packed")[i % 3])
                case("cuda/plain", dtype, b, h, kv, tq, tk, d, dv, mask, band, layout=("bshd", "bhsd", "packed")[i % 3])
        h = 4
        if dtype == torch.float64:  # terms of f64 keep their digits
            wide = dict(dtype=torch.float64, device=DEVICE)
            case("cuda/plain", dtype, 2, h, 2, 30, 50, 40, softcap=5.0, slopes=torch.rand(h, **wide), q_start=11, sinks=torch.randn(h, **wide) * 3,
                 bias=torch.randn(2, h, 30, 50, **wide), gate=torch.rand(2, 30, h, **wide), scale=torch.rand(h, dtype=torch.float64) + 0.1)
        for kernel in ("cuda/plain", "cuda/mma") if dtype != torch.float64 else ("cuda/plain",):
            case(kernel, dtype, 2, h, 2, 30, 50, 40, softcap=5.0, slopes=torch.rand(h, device=DEVICE), q_start=11,
                 sinks=torch.randn(h, device=DEVICE) * 3, bias=torch.randn(2, h, 30, 50, device=DEVICE),
                 gate=torch.rand(2, 30, h, device=DEVICE), scale=torch.rand(h, dtype=torch.float64) + 0.1)


def mma_cases():
    """cuda/mma: every width up to 512, sizes around its tiles, dropout and relative positions against the double reference."""
    widths = [(64, 64), (128, 128), (96, 96), (192, 128), (80, 112), (256, 256), (300, 20), (16, 300), (512, 512)]
    shapes = [(2, 4, 2, 65, 129), (1, 8, 2, 200, 333), (1, 2, 1, 63, 64), (1, 2, 2, 300, 31), (1, 1, 1, 40, 9000)]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for n, (d, dv) in enumerate(widths):
            for i, (b, h, kv, tq, tk) in enumerate(shapes):
                mask, band, _ = MASKS[(n + i) % 4]
                case("cuda/mma", dtype, b, h, kv, tq, tk, d, dv, mask, band, q_start=tk - tq, layout=("bshd", "bhsd", "packed")[i % 3])
    reference = Attention("ref")
    for dtype, d in ((torch.bfloat16, 64), (torch.float16, 96), (torch.bfloat16, 128), (torch.float16, 192), (torch.float16, 256)):
        for mask, ids in ((None, None), ("causal", torch.tensor([7, 2 ** 31 + 5]))):
            x = [torch.randn(2, t, n, d).to(dtype) for t, n in ((150, 4), (333, 2), (333, 2))]
            given = dict(mask=mask, dropout=0.3, seed=2 ** 40 + 77, q_start=torch.tensor([183]), **({} if ids is None else {"sequence_ids": ids}))
            truth, lse = reference(*(t.double() for t in x), **given), torch.empty(2, 4, 150, device=DEVICE)
            got = RUN["cuda/hopper"](*(t.to(DEVICE) for t in x), None, lse, **given)
            plain = RUN["cuda/hopper"](*(t.to(DEVICE) for t in x), mask=mask, q_start=given["q_start"])
            error = relative(got.cpu().double(), truth)
            check(error < 1.5 * GUARD[dtype] and relative(plain.cpu().double(), truth) > 0.05, f"cuda/hopper dropout {str(dtype)[6:]} d{d} {mask}", f"relative error {error:.1e}")
    b, h, tq, tk, d = 2, 4, 90, 130, 40
    for dtype in (torch.bfloat16, torch.float32):
        x = [torch.randn(b, t, n, d).to(dtype) for t, n in ((tq, h), (tk, 2), (tk, 2))]
        for name, terms in (("dropout", {"dropout": 0.3, "seed": 77}), ("relative", {"relative": torch.randn(32, h), "max_distance": 50}),
                            ("both ways", {"relative": torch.randn(32, h), "max_distance": 50, "bidirectional": 1, "dropout": 0.1, "seed": 5})):
            truth = reference(*(t.double() for t in x), mask="causal | prefix(20)", **{n: t.double() if torch.is_tensor(t) else t for n, t in terms.items()})
            there = {n: t.to(DEVICE) if torch.is_tensor(t) else t for n, t in terms.items()}
            for kernel in ("cuda/mma", "cuda/plain"):
                got = RUN[kernel](*(t.to(DEVICE) for t in x), mask="causal | prefix(20)", **there)
                error = relative(got.cpu().double(), truth)
                check(error < GUARD[dtype], f"{kernel} {name} {str(dtype)[6:]}", f"relative error {error:.1e}")


def mask_cases():
    """Every mask against headwise's own definition, through the double reference on the CPU."""
    reference = Attention("ref")
    b, h, tq, tk, d = 2, 3, 37, 53, 24
    texts = ("causal", "prefix(9)", "window(4, 2) | prefix(3)", "lengths(11, 53)", "documents(0, 7, 20, 53) & causal",
             "blocks(8, 8; 0, 2, 3, 5, 5, 6; 0, 1, 2, 4, 6, 3)", "strided(5, 2)", "global(3, 17) | window(2, 2)",
             "per_head(causal; all; window(6, 0))")
    for expression in texts:
        q, k, v = (torch.randn(b, t, h, d, dtype=torch.float64) for t in (tq, tk, tk))
        mask = Mask(expression)
        truth = reference(q, k, v, mask=mask)
        got = RUN["cuda/plain"](*(x.to(DEVICE) for x in (q, k, v)), mask=mask)
        check(relative(got.cpu(), truth) < 1e-13, "cuda/plain masks", f"{expression}: {relative(got.cpu(), truth):.1e}")
    b, h, tq, tk, d = 2, 3, 150, 400, 24
    for expression in texts + ("documents(0, 70, 71, 300, 399) & window(50, 3)", "blocks(64, 64; 0, 1, 3, 3; 2, 0, 5) & causal", "documents(10, 140)"):
        q, k, v = (torch.randn(b, t, h, d) for t in (tq, tk, tk))
        mask = Mask(expression.replace("lengths(11, 53)", "lengths(11, 400)"))
        truth = reference(q.double(), k.double(), v.double(), mask=mask)
        for dtype in (torch.float32, torch.bfloat16):
            x = [t.to(dtype) for t in (q, k, v)]
            got = RUN["cuda/mma"](*(t.to(DEVICE) for t in x), mask=mask)
            want = truth if dtype == torch.float32 else reference(*(t.double() for t in x), mask=mask)
            error = relative(got.cpu().double(), want)
            check(error < GUARD[dtype], "cuda/mma masks", f"{expression} {str(dtype)[6:]}: {error:.1e}")


SHAPES = [(1, 1, 1, 128, 128), (2, 4, 2, 256, 384), (1, 2, 1, 65, 1), (1, 2, 2, 63, 65), (2, 3, 3, 129, 127), (1, 8, 2, 511, 1025),
          (2, 4, 4, 1023, 1023), (1, 4, 1, 300, 77), (1, 16, 4, 2049, 2049), (1, 2, 1, 193, 513), (3, 5, 5, 193, 400), (1, 64, 8, 700, 700)]
MASKS = [(None, None, 0), ("causal", (None, 0), 0), ("window(100, 0)", (100, 0), 0), ("window(17, 300)", (17, 300), 0)]


WIDTHS = [(64, 64), (96, 96), (128, 128), (192, 192), (192, 128), (256, 256)]


def biases(dtype, h=4):
    return torch.randn(2, h, 200, 333, device=DEVICE, dtype=dtype), torch.randn(1, 1, 200, 336, device=DEVICE)[..., :333].expand(2, h, 200, 333)


def hopper_cases():
    for dtype in (torch.bfloat16, torch.float16):
        for d, dv in WIDTHS:
            for i, (b, h, kv, tq, tk) in enumerate(SHAPES):
                for mask, band, start in MASKS:
                    if tk == 1 and mask and "window" in mask:
                        continue
                    case("cuda/hopper", dtype, b, h, kv, tq, tk, d, dv, mask=mask, band=band, q_start=start if i % 2 else tk - tq,
                         layout=("bshd", "bhsd", "packed")[i % 3])
            if d != dv:
                continue
            h = 4
            for mask, band in ((None, None), ("causal", (None, 0)), ("window(70, 20)", (70, 20))):
                case("cuda/hopper", dtype, 2, h, 2, 200, 333, d, dv, mask=mask, band=band, q_start=133, softcap=20.0)
                case("cuda/hopper", dtype, 2, h, 2, 200, 333, d, dv, mask=mask, band=band, q_start=133, slopes=torch.rand(h, device=DEVICE))
                case("cuda/hopper", dtype, 2, h, 2, 200, 333, d, dv, mask=mask, band=band, q_start=133, sinks=torch.randn(h, device=DEVICE) * 4,
                     gate=torch.rand(2, 200, h, device=DEVICE))
                for bias in () if d == 192 else biases(dtype):
                    case("cuda/hopper", dtype, 2, h, 2, 200, 333, d, dv, mask=mask, band=band, q_start=133, bias=bias)
                case("cuda/hopper", dtype, 1, h, 4, 150, 333, d, dv, mask=mask, band=band, softcap=3.0, slopes=torch.rand(h, device=DEVICE),
                     sinks=torch.randn(h, device=DEVICE) * 4, scale=torch.tensor([-0.2], dtype=torch.float64))

    for dtype in (torch.bfloat16, torch.float16):  # last: the numbers drawn for the cases above stay what they were
        for mask, band in ((None, None), ("causal", (None, 0)), ("window(70, 20)", (70, 20))):
            for bias in biases(dtype):
                case("cuda/hopper", dtype, 2, 4, 2, 200, 333, 192, 192, mask=mask, band=band, q_start=133, bias=bias)
        for d, dv in WIDTHS:  # a last tile of few keys (32 at most of 80 or 96): narrow, and at 128 an instance of its own below 4,096 keys
            for tq, tk in ((512, 512), (64, 81), (130, 112), (193, 1050), (65, 4112)):
                case("cuda/hopper", dtype, 2, 4, 2, tq, tk, d, dv)


def decode_cases():
    for dtype in (torch.bfloat16, torch.float16):
        for d in (64, 128, 256):
            for i, (b, h, kv, tq, tk) in enumerate([(1, 1, 1, 1, 1), (2, 8, 2, 1, 300), (3, 32, 8, 1, 1000), (2, 32, 32, 1, 777), (1, 64, 8, 1, 2049),
                                                    (1, 32, 1, 1, 4100), (2, 16, 4, 4, 1537), (1, 8, 8, 16, 513), (1, 64, 1, 1, 3000), (5, 20, 4, 3, 512), (100, 32, 1, 1, 300)]):
                for mask, band in ((None, None), ("causal", (None, 0)), ("window(600, 0)", (600, 0))):
                    case("cuda/decode", dtype, b, h, kv, tq, tk, d, mask=mask, band=band, q_start=tk - tq,
                         layout=("bshd", "bhsd", "packed")[i % 3])
            case("cuda/decode", dtype, 2, 8, 2, 2, 1333, d, mask="causal", band=(None, 0), q_start=1331, softcap=20.0,
                 slopes=torch.rand(8, device=DEVICE) * 0.1, sinks=torch.randn(8, device=DEVICE) * 4, gate=torch.rand(2, 2, 8, device=DEVICE))


def ragged_cases():
    """Packed sequences: each as if it were alone, bit for bit; memory between them is NaN."""
    for kernel, lengths in (("cuda/hopper", [(70, 70), (0, 5), (300, 300), (1, 200), (129, 64), (64, 0), (193, 800)]),
                            ("cuda/decode", [(1, 1), (1, 700), (0, 3), (1, 0), (1, 1500), (1, 512)]),
                            ("cuda/decode", [(1, 130), (1, 7), (1, 64), (0, 3), (1, 0), (1, 201)] * 20)):  # blocks of 32 rows
        many = len(lengths) > 10
        for d in (64, 96, 128, 192, 256) if kernel == "cuda/hopper" else (128,) if many else (64, 128, 256):
            for dtype in (torch.bfloat16, torch.float16):
                h, kv = (32, 1) if many else (8, 2)
                tq, tk = sum(a for a, _ in lengths), sum(b for _, b in lengths)
                q, k, v = normal(1, tq, h, d, dtype=dtype), normal(1, tk, kv, d, dtype=dtype), normal(1, tk, kv, d, dtype=dtype)
                offsets = [torch.tensor([sum(x[i] for x in lengths[:n]) for n in range(len(lengths) + 1)]) for i in (0, 1)]
                out, out_ok = guarded(1, tq, h, d, dtype=dtype)
                lse, lse_ok = guarded(1, h, tq, dtype=torch.float32)
                RUN[kernel](q, k, v, out, lse, mask="causal", q_start=torch.tensor([-(2 ** 63)]), q_offsets=offsets[0], kv_offsets=offsets[1])
                torch.cuda.synchronize()
                for n, (a, b) in enumerate(lengths):
                    if a == 0:
                        continue
                    rows, keys = slice(int(offsets[0][n]), int(offsets[0][n + 1])), slice(int(offsets[1][n]), int(offsets[1][n + 1]))
                    part = f"{kernel} ragged {str(dtype)[6:]} d{d} {a}x{b}"
                    if b == 0:
                        check(bool((out[:, rows] == 0).all()) and bool((lse[:, :, rows] == -math.inf).all()), part, "a sequence without keys")
                        continue
                    alone, alone_lse = torch.empty_like(out[:, rows]), torch.empty_like(lse[:, :, rows].contiguous())
                    RUN[kernel](q[:, rows], k[:, keys], v[:, keys], alone, alone_lse, mask="causal", q_start=torch.tensor([b - a]))
                    check(torch.equal(alone, out[:, rows]) and torch.equal(alone_lse, lse[:, :, rows]), part, "differs from the sequence alone")
                    truth, truth_lse = formula(q[:, rows], k[:, keys], v[:, keys], open_pairs(a, b, b - a, None, 0))
                    judge(part, dtype, out[:, rows], lse[:, :, rows], truth, truth_lse, truth.to(dtype))
                check(out_ok() and lse_ok(), f"{kernel} ragged d{d}", "wrote outside of its output")


def document_cases():
    """cuda/hopper: a document has the bits it has alone; queries in none are 0; NaN of other documents stays there."""
    for d, dtype in ((64, torch.bfloat16), (96, torch.float16), (128, torch.bfloat16), (192, torch.bfloat16), (256, torch.float16)):
        h, t, offsets = 4, 700, [3, 70, 70, 400, 655]
        q, k, v = normal(2, t, h, d, dtype=dtype), normal(2, t, 2, d, dtype=dtype), normal(2, t, 2, d, dtype=dtype)
        k[:, 655:], v[:, 655:], v[:, :3] = math.nan, math.nan, math.nan
        for extra in ("", " & causal", " & window(90, 4)"):
            part = f"cuda/hopper documents d{d}{extra}"
            out, out_ok = guarded(2, t, h, d, dtype=dtype)
            lse, lse_ok = guarded(2, h, t, dtype=torch.float32)
            RUN["cuda/hopper"](q, k, v, out, lse, mask=f"documents({', '.join(map(str, offsets))}){extra}")
            for a, b in zip(offsets, offsets[1:]):
                if a == b:
                    continue
                alone_lse = torch.empty(2, h, b - a, device=DEVICE)
                alone = RUN["cuda/hopper"](q[:, a:b], k[:, a:b], v[:, a:b], None, alone_lse, mask=extra[3:] or None)
                check(torch.equal(alone, out[:, a:b]) and torch.equal(alone_lse, lse[:, :, a:b]), part, f"document {a} differs from alone")
            none = torch.cat([out[:, :3], out[:, 655:]], 1)
            check(bool((none == 0).all()) and bool((lse[:, :, 655:] == -math.inf).all()), part, "queries in no document")
            check(out_ok() and lse_ok(), part, "wrote outside of its output")
            chunk = RUN["cuda/hopper"](q[:, 100:500], k, v, mask=f"documents({', '.join(map(str, offsets))}){extra}", q_start=torch.tensor([100]))
            check(torch.equal(chunk, out[:, 100:500]), part, "a chunk of queries differs")


def length_cases():
    """lengths(...): keys past a length hold NaN and are not there."""
    for kernel, tq in (("cuda/hopper", 130), ("cuda/decode", 1)):
        for d in (64, 96, 128, 192, 256) if kernel == "cuda/hopper" else (64, 128, 256):
            lengths, h, tk = [1, 80, 700, 333, 0, 1024], 4, 1024
            b = len(lengths)
            q, k, v = normal(b, tq, h, d), normal(b, tk, 2, d), normal(b, tk, 2, d)
            lse = torch.empty(b, h, tq, device=DEVICE)
            for poison in (0.0, math.nan):
                for n, length in enumerate(lengths):
                    k[n, length:], v[n, length:] = poison, poison
                out = RUN[kernel](q, k, v, None, lse, mask=f"lengths({', '.join(map(str, lengths))})")
                if poison == 0.0:
                    clean = out
            check(torch.equal(clean, out), f"{kernel} lengths d{d}", "NaN past a length reached the output")
            for n, length in enumerate(lengths):
                if length:
                    truth, truth_lse = formula(q[n:n + 1], k[n:n + 1, :length], v[n:n + 1, :length])
                    judge(f"{kernel} lengths d{d} {length}", torch.bfloat16, out[n:n + 1], lse[n:n + 1], truth, truth_lse, truth.bfloat16())
                else:
                    check(bool((out[n] == 0).all()) and bool((lse[n] == -math.inf).all()), f"{kernel} lengths d{d} 0", "an empty row")


def hostile_cases():
    """References that grow at every tile, logits of +-1e4, equal logits, against bound T3."""
    for kernel, tq in (("cuda/hopper", 1000), ("cuda/decode", 4)):
        for d in (64, 96, 128, 192, 256) if kernel == "cuda/hopper" else (64, 128, 256):
            for name in ("growing", "huge", "equal"):
                t = 1000
                q, k, v = (torch.randn(1, n, 4, d, device=DEVICE) for n in (tq, t, t))
                if name == "growing":
                    q, k = q.abs(), k.abs() * torch.linspace(4, 0, t, device=DEVICE).view(1, t, 1, 1)
                if name == "huge":
                    q, k = q * 30, k * 30
                if name == "equal":
                    k[:] = 1
                q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
                lse = torch.empty(1, 4, tq, device=DEVICE)
                out = RUN[kernel](q, k, v, None, lse, mask="causal", q_start=torch.tensor([t - tq]))
                truth, truth_lse = formula(q, k, v, open_pairs(tq, t, t - tq, None, 0))
                norms = q.double().norm(dim=-1).max().item() * k.double().norm(dim=-1).max().item() / math.sqrt(d)
                bound = v.abs().max().item() * (2 ** -8 + 4 * 2 ** -24 * (2 * norms + math.log2(t)))
                error = (out.double() - truth).abs().max().item()
                check(error <= bound, f"{kernel} {name} d{d}", f"error {error:.2e}, bound {bound:.2e}")
                lse_error, lse_bound = (lse.double() - truth_lse).abs().max().item(), 4 * 2 ** -24 * max(1, 2 * norms)
                check(lse_error <= lse_bound, f"{kernel} {name} d{d}", f"lse error {lse_error:.2e}, bound {lse_bound:.2e}")


def refusal_cases():
    q = normal(1, 200, 4, 20)
    out = torch.empty_like(q)
    lines = Attention("").choice(q, q, q, out)
    check("cuda/hopper: head_dim 20 and value_dim 20; it takes multiples of 8 up to 256" in lines and "cuda/mma: chosen" in lines, "refusals", lines)
    lines = Attention("").choice(normal(1, 200, 4, 64), q := normal(1, 200, 4, 64), q, torch.empty_like(q), mask="causal | prefix(3)")
    check("cuda/hopper: an | of masks is no single band of keys" in lines and "cuda/mma: chosen" in lines, "refusals", lines)
    lines = Attention("").choice(q, q, q, torch.empty_like(q), softcap=1e4)
    check("cuda/hopper: a softcap above 4096, where its tanh loses digits" in lines and "cuda/mma: chosen" in lines, "refusals", lines)
    try:
        RUN["cuda/hopper"](normal(1, 9, 1, 64, dtype=torch.float32), *(normal(1, 9, 1, 64, dtype=torch.float32) for _ in range(2)))
        check(False, "refusals", "f32 ran on cuda/hopper")
    except Failed as fault:
        check("dtype f32; it takes bf16 and f16" in str(fault), "refusals", str(fault))
    try:
        RUN["cuda/hopper"](q, q.cpu(), q)
        check(False, "refusals", "k on the CPU ran")
    except Failed as fault:
        check("bring them together" in str(fault), "refusals", str(fault))


def bit_laws():
    """Equal bits over repeats, batch, chunks of queries, masks that close nothing, streams, graphs."""
    for d in (64, 96, 128, 192, 256):
        for dtype in (torch.bfloat16, torch.float16):
            b, h, kv, t = 6, 8, 2, 1111
            q, k, v = normal(b, t, h, d, dtype=dtype), normal(b, t, kv, d, dtype=dtype), normal(b, t, kv, d, dtype=dtype)
            for mask in (None, "causal", "window(200, 0)"):
                part = f"bits d{d} {str(dtype)[6:]} {mask}"
                run = lambda *x, **y: RUN["cuda/hopper"](*x, mask=mask, **y)
                whole = run(q, k, v)
                check(all(torch.equal(run(q, k, v), whole) for _ in range(20)), part, "a repeat differs")
                check(torch.equal(run(q[2:3], k[2:3], v[2:3]), whole[2:3]), part, "alone differs from in a batch")
                check(torch.equal(run(q[:, :, 3:4], k[:, :, 0:1], v[:, :, 0:1]), whole[:, :, 3:4]), part, "one head differs from among others")
                for chunk in (64, 127, 192, 500, 1):
                    pieces = [run(q[:, i:i + chunk], k, v, q_start=torch.tensor([i])) for i in (range(0, t, chunk) if chunk > 1 else (0, 700, 1110))]
                    want = whole if chunk > 1 else whole[:, [0, 700, 1110]]
                    check(torch.equal(torch.cat(pieces, 1), want), part, f"chunks of {chunk} queries differ")
            own_k, own_v = normal(b, t, h, d, dtype=dtype), normal(b, t, h, d, dtype=dtype)
            chosen = [BEST(q[:, i:i + 64], own_k, own_v, q_start=torch.tensor([i])) for i in range(0, t - 63, 64)]
            check(torch.equal(torch.cat(chosen, 1), BEST(q, own_k, own_v)[:, :t // 64 * 64]), f"bits d{d}", "chunks of 64 queries differ by the kernel chosen")
            check(torch.equal(RUN["cuda/hopper"](q, k, v), RUN["cuda/hopper"](q, k, v, mask="window(5000, 5000)")), f"bits d{d}", "a mask that closes nothing changed bits")
            longer_k, longer_v = (torch.cat([x, torch.full_like(x, math.nan)], 1) for x in (k, v))
            check(torch.equal(RUN["cuda/hopper"](q, k, v), RUN["cuda/hopper"](q, longer_k, longer_v, mask=f"lengths({', '.join([str(t)] * b)})")),
                  f"bits d{d}", "appending closed keys changed bits")
            if d in (96, 192):
                continue
            q1 = q[:, :1].contiguous()
            run = lambda *x, **y: RUN["cuda/decode"](*x, **y)
            whole = run(q1, k, v)
            check(all(torch.equal(run(q1, k, v), whole) for _ in range(50)), f"bits decode d{d}", "a repeat differs")
            check(torch.equal(run(q1[2:3], k[2:3], v[2:3]), whole[2:3]), f"bits decode d{d}", "alone differs from in a batch")
            check(torch.equal(run(q1, longer_k, longer_v, mask=f"lengths({', '.join([str(t)] * b)})"), whole), f"bits decode d{d}", "appending closed keys changed bits")
            many = torch.randint(0, b, (64,), device=DEVICE)
            check(torch.equal(run(q1[many], k[many], v[many]), whole[many]), f"bits decode d{d}", "a batch of 64 differs")
            # Alone in blocks of 16 rows, in a cluster; in a batch of 120 in blocks of 32.
            q3, k3, v3 = (normal(120, n, x, d, dtype=dtype) for n, x in ((1, 32), (600, 1), (600, 1)))
            shared = run(q3, k3, v3)
            check(all(torch.equal(run(q3[n:n + 1], k3[n:n + 1], v3[n:n + 1]), shared[n:n + 1]) for n in (0, 7, 119)), f"bits decode d{d}", "32 heads of one kv head alone differ from in a batch")
            # More items than blocks, some of one split and some of many: a block takes both in turns.
            tokens = [1 + (n * 977) % 3000 for n in range(48)]
            q2, k2, v2 = (normal(48, n, x, d, dtype=dtype) for n, x in ((1, 32), (3000, 8), (3000, 8)))
            mixed = run(q2, k2, v2, mask=f"lengths({', '.join(map(str, tokens))})")
            check(all(torch.equal(run(q2[n:n + 1], k2[n:n + 1, :tokens[n]], v2[n:n + 1, :tokens[n]]), mixed[n:n + 1]) for n in range(48)),
                  f"bits decode d{d}", "alone differs from among other lengths")


def mma_laws():
    """cuda/mma: the same bits alone, in a batch, in chunks of queries, with closed keys behind."""
    for dtype, d in ((torch.bfloat16, 96), (torch.float32, 128)):
        t = 500
        q, k, v = normal(3, t, 4, d, dtype=dtype), normal(3, t, 2, d, dtype=dtype), normal(3, t, 2, d, dtype=dtype)
        for mask in (None, "causal", "documents(0, 90, 301, 500) & causal", "window(60, 0) | prefix(3)"):
            part, run = f"bits mma {str(dtype)[6:]} {mask}", lambda *x, **y: RUN["cuda/mma"](*x, mask=mask, **y)
            whole = run(q, k, v)
            check(all(torch.equal(run(q, k, v), whole) for _ in range(20)), part, "a repeat differs")
            check(torch.equal(run(q[1:2], k[1:2], v[1:2]), whole[1:2]), part, "alone differs from in a batch")
            for chunk in (64, 100, 1):
                starts = range(0, t, chunk) if chunk > 1 else (0, 333, 499)
                pieces = torch.cat([run(q[:, i:i + chunk], k, v, q_start=torch.tensor([i])) for i in starts], 1)
                check(torch.equal(pieces, whole if chunk > 1 else whole[:, list(starts)]), part, f"chunks of {chunk} queries differ")
        more_k, more_v = (torch.cat([x, torch.full_like(x, math.nan)], 1) for x in (k, v))
        check(torch.equal(RUN["cuda/mma"](q, k, v), RUN["cuda/mma"](q, more_k, more_v, mask=f"prefix({t})")), f"bits mma {d}", "closed keys behind changed bits")


def repeat_laws():
    q, k, v = normal(4, 1500, 16, 128), normal(4, 1500, 16, 128), normal(4, 1500, 16, 128)
    whole = RUN["cuda/hopper"](q, k, v, mask="causal")
    out, same = torch.empty_like(whole), torch.zeros((), dtype=torch.int64, device=DEVICE)
    for _ in range(1000):
        RUN["cuda/hopper"](q, k, v, out, mask="causal")
        same += (out != whole).any()
    check(same.item() == 0, "repeats", f"{same.item()} of 1000 differ")


def run_laws():
    """Streams, graphs, sizes past 2^31 elements, more than 65,535 heads, no queries."""
    q, k, v = normal(2, 640, 8, 128), normal(2, 640, 8, 128), normal(2, 640, 8, 128)
    whole = RUN["cuda/hopper"](q, k, v)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    outs = []
    for n in range(40):
        with torch.cuda.stream(streams[n % 4]):
            outs.append(RUN["cuda/hopper"](q, k, v))
    torch.cuda.synchronize()
    check(all(torch.equal(o, whole) for o in outs), "streams", "runs on four streams differ")
    for kernel, a in (("cuda/hopper", (q, k, v)), ("cuda/decode", (q[:, :1], k, v)), ("cuda/mma", (q, k, v)), ("cuda/plain", (q, k, v))):
        want, out = RUN[kernel](*a), torch.empty(*a[0].shape, device=DEVICE, dtype=a[0].dtype)
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            RUN[kernel](*a, out, mask="lengths(640, 640)")
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                RUN[kernel](*a, out, mask="lengths(640, 640)")
            out.fill_(0)
            for _ in range(3):
                graph.replay()
        torch.cuda.synchronize()
        check(torch.equal(out, want), "graphs", f"a replay of {kernel} differs")
    empty = RUN["cuda/hopper"](q[:, :0], k, v)
    check(empty.shape[1] == 0, "sizes", "no queries")
    q, k, v = normal(1, 66, 70000, 64), normal(1, 70, 70000, 64), normal(1, 70, 70000, 64)
    out = RUN["cuda/hopper"](q, k, v)
    pick = [0, 65535, 65536, 69999]
    truth, _ = formula(q[:, :, pick], k[:, :, pick], v[:, :, pick])
    check(relative(out[:, :, pick].double(), truth) < 2.5e-3, "sizes", "70,000 heads")
    del q, k, v, out
    t = 70000  # [1 70000 128 256] holds 2.3e9 elements
    big = torch.empty(1, t, 128, 256, device=DEVICE, dtype=torch.bfloat16)
    big[:, :, 127] = normal(1, t, 1, 256)[:, :, 0]
    x = big[:, :, 127:128]
    out = torch.empty_like(big[:, :, :1])
    RUN["cuda/hopper"](x[:, -128:], x, x, out[:, -128:])
    truth, _ = formula(x[:, -128:], x, x)
    check(relative(out[:, -128:].double(), truth) < 2.5e-3, "sizes", "offsets past 2^31")


PARTS = {"selftest": [plain_cases, mma_cases, row_cases, some_row_cases, look_cases, mask_cases, hopper_cases, growth_cases, decode_cases, page_cases, ragged_cases, document_cases, length_cases, hostile_cases, refusal_cases] + BLOCK_SELFTEST + EIGHT_SELFTEST + BACKWARD_SELFTEST + HEAD_SELFTEST + EDGE_SELFTEST,
         "module": MODULE + EIGHT_MODULE + ADAPTERS, "adapters": ADAPTERS, "laws": [bit_laws, growth_laws, mma_laws, look_laws, processor_laws, product_laws, repeat_laws, run_laws] + PHASE_LAWS + EIGHT_LAWS + BACKWARD_LAWS + HEAD_LAWS + GRAPH_LAWS,
         "probes": [row_cases, some_row_cases, look_cases, look_laws], "growth": [growth_cases, growth_laws], "processors": [processor_laws], "products": [product_laws], "phase": PHASE_LAWS, "graphs": GRAPH_LAWS, "blocks": BLOCK_SELFTEST, "eight": EIGHT_SELFTEST + EIGHT_LAWS,
         "backward": BACKWARD_SELFTEST + BACKWARD_LAWS, "heads": HEAD_SELFTEST + HEAD_LAWS, "edges": EDGE_SELFTEST}


def main(words):
    file = words[words.index("--json") + 1] if "--json" in words else None
    names = [w for w in words if w in PARTS] or ["selftest", "module", "laws"]
    print(devices(), flush=True)
    seconds = {}
    for name in names:
        for part in PARTS[name]:
            torch.manual_seed(1)
            random.seed(1)
            begin, before = time.time(), dict(TALLY)
            try:
                part()
                torch.cuda.synchronize()
            except (Failed, RuntimeError, AssertionError) as fault:
                check(False, part.__name__, f"ended by {type(fault).__name__}: {fault}")
                if "CUDA error" in str(fault):
                    break
            seconds[part.__name__] = round(time.time() - begin, 1)
            print(f"{part.__name__:16} {TALLY['passed'] - before['passed']:5} passed {TALLY['failed'] - before['failed']:5} failed {seconds[part.__name__]:7} s", flush=True)
    for name, worst in TALLY["worst"].items():
        print(f"worst {name:32} " + " ".join(f"{n} {x:.2e}" for n, x in worst.items()))
    if file:
        with open(file, "w") as out:
            json.dump(dict(TALLY, device=devices(), seconds=seconds), out, indent=1)
    print(f"{TALLY['passed']} passed, {TALLY['failed']} failed")
    return 1 if TALLY["failed"] or not TALLY["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
