"""Block masks, and a bias under documents, on cuda/hopper: against the double reference, and the bits they promise."""
import math
import random

import torch

from common import DEVICE, check, guarded, normal
from harness import GUARD, Attention, Mask, relative

HOPPER, PHASE, REFERENCE = Attention("cuda/hopper"), Attention("cuda/phase"), Attention("ref")


def blocks(q_block, kv_block, rows, columns, share):
    """A random list as text: every third row is empty where the share is small."""
    lists = [[c for c in range(columns) if random.random() < share] if share > 0.5 or r % 3 else [] for r in range(rows)]
    offsets = [0]
    for line in lists:
        offsets.append(offsets[-1] + len(line))
    return f"blocks({q_block}, {kv_block}; {', '.join(map(str, offsets))}; {', '.join(str(c) for line in lists for c in line)})"


def near(part, dtype, got, truth):
    error = relative(got.cpu().double(), truth)
    check(error < GUARD[dtype] and bool((got.cpu()[truth == 0] == 0).all()), part, f"relative error {error:.1e}")


def block_cases():
    sizes = [(64, 64), (128, 128), (80, 80), (16, 8), (100, 37), (1, 9), (1000, 1000), (7, 300)]
    for i, (d, dtype) in enumerate([(d, t) for d in (64, 96, 128, 192, 256) for t in (torch.bfloat16, torch.float16)]):
        for n, (a, b) in enumerate(sizes):
            tq, tk, start = ((300, 500, 200), (129, 385, 0), (65, 81, 16), (400, 1, 0))[(i + n) % 4]
            q, k, v = (torch.randn(2, t, h, d).to(dtype) for t, h in ((tq, 4), (tk, 2), (tk, 2)))
            extra = ("", " & causal", " & window(90, 20)", " & lengths(77, 300)")[(i + n // 2) % 4]
            expression = blocks(a, b, -(-(tq + start) // a) - (n % 2), -(-tk // b), (0.1, 0.4, 0.95)[n % 3]) + extra
            given = dict(mask=Mask(expression), q_start=torch.tensor([start]))
            part = f"blocks d{d} {str(dtype)[6:]} {a}x{b} {tq}x{tk}{extra}"
            truth = REFERENCE(*(x.double() for x in (q, k, v)), **given)
            there = [x.to(DEVICE) for x in (q, k, v)]
            out, out_ok = guarded(2, tq, 4, d, dtype=dtype)
            lse = torch.empty(2, 4, tq, device=DEVICE)
            HOPPER(*there, out, lse, **given)
            near(part, dtype, out, truth)
            check(out_ok() and bool(((lse.cpu() == -math.inf) == (truth == 0).all(-1).transpose(1, 2)).all()), part, "outside of its output, or an empty row")
            for chunk in (1, 100):
                first = tq // 2
                some = HOPPER(there[0][:, first:first + chunk], *there[1:], mask=given["mask"], q_start=torch.tensor([start + first]))
                also = PHASE(there[0][:, first:first + chunk], *there[1:], mask=given["mask"], q_start=torch.tensor([start + first]))
                check(torch.equal(some, out[:, first:first + chunk]) and torch.equal(also, some), part, f"a chunk of {chunk} differs")
    q, k, v = normal(2, 700, 4, 128), normal(2, 700, 2, 128), normal(2, 700, 2, 128)
    everything = "blocks(64, 64; " + ", ".join(str(11 * r) for r in range(12)) + "; " + ", ".join(str(c) for _ in range(11) for c in range(11)) + ")"
    for extra in (None, "causal", "window(90, 20)"):
        check(torch.equal(HOPPER(q, k, v, mask=extra), HOPPER(q, k, v, mask=everything + (f" & {extra}" if extra else ""))), "blocks", f"open blocks change bits, {extra}")
    k[:, 240:400], v[:, 240:400] = math.nan, math.nan  # two tiles that nobody sees are not read
    open_ = "blocks(700, 80; 0, 7; 0, 1, 2, 5, 6, 7, 8)"
    check(not bool(HOPPER(q, k, v, mask=open_).isnan().any()), "blocks", "NaN of closed tiles reached the output")
    offsets = torch.tensor([0, 130, 130, 700])
    k, v = normal(1, 700, 2, 128), normal(1, 700, 2, 128)
    some = blocks(64, 64, 9, 9, 0.5) + " & causal"
    packed = HOPPER(q[:1], k, v, mask=some, q_offsets=offsets, kv_offsets=offsets)
    alone = torch.cat([HOPPER(q[:1, a:b], k[:, a:b], v[:, a:b], mask=some) for a, b in ((0, 130), (130, 700))], 1)
    check(torch.equal(packed, alone), "blocks ragged", "a sequence differs from alone")
    q = normal(1, 200, 4, 64)
    lines = Attention("").choice(q, q, q, torch.empty_like(q), mask="blocks(8, 4; 0, 1; 0)")
    check("cuda/hopper: blocks of 4 keys; it takes 8 and more" in lines and "cuda/mma: chosen" in lines, "blocks refusals", lines)
    lines = Attention("").choice(q, q, q, torch.empty_like(q), mask="blocks(8, 8; 0, 1; 0) & documents(0, 100)")
    check("cuda/hopper: blocks(...) under documents(...), which it takes apart" in lines, "blocks refusals", lines)
    lines = Attention("").choice(q[:, :1], q, q, torch.empty_like(q[:, :1]), mask="blocks(64, 64; 0, 1; 0)")
    check("cuda/decode: blocks(...) is no single band of keys" in lines and "cuda/hopper: chosen" in lines, "blocks refusals", lines)


def document_bias_cases():
    """A bias is read at the document's own queries and keys."""
    for d, dtype in ((64, torch.bfloat16), (96, torch.float16), (128, torch.bfloat16), (192, torch.float16), (256, torch.bfloat16)):
        t = 400
        q, k, v = (torch.randn(2, t, h, d).to(dtype) for h in (4, 2, 2))
        bias = torch.randn(2, 4, t, t) * 2
        for extra in ("", " & causal", " & window(70, 9)"):
            mask = "documents(3, 70, 70, 255, 390)" + extra
            truth = REFERENCE(*(x.double() for x in (q, k, v)), mask=mask, bias=bias.double())
            there = [x.to(DEVICE) for x in (q, k, v)]
            got = HOPPER(*there, mask=mask, bias=bias.to(DEVICE))
            near(f"documents with a bias d{d} {str(dtype)[6:]}{extra}", dtype, got, truth)
            some = HOPPER(there[0][:, 100:300], *there[1:], mask=mask, bias=bias[:, :, 100:300].to(DEVICE), q_start=torch.tensor([100]))
            check(torch.equal(some, got[:, 100:300]), f"documents with a bias d{d}{extra}", "a chunk of queries differs")


BLOCK_SELFTEST = [block_cases, document_bias_cases]
