"""Bits that do not depend on the number of processors: forward, decode and gradients with grids for all of them, 66 and 7."""
import hashlib
import os
import subprocess
import sys

import torch

from common import check, normal
from harness import Attention


def runs():
    """Name and outputs of every run: enough tiles that each block takes several whatever their number."""
    forward, decode, gradients = Attention("cuda/hopper"), Attention("cuda/decode"), Attention("cuda/hopper_backward")
    for d in (64, 96, 128, 192, 256):
        q, k, v, dout = (normal(3, 900, h, d) for h in (8, 4, 4, 8))
        for mask in (None, "causal", "window(200, 0)"):
            out, lse = torch.empty_like(q), torch.empty(3, 8, 900, device="cuda")
            forward(q, k, v, out, lse, mask=mask)
            yield f"forward d{d} {mask}", (out, lse)
            yield f"gradients d{d} {mask}", gradients.backward(q, k, v, out, lse, dout, mask=mask)
        if d in (64, 128, 256):
            q, k, v = normal(9, 1, 32, d), normal(9, 5000, 8, d), normal(9, 5000, 8, d)
            tokens = ", ".join(str(1 + n * 613) for n in range(9))
            yield f"decode d{d}", (decode(q, k, v), decode(q, k, v, mask=f"lengths({tokens})"))
    q, k, v = normal(2, 300, 8, 80), normal(2, 300, 8, 80), normal(2, 300, 8, 80)
    yield "cuda/mma", (Attention("cuda/mma")(q, k, v),)


def digests():
    torch.manual_seed(3)
    for name, outputs in runs():
        print(name, *(hashlib.sha256(x.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()[:16] for x in outputs), sep=": ", flush=True)


def processor_laws():
    """HEADWISE_CUDA_PROCESSORS is read once a process: one each."""
    made = [subprocess.Popen([sys.executable, __file__], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             env={**os.environ, "HEADWISE_CUDA_PROCESSORS": str(n)}) for n in (100000, 66, 7)]
    lines = [p.communicate(timeout=120)[0].splitlines() for p in made]
    check(all(p.returncode == 0 for p in made), "processors", f"a run ended with {[p.returncode for p in made]}: {lines}")
    check(len(lines[0]) == 34, "processors", f"{len(lines[0])} lines, 34 are wanted")
    for number, other in ((66, lines[1]), (7, lines[2])):
        for ours, theirs in zip(lines[0], other):
            check(ours == theirs, "processors", f"{number} give {theirs}, all give {ours}")


if __name__ == "__main__":
    digests()
