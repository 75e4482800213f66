"""Scores that rise from tile to tile on the GPU: a row's reference must follow, and its bits stay its own."""
import math

import torch

from common import DEVICE, check, normal
from harness import GUARD, Attention, formula, open_pairs, relative

HOPPER = Attention("cuda/hopper")
# What a key's score has on top, in nats, by its place in 0..1: keys are read from the last one to the first.
SHAPES = {"steps of 20": lambda x: 20 * torch.floor(8 * (1 - x)), "slopes": lambda x: 90 * (1 - x), "a leap of 300": lambda x: 300.0 * (x < 0.003),
          "500 below, then 0": lambda x: -500.0 * (x > 0.4), "downhill": lambda x: 200 * x, "all at -700": lambda x: x * 0 - 700}


def raised(shape, b, tq, tk, h, kv, d, dtype):
    """q, k, v whose scores are normal ones with the shape on top."""
    q, k, v = normal(b, tq, h, d, dtype=dtype), normal(b, tk, kv, d, dtype=dtype), normal(b, tk, kv, d, dtype=dtype)
    q[..., 0] = 8
    k[..., 0] = (shape(torch.arange(tk, device=DEVICE) / tk) * math.sqrt(d) / 8).to(dtype).view(1, tk, 1)
    return q, k, v


def growth_cases():
    """out, lse, entropy and top_weight against double."""
    for d in (64, 96, 128, 192, 256):
        for dtype in (torch.bfloat16, torch.float16):
            for name, shape in SHAPES.items():
                for mask, band in ((None, (None, None)), ("causal", (None, 0)), ("window(150, 30)", (150, 30))):
                    part = f"growth d{d} {str(dtype)[6:]} {name} {mask}"
                    q, k, v = raised(shape, 2, 500, 900, 4, 2, d, dtype)
                    open_ = open_pairs(500, 900, 300, *band)
                    lse = torch.empty(2, 4, 500, device=DEVICE)
                    given = {"mask": mask, "q_start": torch.tensor([300])}
                    out = HOPPER(q, k, v, lse=lse, **given)
                    truth, truth_lse = formula(q, k, v, mask=open_)
                    error = relative(out.double(), truth)
                    check(error <= 1.2 * GUARD[dtype], part, f"relative error {error:.2e}")
                    error = ((lse.double() - truth_lse).abs() / truth_lse.abs().clamp(min=1)).max().item()
                    check(error <= 3e-6, part, f"lse error {error:.2e}")  # scores of hundreds out of products of thousands
                    if d > 128:
                        continue
                    probe = {n: torch.empty(2, 4, 500, device=DEVICE) for n in ("entropy", "top_weight")}
                    check(torch.equal(HOPPER(q, k, v, probe=probe, **given), out), part, "probes change the output")
                    s = (q.double().transpose(1, 2) @ k.double().transpose(1, 2).repeat_interleave(2, 1).transpose(-1, -2)) / math.sqrt(d)
                    w = torch.softmax(s.masked_fill(~open_, -math.inf), -1)
                    for n, want in (("entropy", -(w * w.clamp(min=1e-300).log()).sum(-1)), ("top_weight", w.max(-1).values)):
                        error = (probe[n].double() - want).abs().max().item()
                        check(error <= 1e-4 + 5e-7 * truth_lse.abs().max().item(), part, f"{n} is off by {error:.1e}")


def growth_laws():
    """Equal bits over chunks of queries, for which a tile of keys lies inside the mask or at its edge, and beside other rows."""
    for d in (64, 96, 128, 192, 256):
        for name, shape in SHAPES.items():
            for mask in ("causal", "window(400, 30)"):
                part = f"bits of growth d{d} {name} {mask}"
                q, k, v = raised(shape, 2, 700, 700, 4, 2, d, torch.bfloat16)
                whole = HOPPER(q, k, v, mask=mask)
                for chunk in (64, 100, 333):
                    pieces = [HOPPER(q[:, i:i + chunk], k, v, mask=mask, q_start=torch.tensor([i])) for i in range(0, 700, chunk)]
                    check(torch.equal(torch.cat(pieces, 1), whole), part, f"chunks of {chunk} queries differ")
                other = q.clone()
                other[:, ::2] *= 0.01  # neighbours in a warp whose references stay
                check(torch.equal(HOPPER(other, k, v, mask=mask)[:, 1::2], whole[:, 1::2]), part, "other rows change a row")
