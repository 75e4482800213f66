"""The edges of Hopper's kernels: widths between their instances, rows with one key, ragged batches of any lengths."""
import math

import torch

import backward_cases
from common import DEVICE, TALLY, check, guarded, normal
from harness import GUARD, Attention, formula, open_pairs, relative

BEST, TILES = Attention(""), "cuda/hopper"
HOPPER = Attention(TILES)
END = -(2 ** 63)
WIDTHS = [(8, 8), (32, 32), (48, 48), (72, 72), (80, 80), (104, 104), (112, 112), (136, 136), (160, 160), (224, 224),
          (64, 128), (128, 64), (80, 112), (192, 128), (160, 64), (48, 256), (96, 40)]


def width_cases():
    """Columns past a width count as 0 and are not stored, in one piece and in rows."""
    for i, (d, dv) in enumerate(WIDTHS):
        for n, dtype in enumerate((torch.bfloat16, torch.float16)):
            for j, (b, h, kv, tq, tk) in enumerate([(2, 4, 2, 200, 333), (1, 3, 3, 129, 127), (1, 8, 1, 700, 700)]):
                band = [(None, None), (None, 0), (100, 3)][(i + j + n) % 3]
                mask = [None, "causal", "window(100, 3)"][(i + j + n) % 3]
                terms = [{}, {"softcap": 5.0}, {"slopes": torch.rand(h, device=DEVICE)}, {"sinks": torch.randn(h, device=DEVICE)}][(i + j) % 4]
                layout = ("bshd", "bhsd", "packed")[j]
                q, k, v = (normal(b, t, x, w, dtype=dtype, layout=layout) for t, x, w in ((tq, h, d), (tk, kv, d), (tk, kv, dv)))
                out, out_ok = guarded(b, tq, h, dv, dtype=dtype)
                lse = torch.empty(b, h, tq, device=DEVICE)
                HOPPER(q, k, v, out, lse, mask=mask, **terms)
                truth, truth_lse = formula(q, k, v, open_pairs(tq, tk, 0, *band), **terms)
                part, error = f"{TILES} {str(dtype)[6:]} d{d}/{dv} {tq}x{tk} {mask} {' '.join(terms)}", relative(out.double(), truth)
                worst = TALLY["worst"].setdefault(f"{TILES} widths {str(dtype)[6:]}", {"out": 0.0})
                worst["out"] = max(worst["out"], error)
                check(error <= GUARD[dtype] and out_ok(), part, f"relative error {error:.2e}, or wrote outside of its output")
                limit = 1e-6 + (4 * 2.0 ** -24 * max(tq, tk) if "slopes" in terms else 0.0)
                check(((lse.double() - truth_lse).abs() / truth_lse.abs().clamp(min=1)).max().item() < limit, part, "lse")
                backward_cases.case(backward_cases.TILES, dtype, b, h, kv, tq, tk, d, dv, mask, band, layout=layout, **terms)
        tall = [(70, 70), (1, 200), (129, 64), (193, 800)]
        sequences(d, dv, tall, HOPPER, torch.bfloat16)


def sequences(d, dv, lengths, run, dtype):
    """Each sequence of a ragged batch has the bits it has alone."""
    offsets = [torch.tensor([sum(x[i] for x in lengths[:n]) for n in range(len(lengths) + 1)]) for i in (0, 1)]
    tq, tk, h, kv = int(offsets[0][-1]), int(offsets[1][-1]), 8, 2
    q, k, v = normal(1, tq, h, d, dtype=dtype), normal(1, tk, kv, d, dtype=dtype), normal(1, tk, kv, dv, dtype=dtype)
    out, out_ok = guarded(1, tq, h, dv, dtype=dtype)
    lse, lse_ok = guarded(1, h, tq, dtype=torch.float32)
    run(q, k, v, out, lse, mask="causal", q_start=torch.tensor([END]), q_offsets=offsets[0], kv_offsets=offsets[1])
    for n, (a, b) in enumerate(lengths):
        rows, keys = slice(int(offsets[0][n]), int(offsets[0][n + 1])), slice(int(offsets[1][n]), int(offsets[1][n + 1]))
        if a == 0:
            continue
        alone, alone_lse = torch.empty_like(out[:, rows]), torch.empty(1, h, a, device=DEVICE)
        run(q[:, rows], k[:, keys], v[:, keys], alone, alone_lse, mask="causal", q_start=torch.tensor([b - a]))
        check(torch.equal(alone, out[:, rows]) and torch.equal(alone_lse, lse[:, :, rows]), f"ragged {str(dtype)[6:]} d{d}/{dv} {a}x{b}",
              "differs from the sequence alone")
    check(out_ok() and lse_ok(), f"ragged d{d}/{dv}", "wrote outside of its output")


def alone_cases():
    """Sequences that alone take cuda/decode, beside ones that take cuda/hopper."""
    for d in (64, 80, 128, 256):
        for dtype in (torch.bfloat16, torch.float16):
            sequences(d, d, [(70, 70), (1, 200), (1, 1), (0, 5), (300, 300), (16, 2100), (7, 7), (1, 3000), (20, 200)], BEST, dtype)
            sequences(d, d, [(1, 200), (3, 2000), (1, 1)], BEST, dtype)
            sequences(d, d, [(20, 200), (3, 2000), (40, 900)], BEST, dtype)
    q = normal(1, 300, 8, 64)
    given = dict(q_offsets=torch.tensor([0, 1, 300]), kv_offsets=torch.tensor([0, 1, 300]))
    lines = BEST.choice(q, q, q, torch.empty_like(q), **given)
    check("cuda/ragged: chosen" in lines, "refusals", lines)
    lines = BEST.choice(q[..., :32], q[..., :32], q[..., :32], torch.empty_like(q[..., :32]), **given)
    check("cuda/ragged: no sequence would take cuda/decode alone: head_dim 32" in lines and "cuda/hopper: chosen" in lines, "refusals", lines)


def one_key_cases():
    """A row with one open key has the weight 1, whatever its score: dq and dk of it are 0 to the last bit."""
    for d in (32, 64, 80, 128, 192, 256):
        for dtype in (torch.bfloat16, torch.float16):
            q, k, v, dout = (normal(2, 300, n, d, dtype=dtype) for n in (4, 2, 2, 4))
            for mask, rows in (("window(0, 0)", slice(0, 300)), ("causal", slice(0, 1)), ("documents(0, 1, 2, 300) & causal", slice(0, 3))):
                out, lse = backward_cases.forward(q, k, v, mask=mask)
                dq, dk, dv = backward_cases.BACKWARD[backward_cases.TILES].backward(q, k, v, out, lse, dout, mask=mask)
                part = f"{backward_cases.TILES} {str(dtype)[6:]} d{d} {mask}"
                check(bool((dq[:, rows] == 0).all()), part, f"dq of rows with one key is {dq[:, rows].abs().max().item():.1e}")
                if mask == "window(0, 0)":
                    check(bool((dk == 0).all()), part, f"dk of rows with one key is {dk.abs().max().item():.1e}")
                    want = dout.view(2, 300, 2, 2, d).double().sum(3)
                    check(relative(dv.double(), want) <= GUARD[dtype], part, "dv is not the sum of dout")


def gated_key_cases():
    """cuda/mma_backward: a row with one open key has dq and dk of 0, whatever its gated output was rounded to."""
    run = backward_cases.BACKWARD[backward_cases.MMA]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for d in (64, 128):
            q, k, v, dout = (normal(2, 200, n, d, dtype=dtype) for n in (4, 2, 2, 4))
            for terms in ({}, {"gate": torch.randn(2, 200, 4, device=DEVICE).to(dtype)}, {"slopes": torch.rand(4, device=DEVICE)}):
                for mask, rows in (("window(0, 0)", slice(0, 200)), ("causal", slice(0, 1))):
                    out, lse = backward_cases.forward(q, k, v, mask=mask, **terms)
                    dq, dk, dv = run.backward(q, k, v, out, lse, dout, mask=mask, **terms)
                    part = f"{backward_cases.MMA} {str(dtype)[6:]} d{d} {mask} {' '.join(terms)}"
                    check(bool((dq[:, rows] == 0).all()), part, f"dq of rows with one key is {dq[:, rows].abs().max().item():.1e}")
                    check(mask == "causal" or bool((dk == 0).all()), part, f"dk of rows with one key is {dk.abs().max().item():.1e}")
                    check(bool((dv != 0).any()), part, "dv is 0")


def closed_case(kernel, dtype, tq, tk, d, mask, open_, h=4, kv=2, **terms):
    """NaN and inf in some columns of v: rows that do not see them keep what they have, the others show it."""
    given = dict(terms, mask=mask) if "q_start" in terms else dict(terms, mask=mask, q_start=torch.tensor([tk - tq]))
    q, k, v = normal(2, tq, h, d, dtype=dtype), normal(2, tk, kv, d, dtype=dtype), normal(2, tk, kv, d, dtype=dtype)
    run = Attention(kernel)
    clean, bad = run(q, k, v, **given), v.clone()
    keys = sorted({tk - 1, tk - 3, tk // 2, tk // 3, 70 % tk})
    bad[:, keys[::2], :, 5:7], bad[:, keys[1::2], :, 5:7] = math.nan, math.inf
    sees = open_[:, keys].any(1)
    for again in range(2):  # the second run finds its counters at zero
        got = run(q, k, bad, **given)
        part = f"{kernel} {str(dtype)[6:]} {tq}x{tk} d{d} {mask} {' '.join(terms)}"
        rest = torch.cat([got[..., :5], got[..., 7:]], -1)
        check(torch.equal(rest, torch.cat([clean[..., :5], clean[..., 7:]], -1)), part, "other columns changed their bits")
        ours, want = got[:, ~sees][..., 5:7], clean[:, ~sees][..., 5:7]
        lost = int((~torch.isfinite(ours)).any(-1).any(-1).any(0).sum())
        check(lost == 0, part, f"{lost} rows show a value that they may not see")
        check(lost > 0 or relative(ours.double(), want.double()) <= 2 * GUARD[dtype], part, f"rows moved by {relative(ours.double(), want.double()):.1e}")
        shown = got[:, sees][..., 5:7]
        check("dropout" in terms or not bool(torch.isfinite(shown).any()), part, "a row hides a value that it sees")
    check(torch.equal(run(q, k, v, **given), clean), part, "a clean run after it has other bits")


def closed_value_cases():
    """Values of closed keys reach no row: the contract's line of NaN and inf in v (docs/numerics.md)."""
    for kernel, dtypes in ((TILES, (torch.bfloat16, torch.float16)), ("cuda/decode", (torch.bfloat16, torch.float16)),
                           ("cuda/mma", (torch.bfloat16, torch.float32))):
        for dtype in dtypes:
            sizes = ((7, 2500, 64), (1, 300, 128), (16, 1300, 128)) if kernel == "cuda/decode" else ((300, 300, 64), (200, 700, 128), (129, 129, 256))
            for tq, tk, d in sizes:
                for mask, band in (("causal", (None, 0)), ("window(100, 3)", (100, 3)), ("window(90, 0)", (90, 0))):
                    closed_case(kernel, dtype, tq, tk, d, mask, open_pairs(tq, tk, tk - tq, *band))
    causal = open_pairs(300, 300, 0, None, 0)
    for kernel in (TILES, "cuda/mma"):
        for terms in ({"softcap": 5.0}, {"slopes": torch.rand(4, device=DEVICE)}, {"sinks": torch.randn(4, device=DEVICE)},
                      {"bias": torch.randn(2, 4, 300, 300, device=DEVICE).bfloat16()}, {"gate": torch.randn(2, 300, 4, device=DEVICE).bfloat16()},
                      {"dropout": 0.3, "seed": 5}):
            closed_case(kernel, torch.bfloat16, 300, 300, 64, "causal", causal, **terms)
    closed_case("cuda/mma", torch.bfloat16, 300, 300, 64, "causal & window(70, 0) & prefix(280)", open_pairs(300, 300, 0, 70, 0, 280))
    q, v = normal(1, 500, 4, 64), normal(1, 500, 4, 64)
    run, offsets = Attention(TILES), [torch.tensor([0, 200, 500])] * 2
    given = dict(mask="causal", q_start=torch.tensor([END]), q_offsets=offsets[0], kv_offsets=offsets[1])
    clean, bad = run(q, q, v, **given), v.clone()
    bad[:, 150], bad[:, 430] = math.nan, math.nan
    got, keeps = run(q, q, bad, **given), torch.ones(500, dtype=torch.bool, device=DEVICE)
    keeps[150:200], keeps[430:] = False, False
    check(relative(got[:, keeps].double(), clean[:, keeps].double()) <= GUARD[torch.bfloat16], f"{TILES} ragged", "rows show a value of a key they may not see")
    check(bool(got[:, ~keeps].isnan().all()), f"{TILES} ragged", "a row hides a value that it sees")


EDGE_SELFTEST = [width_cases, alone_cases, one_key_cases, gated_key_cases, closed_value_cases]
