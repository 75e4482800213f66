"""Attention from Python: a batch, a ragged batch, what single heads do, and which kernel ran."""
# SPDX-License-Identifier: Apache-2.0

import numpy as np

import headwise as hw

random = np.random.default_rng(1)
q = random.standard_normal((2, 128, 8, 64), dtype=np.float32)  # [batch tokens heads dim]
k = random.standard_normal((2, 128, 2, 64), dtype=np.float32)  # two key heads serve eight query heads
v = random.standard_normal((2, 128, 2, 64), dtype=np.float32)

mask = hw.Mask.causal() & hw.Mask.window(back=64, ahead=0)
out = hw.attention(q, k, v, mask)
print("mask       ", mask)
print("out        ", out.shape, out.dtype)

# The same sequence alone, or in chunks, gives the same bits.
alone = hw.attention(q[1:], k[1:], v[1:], mask)
tail = hw.attention(q[:, 100:], k, v, mask, q_start=100)
print("same bits  ", np.array_equal(out[1:], alone) and np.array_equal(out[:, 100:], tail))

# Two sequences of 100 and 28 tokens, one after the other, without padding.
offsets = [0, 100, 128]
ragged = hw.attention(q[0], k[0], v[0], mask, q_offsets=offsets, kv_offsets=offsets)
print("ragged     ", ragged.shape, np.array_equal(ragged[:100], out[0, :100]))

# Head 0 looks at everything, the others take a narrow window; the probe counts what each of them saw.
per_head = [hw.Mask.causal()] + [hw.Mask.causal() & hw.Mask.sliding(8)] * 7
_, lse, probe = hw.attention(q, k, v, per_head, return_lse=True, probe=hw.Probe(rows=True, top_k=2))
print("lse        ", lse.shape)
print("entropy    ", " ".join(f"{e:.2f}" for e in probe.entropy[0].mean(-1)))
print("top keys   ", probe.top_keys[0, 0, -1], "of the last query, head 0")

chosen = next(line for line in hw.explain(q, k, v, mask).splitlines() if line.endswith("chosen"))
print("kernel     ", chosen.split()[-2:])
try:
    hw.attention(q, k[:, :, :1].repeat(3, 2), v, mask)
except ValueError as e:
    print("refused    ", e)
