#!/usr/bin/env python3
"""Speed on a GPU against torch's kernels in the same process: alternating, 256 MB written before every timed call,
medians and quartiles over all rounds. Every timed call is also compared with its rival's output.

Usage: gpu_bench.py [forward] [short] [gqa] [window] [decode] [phase] [widths] [probes] [documents] [backward] [heads] [--quick] [--json FILE]"""
import json
import pathlib
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/gpu"))
from harness import ROW_PROBES, Attention, Mask, devices, relative  # noqa: E402

HEADWISE, MMA, UNORDERED = Attention(""), Attention("cuda/mma"), Attention("cuda/unordered")
PHASE = Attention("cuda/phase")
FLUSH = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
ROWS = []


def rival(q, k, v, causal=False, backend=SDPBackend.CUDNN_ATTENTION):
    def run():
        with torch.no_grad(), sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
    return run


def ours(q, k, v, mask=None, q_start=None, run=HEADWISE, **more):
    """q, k, v [batch heads tokens dim] as torch's kernels want them; the arguments are made once."""
    x = [t.transpose(1, 2) for t in (q, k, v)]
    out = torch.empty(*q.shape[:3], v.shape[3], device="cuda", dtype=q.dtype)
    a = run.args(*x, out.transpose(1, 2), mask=Mask(mask) if mask else None, q_start=q_start, **more)
    return (lambda: run.run(a)), out


def measure(runs, calls, rounds, rest=0.0):
    """Milliseconds of every call by name; the order turns round from round to round."""
    times = {name: [] for name in runs}
    for run in runs.values():
        run(), run()
    for r in range(rounds):
        for name in list(runs) if r % 2 == 0 else list(runs)[::-1]:
            torch.cuda.synchronize()
            time.sleep(rest)
            runs[name]()
            events = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(calls)]
            for begin, end in events:
                FLUSH.zero_()
                begin.record()
                runs[name]()
                end.record()
            torch.cuda.synchronize()
            times[name] += [a.elapsed_time(b) for a, b in events]
    return times


def summary(ms):
    low, middle, high = statistics.quantiles(ms, n=4)
    return {"median_ms": middle, "spread": (high - low) / middle}


def row(group, name, runs, work, unit, calls, rounds, rest=0.0, must=None):
    times = {n: summary(t) for n, t in measure(runs, calls, rounds, rest).items()}
    mine = times["headwise"]["median_ms"]
    facts = {"group": group, "case": name, "unit": unit, "must": must,
             "value": {n: work / t["median_ms"] for n, t in times.items()}, "times": times,
             "ratio": {n: t["median_ms"] / mine for n, t in times.items() if n != "headwise"}}
    ROWS.append(facts)
    print(f"{group:8} {name:38} " + "  ".join(f"{n} {x:7.1f} (+-{100 * times[n]['spread'] / 2:.1f} %)" for n, x in facts["value"].items())
          + f" {unit}  " + "  ".join(f"{x:.2f}x {n}" for n, x in facts["ratio"].items()) + f"  {mine * 1e3:.1f} us", flush=True)


def agree(name, got, want, limit=8e-3):
    error = relative(got.float(), want.float())
    if not error < limit:
        print(f"MISMATCH {name}: {error:.2e}", flush=True)
        ROWS.append({"group": "mismatch", "case": name, "error": error})


def forward(group, head_dim, batch, heads, kv_heads, tokens, causal, quick, calls=10, rounds=3, must=None):
    q = torch.randn(batch, heads, tokens, head_dim, device="cuda").bfloat16()
    k, v = (torch.randn(batch, kv_heads, tokens, head_dim, device="cuda").bfloat16() for _ in range(2))
    name = f"D{head_dim} {heads}/{kv_heads} B{batch} {tokens} {'causal' if causal else 'full'}"
    run, out = ours(q, k, v, "causal" if causal else None)
    other = rival(q, k, v, causal)
    run()
    agree(name, out, other())
    work = 4e-9 * batch * heads * tokens * tokens * head_dim * (0.5 if causal else 1)
    if quick:
        calls, rounds = max(3, calls // 2), 2
    row(group, name, {"headwise": run, "cudnn": other}, work, "TFLOP/s", calls, rounds, must=must)


def widths(head_dim, value_dim, causal, quick, tokens=8192, heads=16):
    """Widths beside the usual three: the kernel chosen for them, and cuda/mma by name."""
    q, k = (torch.randn(16384 // tokens, heads, tokens, head_dim, device="cuda").bfloat16() for _ in range(2))
    v = torch.randn(16384 // tokens, heads, tokens, value_dim, device="cuda").bfloat16()
    name = f"D{head_dim}/{value_dim} B{16384 // tokens} {tokens} {'causal' if causal else 'full'}"
    mask = "causal" if causal else None
    run, out = ours(q, k, v, mask)
    portable, also = ours(q, k, v, mask, run=MMA)
    runs = {"headwise": run, "mma": portable, "cudnn": rival(q, k, v, causal)}
    run(), portable()
    try:
        want = runs["cudnn"]()
        agree(name, out, want)
        agree(name + " mma", also, want)
    except RuntimeError as why:
        print(f"{name}: cuDNN refuses: {str(why).splitlines()[0]}", flush=True)
        del runs["cudnn"]
    row("widths", name, runs, 2e-9 * 16384 * heads * tokens * (head_dim + value_dim) * (0.5 if causal else 1), "TFLOP/s", 5, 2)


def probes(head_dim, causal, quick, tokens=8192):
    """Entropy and largest weight on and off; all statistics of rows; top keys and column sums, which look at the scores again."""
    heads, batch = 2048 // head_dim, 16384 // tokens
    q, k, v = (torch.randn(batch, heads, tokens, head_dim, device="cuda").bfloat16() for _ in range(3))
    probe = {n: torch.empty(batch, heads, tokens, device="cuda", dtype=torch.int64 if n == "top_position" else torch.float32) for n in ROW_PROBES}
    mask = "causal" if causal else None
    few = {n: probe[n] for n in ("entropy", "top_weight")}
    runs = {"headwise": ours(q, k, v, mask, probe=few)[0], "off": ours(q, k, v, mask)[0], "all": ours(q, k, v, mask, probe=probe)[0]}
    name, work = f"D{head_dim} B{batch} {tokens} {'causal' if causal else 'full'}", 4e-9 * batch * heads * tokens * tokens * head_dim * (0.5 if causal else 1)
    row("probes", name, runs, work, "TFLOP/s", 5, 4, must=0.91)
    runs = {"headwise": runs["all"], "off": runs["off"], "mma": ours(q, k, v, mask, run=MMA, probe=probe)[0]}
    top = lambda n: {"top_keys": torch.empty(batch, heads, tokens, n, device="cuda", dtype=torch.int64), "top_weights": torch.empty(batch, heads, tokens, n, device="cuda")}
    for n in (1, 8, 64):
        runs[f"top {n}"] = ours(q, k, v, mask, probe=top(n))[0]
    runs["columns"] = ours(q, k, v, mask, probe={"column_sums": torch.empty(batch, heads, tokens, device="cuda")})[0]
    row("probes", name + " all", runs, work, "TFLOP/s", 5, 2)


def documents(head_dim, quick, tokens=8192, width=1024):
    """Packed documents of one length, causal, against FlexAttention's block mask."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    heads, batch = 2048 // head_dim, 16384 // tokens
    q, k, v = (torch.randn(batch, heads, tokens, head_dim, device="cuda").bfloat16() for _ in range(3))
    run, out = ours(q, k, v, f"documents({', '.join(map(str, range(0, tokens + 1, width)))}) & causal")
    blocks = create_block_mask(lambda b, h, i, j: (i >= j) & (i // width == j // width), None, None, tokens, tokens, device="cuda")
    compiled = torch.compile(flex_attention)
    other = lambda: compiled(q, k, v, block_mask=blocks)
    run()
    with torch.no_grad():
        agree("documents", out, other())
        row("documents", f"D{head_dim} B{batch} {tokens} of {width}", {"headwise": run, "flex": other},
            2e-9 * batch * heads * tokens * (width + 1) * head_dim, "TFLOP/s", 5, 2)


def window(head_dim, tokens, width, quick):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    heads, batch = 2048 // head_dim, 16384 // tokens
    q, k, v = (torch.randn(batch, heads, tokens, head_dim, device="cuda").bfloat16() for _ in range(3))
    run, out = ours(q, k, v, f"window({width - 1}, 0)")
    blocks = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < width), None, None, tokens, tokens, device="cuda")
    compiled = torch.compile(flex_attention)
    other = lambda: compiled(q, k, v, block_mask=blocks)
    run()
    name = f"D{head_dim} B{batch} {tokens} window {width}"
    with torch.no_grad():
        agree(name, out, other())
        pairs = width * tokens - width * (width - 1) / 2
        row("window", name, {"headwise": run, "flex": other}, 4e-9 * batch * heads * pairs * head_dim, "TFLOP/s", 5 if quick else 10, 2 if quick else 3,
            must=1.5)


def decode(batch, heads, kv_heads, keys, quick, backends=("cudnn",), must=None):
    q = torch.randn(batch, heads, 1, 128, device="cuda").bfloat16()
    k, v = (torch.randn(batch, kv_heads, keys, 128, device="cuda").bfloat16() for _ in range(2))
    run, out = ours(q, k, v)
    kinds = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
    others = {n: rival(q, k, v, backend=kinds[n]) for n in backends}
    run()
    name = f"B{batch} {heads}/{kv_heads} {keys} keys"
    for n in backends:
        agree(f"{name} {n}", out, others[n]())
    row("decode", name, {"headwise": run, **others}, 4e-6 * batch * kv_heads * keys * 128, "GB/s", 15 if quick else 30, 2 if quick else 3, must=must)


def phase(quick):
    """What decode = prefill costs by name: forward at 8k, then one query of each sequence."""
    for causal in (False, True):
        q, k, v = (torch.randn(2, 16, 8192, 128, device="cuda").bfloat16() for _ in range(3))
        mask = "causal" if causal else None
        runs = {"headwise": ours(q, k, v, mask)[0], "phase": ours(q, k, v, mask, run=PHASE)[0]}
        row("phase", f"D128 16/16 B2 8192 {mask or 'full'}", runs, 4e-9 * 2 * 16 * 8192 * 8192 * 128 * (0.5 if causal else 1), "TFLOP/s", 5, 4)
    for batch, heads, kv_heads, keys in ((64, 32, 8, 8192), (1, 32, 8, 32768), (64, 32, 1, 8192), (1, 32, 8, 1024), (16, 32, 8, 8192), (16, 32, 32, 8192)):
        q = torch.randn(batch, heads, 1, 128, device="cuda").bfloat16()
        k, v = (torch.randn(batch, kv_heads, keys, 128, device="cuda").bfloat16() for _ in range(2))
        (run, out), (other, also) = ours(q, k, v), ours(q, k, v, run=PHASE)
        run(), other()
        name = f"B{batch} {heads}/{kv_heads} {keys} keys"
        agree(f"phase {name}", also, out)
        row("phase", name, {"headwise": run, "phase": other, "cudnn": rival(q, k, v)}, 4e-6 * batch * kv_heads * keys * 128, "GB/s", 15, 2 if quick else 4)


def decode_eight(batch, heads, kv_heads, keys, quick):
    """int8 and e4m3 keys and values beside the bf16 they were made of; bytes are those of 8 bits and scales."""
    q = torch.randn(batch, heads, 1, 128, device="cuda").bfloat16()
    k, v = (torch.randn(batch, kv_heads, keys, 128, device="cuda").bfloat16() for _ in range(2))
    other, want = ours(q, k, v)
    other()
    sides, name = {}, f"B{batch} {heads}/{kv_heads} {keys} keys int8"
    for kind, most, dtype, far in (("headwise", 127, torch.int8, 2e-2), ("e4m3", 448, torch.float8_e4m3fn, 6e-2)):
        ks, vs = ((x.float().abs().amax(-1) / most) for x in (k, v))
        k8, v8 = ((x.float() / s[..., None]).clamp(-most, most) for x, s in ((k, ks), (v, vs)))
        k8, v8 = ((x if kind == "e4m3" else x.round()).to(dtype) for x in (k8, v8))
        sides[kind], out = ours(q, k8, v8, k_scale=ks.transpose(1, 2), v_scale=vs.transpose(1, 2))
        sides[kind]()
        agree(f"{name}, {kind}", out, want, far)
    row("decode", name, {**sides, "bf16": other}, 2e-6 * batch * kv_heads * keys * 132, "GB/s", 15 if quick else 30, 2 if quick else 3)


def backward(head_dim, batch, heads, kv_heads, tokens, causal, quick, must=None):
    """All kernels of the gradients: rows made ready, tiles, sums rounded; cuDNN as torch's autograd runs it."""
    q, dout = (torch.randn(batch, heads, tokens, head_dim, device="cuda").bfloat16() for _ in range(2))
    k, v = (torch.randn(batch, kv_heads, tokens, head_dim, device="cuda").bfloat16() for _ in range(2))
    name, mask = f"D{head_dim} {heads}/{kv_heads} B{batch} {tokens} {'causal' if causal else 'full'}", Mask("causal") if causal else None
    lse = torch.empty(batch, heads, tokens, device="cuda")
    run, out = ours(q, k, v, "causal" if causal else None, lse=lse)
    run()
    x = [t.transpose(1, 2) for t in (q, k, v, out)]
    found = {n: {m: torch.empty_like(t).transpose(1, 2) for m, t in (("dq", q), ("dk", k), ("dv", v))} for n in ("headwise", "unordered")}
    if head_dim not in (64, 128):  # there is no order to leave
        del found["unordered"]
    args = {n: {"headwise": HEADWISE, "unordered": UNORDERED}[n].backward_args(*x, lse, dout.transpose(1, 2), found[n], mask=mask) for n in found}
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        made = F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=heads != kv_heads)
    runs = {"headwise": lambda: HEADWISE.run_backward(args["headwise"]), "unordered": lambda: UNORDERED.run_backward(args["unordered"]),
            "cudnn": lambda: torch.autograd.grad(made, leaves, dout, retain_graph=True)}
    if head_dim not in (64, 128):
        del runs["unordered"]
    want = runs["cudnn"]()
    for n in found:
        runs[n]()
        for m, t, w in zip(("dq", "dk", "dv"), found[n].values(), want):
            agree(f"backward {name} {n} {m}", t.transpose(1, 2), w, 1.2e-2)
    row("backward", name, runs, 1e-8 * batch * heads * tokens * tokens * head_dim * (0.5 if causal else 1), "TFLOP/s", 4 if quick else 8,
        2 if quick else 3, must=must)


def backwards(quick):
    for d, musts in ((128, (1.0, 1.05)), (64, (1.05, 1.12)), (256, (0.95, 0.95))):
        for causal in (False, True):
            for tokens in (512, 2048, 8192) if quick else (512, 1024, 2048, 4096, 8192, 16384):
                must = 0.98 if tokens <= 2048 and d < 256 else musts[causal] if tokens == 8192 else None
                backward(d, 16384 // tokens, 2048 // d, 2048 // d, tokens, causal, quick, must)
    for causal in (False, True):
        for d in (96, 192):
            backward(d, 2, 16, 16, 8192, causal, quick)
        for tokens in (2048, 8192):
            backward(128, 1, 64, 8, tokens, causal, quick, {(True, 2048): 0.95, (True, 8192): 1.0}.get((causal, tokens)))


def mixed(x, given, of_q=None, of_k=None, row0=0, rank=2):
    """y_h = sum_m M[m h] x_m of every pair, as torch is asked for it; dynamic: rows of w1, w2 and the gate of queries and of keys."""
    if of_q is None:
        return torch.einsum("bmij,mh->bhij", x, given)
    y = x
    for of, axis in ((of_q, "i"), (of_k, "j")):
        w1, w2, gate = of[:, :, row0:row0 + rank], of[:, :, row0 + rank:row0 + 2 * rank], of[:, :, row0 + 2 * rank].permute(0, 2, 1)
        y = y + torch.einsum(f"brij,b{axis}rh->bhij", torch.einsum(f"bmij,b{axis}rm->brij", x, w1), w2)
        y = y + x * (gate[..., None] if axis == "i" else gate[:, :, None])
    return y


class Entmax15(torch.autograd.Function):
    """Weights of alpha 1.5 by sorting; the gradient in closed form, from the weights alone."""

    @staticmethod
    def forward(ctx, s):
        z = (s.float() - s.float().amax(-1, keepdim=True)) / 2
        top = torch.sort(z, -1, descending=True)[0]
        count = torch.arange(1, s.shape[-1] + 1, device=s.device, dtype=torch.float32)
        mean, square = top.cumsum(-1) / count, (top ** 2).cumsum(-1) / count
        tau = mean - ((1 - count * (square - mean ** 2)) / count).clamp(min=0).sqrt()
        chosen = (tau <= top).sum(-1, keepdim=True) - 1
        weights = (z - tau.gather(-1, chosen)).clamp(min=0).square().to(s.dtype)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, dout):
        slope = ctx.saved_tensors[0].float().sqrt()
        found = dout.float() * slope
        return (found - slope * (found.sum(-1, keepdim=True) / slope.sum(-1, keepdim=True))).to(dout.dtype)


def recipe(kind):
    def run(q, k, v, *terms):
        s = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * q.shape[-1] ** -0.5
        if kind == "talking":
            w = mixed(torch.softmax(mixed(s, terms[0]).float(), -1).to(q.dtype), terms[1])
        elif kind == "dcmha":
            w = mixed(torch.softmax(mixed(s, None, *terms).float(), -1).to(q.dtype), None, *terms, row0=5)
        else:
            w = Entmax15.apply(s)
        return (w @ v.transpose(1, 2)).transpose(1, 2)
    return run


def special(kind, tokens, musts=(None, None), batch=1, heads=16, head_dim=64, compiled=False):
    """A kind of head no library fuses, both directions, against its recipe in torch; coefficients of the rival in bf16 too."""
    shape = (batch, tokens, heads, head_dim)
    q, k, v, dout = (torch.randn(shape, device="cuda").bfloat16() for _ in range(4))
    square = lambda: torch.eye(heads, device="cuda") + 0.1 * torch.randn(heads, heads, device="cuda")
    terms = {"talking": lambda: dict(mix_before=square(), mix_after=square()), "entmax": lambda: dict(alpha=torch.full((heads,), 1.5, device="cuda")),
             "dcmha": lambda: dict(mix_q=0.1 * torch.randn(batch, tokens, 10, heads, device="cuda"), mix_k=0.1 * torch.randn(batch, tokens, 10, heads, device="cuda"))}[kind]()
    out, lse = torch.empty_like(q), torch.empty(batch, heads, tokens, device="cuda")
    a = HEADWISE.args(q, k, v, out, lse, **terms)
    found = {"d" + n: torch.empty_like(t) for n, t in dict(q=q, k=k, v=v, **terms).items()}
    b = HEADWISE.backward_args(q, k, v, out, lse, dout, found, **terms)
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)] + [t.bfloat16().requires_grad_() for t in terms.values() if kind != "entmax"]
    plain, name = recipe(kind), kind + (f" {batch} x" if batch > 1 else "") + f" {tokens}"
    with torch.no_grad():
        runs = {"headwise": lambda: HEADWISE.run(a), "eager": lambda: plain(*leaves)}
        if compiled:
            quick_one = torch.compile(plain, dynamic=False)
            runs["compiled"] = lambda: quick_one(*leaves)
        runs["headwise"]()
        agree(name, out, runs["eager"](), 2e-2)
        work = 4e-9 * batch * tokens * tokens * heads * head_dim
        row("heads", f"{name} forward", runs, work, "TFLOP/s", 5, 2, must=musts[0])
    made = plain(*leaves)
    runs = {"headwise": lambda: HEADWISE.run_backward(b), "eager": lambda: torch.autograd.grad(made, leaves, dout, retain_graph=True)}
    if compiled:
        made_whole = quick_one(*leaves)
        runs["compiled"] = lambda: torch.autograd.grad(made_whole, leaves, dout, retain_graph=True)
    runs["headwise"]()
    for (n, t), w in zip(found.items(), runs["eager"]()):
        agree(f"{name} {n}", t, w, 3e-2)
    row("heads", f"{name} backward", runs, 2.5 * work, "TFLOP/s", 5, 2, must=musts[1])


def listed(share=0.5, batch=4, tokens=4096, heads=32, head_dim=64):
    """MoH: a share of each head's rows against all of them; lists on the CPU, on the device, and in a graph."""
    q, k, v = (torch.randn(batch, tokens, heads, head_dim, device="cuda").bfloat16() for _ in range(3))
    chosen = (torch.rand(batch * heads, tokens) < share)
    lists = {"row_offsets": torch.cat([torch.zeros(1, dtype=torch.int64), chosen.sum(1).cumsum(0)]), "row_index": chosen.nonzero()[:, 1].contiguous()}
    out, every = torch.empty_like(q), torch.empty_like(q)
    here = {n: t.cuda() for n, t in lists.items()}
    cpu, gpu, dense = HEADWISE.args(q, k, v, out, **lists), HEADWISE.args(q, k, v, out, **here), HEADWISE.args(q, k, v, every)
    runs = {"headwise": lambda: HEADWISE.run(gpu), "all rows": lambda: HEADWISE.run(dense), "lists on the CPU": lambda: HEADWISE.run(cpu)}
    for run in runs.values():
        run()
    rows = chosen.view(batch, heads, tokens, 1).transpose(1, 2).cuda()
    agree(f"listed {share}", out, every * rows)
    row("heads", f"rows listed {share}", runs, 4e-9 * batch * tokens * tokens * heads * head_dim * share, "TFLOP/s", 5, 3, must=1.4)


GROUPS = ["backward", "decode", "phase", "forward", "gqa", "short", "window", "widths", "probes", "documents", "heads"]


def main(words):
    quick, file = "--quick" in words, words[words.index("--json") + 1] if "--json" in words else None
    groups = [w for w in words if w in GROUPS] or GROUPS
    print(devices(), flush=True)
    if "decode" in groups:
        decode(64, 32, 8, 8192, quick, must=0.95)
        decode(1, 32, 8, 32768, quick, must=1.0)
        decode(64, 32, 1, 8192, quick, ("cudnn", "fa2"), must=1.0)
        decode(1, 32, 8, 1024, quick)
        decode(16, 32, 8, 8192, quick)
        decode(16, 32, 32, 8192, quick)
        decode_eight(64, 32, 8, 8192, quick)
        decode_eight(1, 32, 8, 32768, quick)
    if "phase" in groups:
        phase(quick)
    if "forward" in groups:
        for d, musts in ((128, (1.12, 1.20)), (64, (1.12, 1.15)), (256, (1.08, 1.10))):
            for causal in (False, True):
                for tokens in ((8192,) if quick else (4096, 8192, 16384)):
                    forward("forward", d, 16384 // tokens, 2048 // d, 2048 // d, tokens, causal, quick, must=musts[causal] if tokens == 8192 else None)
    if "gqa" in groups:
        for causal in (False, True):
            forward("gqa", 128, 1, 64, 8, 8192, causal, quick, must=(1.15, 1.25)[causal])
    if "short" in groups:
        for d in (128, 64, 256):
            for causal in (False, True):
                for tokens in (512, 1024, 2048):
                    forward("short", d, 16384 // tokens, 2048 // d, 2048 // d, tokens, causal, quick, must=1.0)
    if "window" in groups:
        for d in (64, 128):
            window(d, 8192, 1024, quick)
    if "widths" in groups:
        for d, dv in ((96, 96), (192, 192), (192, 128)):
            for causal in (False, True):
                widths(d, dv, causal, quick)
    if "probes" in groups:
        for head_dim in (128, 64):
            for causal in (False, True):
                probes(head_dim, causal, quick)
    if "documents" in groups:
        documents(128, quick)
    if "backward" in groups:
        backwards(quick)
    if "heads" in groups:
        for tokens in (2048, 4096):
            for batch in (1, 16384 // tokens):  # the second is the setting of the other tables: 16k tokens in all
                special("talking", tokens, (5.0, 4.0), batch, compiled=True)
            special("dcmha", tokens, (4.0, 4.0))
        special("entmax", 4096)
        listed()
    if file:
        query = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw,power.limit"
        state = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], text=True, capture_output=True).stdout.strip()
        with open(file, "w") as out:
            json.dump({"device": devices(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "after": state, "rows": ROWS}, out, indent=1)
    return 1 if any(r["group"] == "mismatch" for r in ROWS) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
