"""Memory: no copy of what goes in, nothing kept between calls, O(n) space for long texts."""

import gc
import re
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import torch
from oracle import normal

import headwise as hw


def f32(seed, *shape):
    return normal(seed, *shape).astype(np.float32)


def test_out_is_the_array_that_was_given():
    q, k, v = (f32(i, 1, 9, 2, 8) for i in range(3))
    out = np.empty_like(q)
    at = out.__array_interface__["data"][0]
    result = hw.attention(q, k, v, out=out)
    assert result is out and result.__array_interface__["data"][0] == at
    tensor = torch.empty(1, 9, 2, 8)
    at = tensor.data_ptr()
    result = hw.attention(*(torch.from_numpy(x) for x in (q, k, v)), out=tensor, return_lse=True)
    assert result.out is tensor and tensor.data_ptr() == at


def test_python_allocates_nothing_of_the_size_of_the_inputs():
    q, k, v = (f32(i, 4, 64, 8, 64)[:, :, :, ::2] for i in range(3))
    out = np.empty((4, 8, 64, 32), np.float32)
    turned = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    hw.attention(*turned, layout="bhsd", out=out)
    tracemalloc.start()
    hw.attention(*turned, layout="bhsd", out=out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16384 < q.nbytes


def test_inputs_are_left_as_they_were():
    arrays = [f32(i, 2, 17, 4, 8) for i in range(3)]
    copies = [x.copy() for x in arrays]
    hw.attention(*arrays, hw.Mask.causal(), return_lse=True, probe=hw.Probe(rows=True))
    assert all(np.array_equal(a, b) for a, b in zip(arrays, copies))


def test_references_are_given_back():
    q, k, v = (f32(i, 1, 9, 2, 8) for i in range(3))
    tensors = [torch.from_numpy(x.copy()) for x in (q, k, v)]
    objects = [q, k, v, *tensors, hw.Mask.causal(), np.float32, torch.Tensor, np.dtype("float32")]
    mask = objects[6]

    def calls():
        for _ in range(200):
            hw.attention(q, k, v, mask)
            hw.attention(*tensors, mask, return_lse=True, probe=hw.Probe(top_k=1))
            for bad in (dict(scale="x"), dict(layout="?"), dict(bias=np.ones(3, np.float32))):
                try:
                    hw.attention(q, k, v, mask, **bad)
                except (TypeError, ValueError):
                    pass

    calls()
    gc.collect()
    before = [sys.getrefcount(x) for x in objects]
    calls()
    gc.collect()
    after = [sys.getrefcount(x) for x in objects]
    assert max(abs(a - b) for a, b in zip(after, before)) < 20


def run_program(code):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300, check=True
    )
    return float(re.search(r"[-0-9.]+", done.stdout).group())


HIGH_WATER = """
    import numpy as np, headwise as hw
    def high_water(reset=False):
        if reset:
            open("/proc/self/clear_refs", "w").write("5")
        return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024
"""


def test_long_texts_take_memory_linear_in_tokens():
    """16,384 tokens: the matrix of weights would be 1 GiB."""
    code = (
        HIGH_WATER
        + """
    q, k, v = (np.random.default_rng(i).standard_normal((1, 16384, 1, 64), np.float32) for i in range(3))
    out = np.zeros_like(q)
    hw.attention(q[:, :64], k[:, :64], v[:, :64], out=out[:, :64])
    before = high_water(reset=True)
    hw.attention(q, k, v, hw.Mask.causal(), out=out)
    print((high_water() - before) / 2**20)
"""
    )
    assert run_program(code) < 64


def test_many_shapes_do_not_grow_the_process():
    code = (
        HIGH_WATER
        + """
    x = np.ones((1, 600, 2, 8), np.float32)
    def sweep():
        for n in range(1, 600):
            hw.attention(x[:, :n], x[:, :n], x[:, :n], hw.Mask.causal())
    sweep()
    before = high_water(reset=True)
    for _ in range(4):
        sweep()
    print((high_water() - before) / 2**20)
"""
    )
    assert run_program(code) < 16


HEAD_PROGRAM = """
import numpy as np
import headwise as hw

rng = np.random.default_rng(0)
tokens, heads, dim, rank = 8192, 2, 8, 1
x = [rng.standard_normal((1, tokens, heads, dim), dtype=np.float32) for _ in range(4)]
words = {
    "talking": {"mix_before": np.eye(heads, dtype=np.float32), "mix_after": np.eye(heads, dtype=np.float32)},
    "dcmha": {"mix_q": np.zeros((1, tokens, 2 * (2 * rank + 1), heads), np.float32)},
    "entmax": {"alpha": np.full(heads, 1.5, np.float32)},
}
peak = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024  # MiB
ctx = hw.Context(threads=2)
hw.attention(*[a[:, :64] for a in x[:3]], ctx=ctx)
for name, coefficients in words.items():
    before = peak()
    out, lse, _ = hw.attention(*x[:3], return_lse=True, coefficients=coefficients, ctx=ctx)
    hw.attention_backward(x[3], *x[:3], out, lse, coefficients=coefficients, ctx=ctx)
    print(name, peak() - before)
before = peak()
np.ones((tokens, tokens), np.float32)
print("matrix", peak() - before)
"""


def test_heads_that_mix_and_entmax_stay_linear():
    """8,192 tokens, forward and backward: one head's weights alone would take 256 MiB."""
    done = subprocess.run([sys.executable, "-c", HEAD_PROGRAM], capture_output=True, text=True, check=True)
    grown = {name: float(size) for name, size in (line.split() for line in done.stdout.splitlines())}
    assert grown.pop("matrix") > 120  # what is measured would show one
    assert max(grown.values()) < 100, grown
