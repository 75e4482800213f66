"""cuda/phase: prefill, chunks down to one token and decode give the same bits."""
import math

import torch

from common import DEVICE, check, normal
from harness import Attention, Failed

PHASE = Attention("cuda/phase")


def at(*positions):
    return torch.tensor(positions)


def phase_laws():
    for d in (64, 96, 128, 192, 256):
        for dtype in (torch.bfloat16, torch.float16):
            for h, kv in ((8, 8), (8, 2), (8, 1)):
                b, t = 2, 333
                q, k, v = (normal(b, t, n, d, dtype=dtype) for n in (h, kv, kv))
                lse = torch.empty(b, h, t, device=DEVICE)
                for mask in ("causal", "window(100, 0)") if (h, kv) == (8, 2) else ("causal",):
                    part = f"phase d{d} {str(dtype)[6:]} {h}/{kv} {mask}"
                    whole = PHASE(q, k, v, None, lse, mask=mask)
                    check(torch.equal(whole, Attention("cuda/hopper")(q, k, v, mask=mask)), part, "differs from cuda/hopper")
                    for chunk in (1, 7, 64):
                        out, own = torch.full_like(q, math.nan), torch.full_like(lse, math.nan)
                        for i in range(0, t, chunk):
                            PHASE(q[:, i:i + chunk], k, v, out[:, i:i + chunk], own[:, :, i:i + chunk], mask=mask, q_start=at(i))
                        check(torch.equal(out, whole) and torch.equal(own, lse), part, f"chunks of {chunk} differ from prefill")
                    out, own = torch.full_like(q, math.nan), torch.full_like(lse, math.nan)
                    for i in range(t):  # the keys there are so far, and NaN behind them
                        room = [torch.cat([x[:, :i + 1], torch.full_like(x[:, :3], math.nan)], 1) for x in (k, v)] if i % 50 == 0 else (k[:, :i + 1], v[:, :i + 1])
                        PHASE(q[:, i:i + 1], *room, out[:, i:i + 1], own[:, :, i:i + 1], mask=f"{mask} & prefix({i + 1})", q_start=at(i))
                    check(torch.equal(out, whole) and torch.equal(own, lse), part, "decode differs from prefill")
                    ends = at(332, 17)
                    rows = torch.stack([q[n, e] for n, e in enumerate(ends)])[:, None]
                    want = torch.stack([whole[n, e] for n, e in enumerate(ends)])[:, None]
                    check(torch.equal(PHASE(rows, k, v, mask=mask, q_start=ends), want), part, "sequences at positions of their own differ")
                lengths = at(200, 0)
                got = PHASE(q[:, :1].contiguous(), k, v, None, one := torch.empty(b, h, 1, device=DEVICE), mask="lengths(200, 0)", q_start=lengths)
                check(torch.equal(got[:1], PHASE(q[:1, :1], k[:1, :200], v[:1, :200])) and bool((got[1] == 0).all()) and bool((one[1] == -math.inf).all()),
                      f"phase d{d} lengths", "one query a sequence differs from alone")
    q, k, v = normal(2, 90, 8, 128), normal(2, 90, 2, 128), normal(2, 90, 2, 128)
    terms = {"sinks": torch.randn(8, device=DEVICE), "softcap": 20.0, "slopes": torch.rand(8, device=DEVICE)}
    for names in (("softcap",), ("sinks",), ("slopes", "softcap")):
        some = {n: terms[n] for n in names}
        whole = PHASE(q, k, v, mask="causal", **some)
        ones = torch.cat([PHASE(q[:, i:i + 1], k, v, mask="causal", q_start=at(i), **some) for i in range(90)], 1)
        check(torch.equal(ones, whole), f"phase {' '.join(names)}", "decode differs from prefill")


def phase_choice():
    q, k = normal(1, 1, 8, 128), normal(1, 300, 2, 128)
    default, named = (Attention(n).choice(q, k, k, torch.empty_like(q)) for n in ("", "cuda/phase"))
    check("cuda/decode: chosen" in default and "cuda/phase" not in default, "phase choice", default)
    check("cuda/phase: chosen" in named and "cuda/hopper sm_90a bf16 k80" in named, "phase choice", named)
    try:
        PHASE(normal(1, 9, 1, 20), normal(1, 9, 1, 20), normal(1, 9, 1, 20))
        check(False, "phase choice", "head_dim 20 ran")
    except Failed as fault:
        check("head_dim 20 and value_dim 20" in str(fault), "phase choice", str(fault))


PHASE_LAWS = [phase_laws, phase_choice]
