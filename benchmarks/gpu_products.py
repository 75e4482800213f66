#!/usr/bin/env python3
"""Products of the CUDA library against torch's, in turns in one process: correctness first, then times.

Usage: gpu_products.py SHIM.so LIBRARY.so [SECONDS]: both are made by benchmarks/gpu_products.sh"""
import ctypes
import statistics
import sys
import time

try:
    import torch
except ImportError:
    sys.exit("gpu_products: torch is not here")

F32, BF16, F16 = 0, 1, 2
CODES = {torch.float32: F32, torch.bfloat16: BF16, torch.float16: F16}
LONGS = ctypes.c_long * 4


class Product(ctypes.Structure):
    _fields_ = [("kernel", ctypes.c_char_p), *((name, ctypes.c_void_p) for name in ("a", "b", "out", "bias", "residual")),
                *((name, LONGS) for name in ("a_shape", "b_shape", "out_shape")),
                *((name, ctypes.c_int) for name in ("inputs", "result", "bias_dtype", "activation", "accumulate", "device")),
                ("stream", ctypes.c_void_p), ("words", ctypes.c_char * 256)]


class Layers:
    def __init__(self, shim, library):
        self.shim = ctypes.CDLL(shim)
        if self.shim.layers_open(library.encode()) != 0:
            sys.exit(f"gpu_products: {library} has no layer table")

    def product(self, out, a, b, *, kernel="cuda/gemm_hopper", bias=None, residual=None, activation=0, accumulate=False):
        """out = activation(a b + bias) + residual; the call, ready to be repeated."""
        def shape(x):
            return LONGS(*x.shape, *x.stride())
        p = Product(kernel.encode(), a.data_ptr(), b.data_ptr(), out.data_ptr(), bias.data_ptr() if bias is not None else None,
                    residual.data_ptr() if residual is not None else None, shape(a), shape(b), shape(out), CODES[a.dtype],
                    CODES[out.dtype], CODES[bias.dtype] if bias is not None else 0, activation, accumulate, 0)

        def call():
            p.stream = torch.cuda.current_stream().cuda_stream
            if self.shim.layers_product(ctypes.byref(p)) != 0:
                raise RuntimeError(p.words.decode())
        call.keeps = (a, b, out, bias, residual)
        return call


def draw(*sizes, dtype=torch.bfloat16, scale=1.0):
    return (torch.randn(*sizes, device="cuda") * scale).to(dtype)


def graph_of(calls):
    """A captured graph of all calls, one after the other."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph


def times(graphs, calls, rounds):
    """Median microseconds a call of each graph, in turns."""
    found = [[] for _ in graphs]
    for graph in graphs:
        graph.replay()
    for _ in range(rounds):
        for n, graph in enumerate(graphs):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found[n].append(begin.elapsed_time(end) * 1000 / calls)
    return [statistics.median(f) for f in found]


def check(layers):
    """Every epilogue and layout at sizes that fill several waves, against torch in double."""
    bad = 0
    for m, n, k in ((4096, 2304, 768), (1000, 3072, 776), (129, 768, 3072), (2048, 1000, 16384), (64, 4096, 4096), (3, 8192, 1024)):
        for turns in ("nt", "nn", "tn"):
            for end in ("plain", "bias", "gelu", "residual", "f32"):
                a = draw(k, m).t() if turns[0] == "t" else draw(m, k)
                b = draw(k, n, scale=k**-0.5) if turns[1] == "n" else draw(n, k, scale=k**-0.5).t()
                bias, residual = draw(n), draw(m, n)
                out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float32 if end == "f32" else torch.bfloat16)
                more = {"bias": {"bias": bias}, "gelu": {"bias": bias, "activation": 2}, "residual": {"residual": residual}}.get(end, {})
                want = a.double() @ b.double()
                if "bias" in more:
                    want += bias.double()
                if end == "gelu":
                    want = torch.nn.functional.gelu(want)
                if end == "residual":
                    want += residual.double()
                for kernel in ("cuda/gemm_hopper", "cuda/gemm_mma"):
                    layers.product(out, a, b, kernel=kernel, **more)()
                    torch.cuda.synchronize()
                    error = ((out.double() - want).norm() / want.norm()).item()
                    if not error < (1e-6 + 2e-9 * k if end == "f32" else 3e-3):  # tensor cores cut off what they add in f32
                        bad += 1
                        print(f"FAILED {kernel} [{m} {n} {k}] {turns} {end}: error {error:.2e}", flush=True)
                    out.fill_(float("nan"))
    print(f"products against double: {bad} failed", flush=True)
    return bad


def line(layers, m, n, k, rounds, turns="nt", end="plain"):
    """Ratio torch / headwise and what both reach; weights rotate among copies that L2 cannot hold."""
    copies = max(1, min(12, (160 << 20) // (n * k * 2)))
    calls = max(copies, 24 if m <= 1024 else 4)
    x = draw(m, k) if turns[0] == "n" else draw(k, m).t()
    weights = [draw(n, k, scale=k**-0.5).t() if turns[1] == "t" else draw(k, n, scale=k**-0.5) for _ in range(copies)]
    out, bias = torch.empty(m, n, device="cuda", dtype=torch.bfloat16), draw(n)
    more = {"bias": bias} if end == "bias" else {}
    mine = graph_of([layers.product(out, x, weights[i % copies], **more) for i in range(calls)])
    theirs = graph_of([(lambda w=weights[i % copies]: torch.addmm(bias, x, w, out=out)) if end == "bias" else
                       (lambda w=weights[i % copies]: torch.mm(x, w, out=out)) for i in range(calls)])
    ours, rival = times([mine, theirs], calls, rounds)
    flops, size = 2 * m * n * k / ours / 1e6, (n * k + m * k + m * n) * 2 / ours / 1e6
    print(f"{turns} {end:5s} m {m:6d} n {n:6d} k {k:6d}  {ours:9.2f} us, torch {rival:9.2f} us, ratio {rival / ours:5.2f}x  "
          f"{flops:6.1f} TFLOP/s {size:5.2f} TB/s", flush=True)
    return rival / ours


def main(shim, library, seconds):
    layers, begin = Layers(shim, library), time.time()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    check(layers)
    x, y = torch.empty(1 << 30, device="cuda", dtype=torch.uint8), torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    (copy,) = times([graph_of([lambda: y.copy_(x)] * 4)], 4, 5)
    print(f"copy: {2 * (1 << 30) / copy / 1e6:.2f} TB/s", flush=True)
    del x, y
    sizes = [(768, 768), (2304, 768), (3072, 768), (768, 3072), (4096, 4096), (16384, 4096), (4096, 16384), (8192, 8192)]
    few, many = [], []
    for m in (1, 8, 16, 32, 64):
        for n, k in sizes:
            if time.time() - begin < seconds:
                few.append(line(layers, m, n, k, 7))
    for m in (65536, 8192, 1024, 128, 512, 4096):
        for n, k in sizes:
            if m * n * k < 65536 * 8192 * 8192 and time.time() - begin < seconds:
                many.append(line(layers, m, n, k, 5))
    for turns, end, m, n, k in (("nt", "bias", 8192, 3072, 768), ("nn", "plain", 8192, 768, 3072), ("nn", "plain", 8192, 4096, 4096),
                                ("tn", "plain", 3072, 768, 8192), ("tn", "plain", 4096, 4096, 8192)):
        if time.time() - begin < seconds:
            many.append(line(layers, m, n, k, 5, turns, end))
    for name, found in (("rows 1 to 64", few), ("rows above", many)):
        if found:
            print(f"{name}: mean {statistics.mean(found):.3f}x, least {min(found):.2f}x of {len(found)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 60)
