"""A short tour: attention on a small batch, what its plan says, how quick it is against PyTorch. Needs NumPy alone."""
# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

import headwise as hw
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "benchmarks"))
import measure

print(f"headwise {hw.__version__}, {hw.get_threads()} threads\n")

print("1. Attention on a small batch: 8 query heads share 2 key and value heads, each looks back 64 tokens.\n")
random = np.random.default_rng(1)
q = random.standard_normal((2, 128, 8, 64), dtype=np.float32)  # [batch tokens heads dim]
k = random.standard_normal((2, 128, 2, 64), dtype=np.float32)
v = random.standard_normal((2, 128, 2, 64), dtype=np.float32)
mask = hw.Mask.causal() & hw.Mask.window(back=64, ahead=0)
out, lse, probe = hw.attention(q, k, v, mask, return_lse=True, probe=hw.Probe(rows=True))
print(f"   mask {mask}, out {out.shape}, lse {lse.shape}")
print("   mean entropy of each head (nats), from inside the kernel:", *(f"{e:.2f}" for e in probe.entropy.mean(axis=(0, 2))))
alone = hw.attention(q[1:], k[1:], v[1:], mask)
print("   sequence 1 alone has the same bits as in the batch:", "yes" if np.array_equal(out[1:], alone) else "NO", "\n")

print("2. Which kernel ran, and why.\n")
print("   " + hw.explain(q, k, v, mask).strip().replace("\n", "\n   "), "\n")

effort = measure.Effort(rounds=5, turn_seconds=0.02, windows=6, window_ms=10)
threads = hw.get_threads()
measure.set_threads(threads)
peak = hw._core.measure_peak(threads, effort.windows, effort.window_ms)
beside = f", beside torch {measure.torch.__version__} on the same tensors" if measure.torch else ""
print(f"3. Speed on {threads} threads; measured f32 peak {peak:.0f} GFLOP/s{beside}.\n")
print(f"   {'dtype [batch tokens heads dim] mask':<38}{'headwise':>10}{'of f32 peak':>13}"
      + (f"{'torch':>11}{'times torch':>24}" if measure.torch else ""))
for line in ("f32 [1 1024 8 64] all", "f32 [1 1024 8 64] causal", "f32 [8 128 8 64] all", "bf16 [1 1024 8 64] causal"):
    case = measure.Case.parse(line)
    if case.dtype == "bf16" and measure.torch is None:
        continue  # NumPy has no bf16 of its own
    qkv = measure.tensors(case)
    sides = {"ours": measure.ours(case, qkv)} | ({"torch": measure.rival(case, qkv)} if measure.torch else {})
    seconds = measure.take_turns(sides, effort)
    time = measure.summary(seconds["ours"])["median"]
    row = f"   {line:<38}{time * 1e3:>7.2f} ms{100 * case.flop / time / 1e9 / peak:>11.0f} %"
    if measure.torch:
        r = measure.ratio(seconds["torch"], seconds["ours"])
        row += f"{measure.summary(seconds['torch'])['median'] * 1e3:>8.2f} ms"
        row += f"{r['median']:>8.2f} ({r['least']:.2f} to {r['most']:.2f})".rjust(24)
    print(row)
if measure.torch is None:
    print("\n   torch is not installed here, so the table has no rival; ./setup.sh torch brings it.")
print("\n   Five short rounds, each time a median: a first look. make bench measures with care.")
