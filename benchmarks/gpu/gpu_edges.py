#!/usr/bin/env python3
"""The edges on a GPU: unusual widths, pages, few queries, dropout, a bias, f32, against the best of torch's kernels.

Usage: gpu_edges.py [widths] [pages] [chunks] [terms] [f32] [probes] [same] [--json FILE]
As in gpu_bench.py: one process, in turns, 256 MB written before every timed call. `ratio` is the rival's time by ours."""
import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from gpu_bench import HEADWISE, ROWS, agree, backward, devices, forward, ours, row  # noqa: E402
from page_cases import END, paged  # noqa: E402

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
GROUPS = ("widths", "pages", "chunks", "terms", "f32", "probes", "same")


def rivals(call, work):
    """The backends of torch that take a call: work(call's result) is timed, one each."""
    found = {}
    for name, backend in BACKENDS.items():
        try:
            with sdpa_kernel(backend):
                made = call()
                run = work(made)
                run()
                torch.cuda.synchronize()
            found[name] = (backend, run)
        except RuntimeError:
            torch.cuda.synchronize()
    def under(backend, run):
        def inner():
            with sdpa_kernel(backend):
                return run()
        return inner
    return {n: under(*x) for n, x in found.items()}


def both(group, name, shape, dtype=torch.bfloat16, causal=True, value_dim=None, tokens=None, bias=None, dropout=0.0, wants=("dq", "dk", "dv"), musts=(None, None),
         mask=None, calls=5, rounds=2, forward_too=True):
    """Forward, and gradients alone, [batch heads tokens dim], beside every backend of torch that takes them."""
    batch, heads, kv_tokens, dim = shape
    tokens, value_dim = tokens or kv_tokens, value_dim or dim
    draw = lambda t, d: torch.randn(batch, heads, t, d, device="cuda").to(dtype)
    q, k, v, dout = draw(tokens, dim), draw(kv_tokens, dim), draw(kv_tokens, value_dim), draw(tokens, value_dim)
    given = dict(bias=bias) if bias is not None else {}
    if dropout:
        given.update(dropout=dropout, seed=7)
    start = torch.tensor([END]) if causal and tokens != kv_tokens else None
    lse = torch.empty(batch, heads, tokens, device="cuda")
    run, out = ours(q, k, v, "causal" if causal else None, q_start=start, lse=lse, **given)
    run()
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    attn = mask if mask is not None else bias
    if attn is not None and "dbias" in wants:
        attn = attn.detach().requires_grad_()
    sdpa = lambda: F.scaled_dot_product_attention(*leaves, attn_mask=attn, dropout_p=dropout, is_causal=causal and attn is None)
    def quiet():
        with torch.no_grad():
            return sdpa()
    flops = 2e-9 * batch * heads * tokens * kv_tokens * (0.5 if causal else 1)
    if forward_too:
        row(group, name, {"headwise": run, **rivals(lambda: None, lambda _: quiet)}, flops * (dim + value_dim), "TFLOP/s", calls, rounds, must=musts[0])
    x = [t.transpose(1, 2) for t in (q, k, v, out)]
    found = {n: torch.empty_like(t).transpose(1, 2) for n, t in (("dq", q), ("dk", k), ("dv", v))}
    if "dbias" in wants:
        found["dbias"] = torch.empty_like(bias)
    args = HEADWISE.backward_args(*x, lse, dout.transpose(1, 2), found, mask="causal" if causal else None, **given, **({} if start is None else {"q_start": start}))
    back = lambda: HEADWISE.run_backward(args)
    others = rivals(sdpa, lambda made: lambda: torch.autograd.grad(made, leaves + ([attn] if "dbias" in wants else []), dout, retain_graph=True))
    back()
    if not dropout and others:
        for t, w in zip(list(found.values())[:3], next(iter(others.values()))()[:3]):
            agree(f"{group} {name}", t.transpose(1, 2), w, 1.5e-2)
    row(group, name + " backward", {"headwise": back, **others}, 1.25 * flops * 2 * (dim + value_dim) / 2 * 2, "TFLOP/s", calls, rounds, must=musts[1])


def widths():
    for d in (32, 48, 72, 80, 96, 112, 160):
        for causal in (False, True):
            both("edges", f"D{d} B4 H16 4096 {'causal' if causal else 'full'}", (4, 16, 4096, d), causal=causal, musts=(0.8, 0.7))
    both("edges", "D192/128 B4 H16 4096 causal", (4, 16, 4096, 192), value_dim=128, musts=(0.8, 0.7))


def pages():
    for tokens, keys, batch, heads, kv in ((512, 8192, 8, 32, 8), (64, 32768, 4, 32, 8), (2048, 2048, 8, 32, 8)):
        for size in (16, 64):
            q = torch.randn(batch, tokens, heads, 128, device="cuda").bfloat16()
            k, v = (torch.randn(batch, keys, kv, 128, device="cuda").bfloat16() for _ in range(2))
            lengths = [keys] * batch
            (pk, table), (pv, _) = paged(k, lengths, size, False), paged(v, lengths, size, False)
            out = [torch.empty_like(q) for _ in range(2)]
            start, end, counts = torch.tensor([keys - tokens]), torch.tensor([END]), torch.tensor(lengths)
            one = HEADWISE.args(q, k, v, out[0], mask="causal", q_start=start)
            there = HEADWISE.args(q, pk, pv, out[1], mask="causal", q_start=end, page_table=table, page_lengths=counts)
            HEADWISE.run(one), HEADWISE.run(there)
            if not torch.equal(*out):
                ROWS.append({"group": "mismatch", "case": f"pages of {size}", "error": 1.0})
                print("MISMATCH pages", flush=True)
            row("edges", f"{tokens}x{keys} B{batch} {heads}/{kv} pages of {size}", {"headwise": lambda: HEADWISE.run(there), "one piece": lambda: HEADWISE.run(one)},
                4e-9 * batch * heads * tokens * keys * 128, "TFLOP/s", 5, 3, must=0.91)


def chunks():
    for tokens, keys, heads, kv in ((64, 32768, 32, 8), (64, 32768, 32, 32), (128, 32768, 32, 8)):
        q = torch.randn(1, heads, tokens, 128, device="cuda").bfloat16()
        k, v = (torch.randn(1, kv, keys, 128, device="cuda").bfloat16() for _ in range(2))
        run, out = ours(q, k, v)
        run()
        def quiet():
            with torch.no_grad():
                return F.scaled_dot_product_attention(q, k, v, enable_gqa=heads != kv)
        row("edges", f"{tokens}x{keys} B1 {heads}/{kv}", {"headwise": run, **rivals(lambda: None, lambda _: quiet)}, 4e-9 * heads * tokens * keys * 128, "TFLOP/s", 5, 3, must=1.0)


def terms():
    both("edges", "dropout D128 B4 H16 2048 full", (4, 16, 2048, 128), causal=False, dropout=0.1, musts=(0.9, 0.9))
    both("edges", "dropout D128 B4 H16 2048 causal", (4, 16, 2048, 128), dropout=0.1, musts=(0.9, 0.9))
    for dtype in (torch.bfloat16,):
        bias = torch.randn(1, 16, 2048, 2048, device="cuda").to(dtype)
        both("edges", "bias D64 B4 H16 2048", (4, 16, 2048, 64), causal=False, bias=bias, musts=(0.8, 0.8))
        wide = torch.randn(4, 16, 2048, 2048, device="cuda").to(dtype)
        both("edges", "bias of batch D64 B4 H16 2048", (4, 16, 2048, 64), causal=False, bias=wide, musts=(0.8, 0.8))
        both("edges", "dbias D64 B4 H16 2048", (4, 16, 2048, 64), causal=False, bias=wide, wants=("dbias",), musts=(None, 0.8), forward_too=False)


def f32():
    for causal in (False, True):
        both("edges", f"D64 B4 H16 2048 {'causal' if causal else 'full'} f32", (4, 16, 2048, 64), torch.float32, causal, musts=(1.0, 0.8))


def probes():
    q, k, v = (torch.randn(2, 16, 8192, 128, device="cuda").bfloat16() for _ in range(3))
    top = {"top_keys": torch.empty(2, 16, 8192, 8, device="cuda", dtype=torch.int64), "top_weights": torch.empty(2, 16, 8192, 8, device="cuda")}
    row("edges", "top 8 D128 B2 8192 full", {"headwise": ours(q, k, v, probe=top)[0], "off": ours(q, k, v)[0]}, 4e-9 * 2 * 16 * 8192 ** 2 * 128, "TFLOP/s", 3, 2, must=0.33)


def same():
    """What must not have become slower: rows of gpu_bench.py."""
    for d, tokens, causal in ((128, 512, True), (128, 2048, True), (128, 8192, False), (64, 512, True), (64, 8192, True), (256, 2048, True)):
        forward("forward", d, 16384 // tokens, 2048 // d, 2048 // d, tokens, causal, False)
        backward(d, 16384 // tokens, 2048 // d, 2048 // d, tokens, causal, True)
    for causal in (False, True):
        backward(96, 2, 16, 16, 8192, causal, True, 1.0)


def main(words):
    print(devices(), flush=True)
    for name in [w for w in words if w in GROUPS] or GROUPS:
        globals()[name]()
    if "--json" in words:
        with open(words[words.index("--json") + 1], "w") as out:
            json.dump({"device": devices(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "rows": ROWS}, out, indent=1)
    return 1 if any(r["group"] == "mismatch" for r in ROWS) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
