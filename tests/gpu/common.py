"""What the checks on a GPU share: the count of what passed, tensors in their layouts, outputs inside a guard band."""
import math

import torch

DEVICE = "cuda"
TALLY = {"passed": 0, "failed": 0, "worst": {}, "faults": []}
BIG = 4096


def check(ok, part, sentence):
    TALLY["passed" if ok else "failed"] += 1
    if not ok:
        TALLY["faults"].append(f"{part}: {sentence}")
        print(f"FAILED {part}: {sentence}", flush=True)


def normal(*size, dtype=torch.bfloat16, layout="bshd"):
    """[batch tokens heads dim], lying as the layout says."""
    b, t, h, d = size
    if layout == "bhsd":
        return torch.randn(b, h, t, d, device=DEVICE).to(dtype).transpose(1, 2)
    if layout == "packed":
        return torch.randn(b, t, h, 3 * d, device=DEVICE).to(dtype)[..., d:2 * d]
    return torch.randn(b, t, h, d, device=DEVICE).to(dtype)


def guarded(*size, dtype):
    """A tensor of NaN inside a poisoned band, and the question whether the band is untouched."""
    n = math.prod(size)
    band = torch.full((n + 2 * BIG,), 777.0, device=DEVICE, dtype=dtype)
    inner = band[BIG:BIG + n].view(*size)
    inner.fill_(math.nan)
    return inner, lambda: bool((band[:BIG] == 777).all()) and bool((band[BIG + n:] == 777).all())
