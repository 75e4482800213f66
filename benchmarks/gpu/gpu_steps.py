"""Training steps of headwise and of torch.compile on one GPU, in one process, in turns.

Usage: gpu_steps.py SHIM [SECONDS]: SHIM is gpu_steps.cc built as a shared library against libheadwise. A case whose turn
comes after SECONDS is left out.
"""

import ctypes
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

ROUNDS, STEPS = 5, 10


def shim(path):
    lib = ctypes.CDLL(path)
    lib.steps_said.restype = ctypes.c_char_p
    for make in (lib.rows_make, lib.decoder_make):
        make.restype, make.argtypes = ctypes.c_void_p, [ctypes.c_long] * 6 + [ctypes.c_int]
    for free in (lib.rows_free, lib.decoder_free):
        free.argtypes = [ctypes.c_void_p]
    lib.rows_step.argtypes = [ctypes.c_void_p]
    lib.decoder_steps.restype, lib.decoder_steps.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_long]
    return lib


class Block(nn.Module):
    def __init__(self, dim, feed, heads, causal, gelu):
        super().__init__()
        self.heads, self.causal, self.gelu = heads, causal, gelu
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, feed), nn.Linear(feed, dim)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.gelu))


class Model(nn.Module):
    """An encoder's rows, or a decoder's loss with a tied table."""

    def __init__(self, vocabulary, dim, feed, depth, heads, tokens=0):
        super().__init__()
        self.table = nn.Embedding(vocabulary, dim)
        self.places = nn.Embedding(tokens, dim) if tokens else None
        self.blocks = nn.ModuleList(Block(dim, feed, heads, bool(tokens), "tanh" if tokens else "none") for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, ids, labels=None):
        x = self.table(ids)
        if self.places is not None:
            x = x + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        if labels is None:
            return x
        return F.cross_entropy(F.linear(x, self.table.weight).flatten(0, 1), labels.flatten())


def timed(f):
    torch.cuda.synchronize()
    start = time.perf_counter()
    f(STEPS)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS * 1e3


def compare(name, runs):
    for f in runs.values():
        f(2 * STEPS)
    times = {k: [] for k in runs}
    for _ in range(ROUNDS):
        for k, f in runs.items():
            times[k].append(timed(f))
    words = [f"{k} {statistics.median(t):.3f} ms ({min(t):.3f} to {max(t):.3f})" for k, t in times.items()]
    best = min((statistics.median(t) for k, t in times.items() if k != "headwise"), default=float("nan"))
    if "headwise" in times:
        words.append(f"torch's best over headwise {best / statistics.median(times['headwise']):.2f}x")
    print(f"{name}: " + "; ".join(words), flush=True)


def encoder(lib, batch, tokens, dim, feed, depth, heads, dtype):
    name = f"encoder [{batch} {tokens}] {depth} x {dim}, {str(dtype)[6:]}, forward and backward"
    ids = torch.randint(1000, (batch, tokens), device="cuda")
    runs = {}
    handle = lib.rows_make(batch, tokens, dim, feed, depth, heads, int(dtype == torch.bfloat16))
    if not handle or lib.rows_step(handle):
        print(f"{name}: headwise: {lib.steps_said().decode()}", flush=True)
    else:
        runs["headwise"] = lambda n: [lib.rows_step(handle) for _ in range(n)]
    for mode in ("default", "reduce-overhead"):
        model = Model(1000, dim, feed, depth, heads).cuda().to(dtype)
        compiled = torch.compile(model, mode=mode, dynamic=False)
        dy = torch.randn(batch, tokens, dim, device="cuda", dtype=dtype)

        def steps(n, model=model, compiled=compiled, dy=dy):
            for _ in range(n):
                model.zero_grad(set_to_none=True)
                compiled(ids).backward(dy)

        runs[f"torch {mode}"] = steps
    compare(name, runs)
    lib.rows_free(handle) if handle else None


def decoder(lib, batch, tokens, vocabulary, dim, depth, heads, modes):
    name = f"decoder [{batch} {tokens}] {depth} x {dim}, {vocabulary} tokens, bf16 with f32 masters, whole step"
    runs, losses = {}, {}
    handle = lib.decoder_make(batch, tokens, vocabulary, dim, depth, heads, 1)

    def ours(n):
        losses["headwise"] = lib.decoder_steps(handle, n)

    if not handle or (ours(2), losses["headwise"] != losses["headwise"])[1]:
        print(f"{name}: headwise: {lib.steps_said().decode()}", flush=True)
    else:
        runs["headwise"] = ours
    for mode in modes:
        torch.manual_seed(1)
        model = Model(vocabulary, dim, 4 * dim, depth, heads, tokens).cuda()
        compiled = torch.compile(model, mode=mode, dynamic=False)
        matrices, rest = [p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() == 1]
        adamw = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], 3e-4, (0.9, 0.95), fused=True
        )

        def steps(n, mode=mode, model=model, compiled=compiled, adamw=adamw):
            for _ in range(n):
                ids = torch.randint(vocabulary, (batch, tokens), device="cuda")
                labels = torch.randint(vocabulary, (batch, tokens), device="cuda")
                with torch.autocast("cuda", torch.bfloat16):
                    loss = compiled(ids, labels)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                adamw.step()
                adamw.zero_grad(set_to_none=True)
            losses[f"torch {mode}"] = loss.item()

        runs[f"torch {mode}"] = steps
    compare(name, runs)
    print("  losses of the last steps: " + ", ".join(f"{k} {x:.4f}" for k, x in losses.items()), flush=True)
    lib.decoder_free(handle) if handle else None


def main():
    lib, limit, begun = shim(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 1e9, time.time()
    print(torch.__version__, torch.cuda.get_device_name(0), flush=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    cases = [
        lambda: encoder(lib, 8, 512, 512, 2048, 1, 8, torch.bfloat16),
        lambda: decoder(lib, 12, 64, 65, 128, 4, 4, ("default", "reduce-overhead")),
        lambda: decoder(lib, 8, 1024, 50304, 768, 12, 12, ("default",)),
        lambda: decoder(lib, 64, 1024, 50304, 768, 12, 12, ("default",)),
        lambda: encoder(lib, 8, 512, 512, 2048, 1, 8, torch.float32),
    ]
    for case in cases:
        if time.time() - begun > limit:
            print(f"left out after {limit:.0f} s", flush=True)
            break
        try:
            case()
        except Exception as e:  # the next case stands by itself
            print(f"failed: {type(e).__name__}: {str(e)[:400]}", flush=True)
        torch.cuda.empty_cache()


main()
