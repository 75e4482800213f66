#!/usr/bin/env python3
"""Products of the CUDA library against torch's, in turns in one process: correctness first, then times.

Usage: gpu_products.py SHIM.so LIBRARY.so [SECONDS]: both are made by benchmarks/gpu/gpu_products.sh"""
import ctypes
import math
import statistics
import struct
import sys
import time

try:
    import torch

    import cublaslt
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
        try:
            self.rival = cublaslt.CublasLt()
        except (OSError, RuntimeError) as error:
            self.rival = None
            print("gpu_products: without cuBLASLt's algorithms:", error)

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


    def row(self, what, tensors, sizes, dtype=BF16):
        """A row operation of layers_row() in the shim, ready to be repeated."""
        addresses = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
        numbers = (ctypes.c_long * len(sizes))(*sizes)

        def call():
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            if self.shim.layers_row(what.encode(), addresses, numbers, dtype, stream) != 0:
                raise RuntimeError(what)
        call.keeps = tensors
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
                for kernel in ("cuda/gemm_hopper", "cuda/gemm_mma", "cuda/gemm_stream", "cuda/gemm_wgmma"):
                    layers.product(out, a, b, kernel=kernel, **more)()
                    torch.cuda.synchronize()
                    error = ((out.double() - want).norm() / want.norm()).item()
                    if not error < (1e-6 + 2e-9 * k if end == "f32" else 3e-3):  # tensor cores cut off what they add in f32
                        bad += 1
                        print(f"FAILED {kernel} [{m} {n} {k}] {turns} {end}: error {error:.2e}", flush=True)
                    out.fill_(float("nan"))
    print(f"products against double: {bad} failed", flush=True)
    return bad


def best_algorithm(rival, out, x, weights, calls):
    """The fastest of cuBLASLt's 16 algorithms for these sizes, as a graph."""
    graphs = []
    for run in rival.algorithms(out, x, weights[0]):
        try:
            graphs.append(graph_of([lambda w=weights[i % len(weights)], run=run: run(w) for i in range(calls)]))
        except RuntimeError:
            torch.cuda.synchronize()
    return graphs[min(enumerate(times(graphs, calls, 3)), key=lambda x: x[1])[0]]


def line(layers, m, n, k, rounds, turns="nt", end="plain"):
    """Ratio of the best of torch and cuBLASLt to headwise and what both reach; weights rotate among copies that L2 cannot hold."""
    copies = max(1, min(12, (160 << 20) // (n * k * 2)))
    calls = max(copies, 24 if m <= 1024 else 4)
    x = draw(m, k) if turns[0] == "n" else draw(k, m).t()
    weights = [draw(n, k, scale=k**-0.5).t() if turns[1] == "t" else draw(k, n, scale=k**-0.5) for _ in range(copies)]
    out, bias = torch.empty(m, n, device="cuda", dtype=torch.bfloat16), draw(n)
    more = {"bias": bias} if end == "bias" else {}
    names = ("cuda/gemm_hopper", "cuda/gemm_stream", "cuda/gemm_wgmma") if m <= 2048 and turns == "nt" else ("cuda/gemm_hopper",)
    mine = [graph_of([layers.product(out, x, weights[i % copies], kernel=name, **more) for i in range(calls)]) for name in names]
    theirs = [graph_of([(lambda w=weights[i % copies]: torch.addmm(bias, x, w, out=out)) if end == "bias" else
                        (lambda w=weights[i % copies]: torch.mm(x, w, out=out)) for i in range(calls)])]
    if layers.rival and end == "plain":
        theirs.append(best_algorithm(layers.rival, out, x, weights, calls))
    ours, *parts = times([*mine, *theirs], calls, rounds)
    rival, parts = min(parts[len(mine) - 1:]), parts[:len(mine) - 1]
    flops, size = 2 * m * n * k / ours / 1e6, (n * k + m * k + m * n) * 2 / ours / 1e6
    print(f"{turns} {end:5s} m {m:6d} n {n:6d} k {k:6d}  {ours:9.2f} us, rival {rival:9.2f} us, ratio {rival / ours:5.2f}x  "
          f"{flops:6.1f} TFLOP/s {size:5.2f} TB/s"
          + (f"  stream {parts[0]:7.2f} wgmma {parts[1]:7.2f}" if parts else ""), flush=True)
    return rival / ours, f"{turns} {end} [{m} {n} {k}]", n * k * 2 / ours / 1e6


def row_lines(layers):
    """Row operations against torch's eager kernels: time and the bytes each must move."""
    def show(name, mine, theirs, size):
        ours, rival = times([graph_of([mine] * 4), graph_of([theirs] * 4)], 4, 7)
        print(f"{name:40s} {ours:9.2f} us, torch {rival:9.2f} us, ratio {rival / ours:5.2f}x  {size / ours / 1e6:5.2f} TB/s", flush=True)
    for rows, width in ((65536, 768), (8192, 4096)):
        x, dy, y, dx = (draw(rows, width) for _ in range(4))
        w, b = draw(width), draw(width)
        mean, inverse = torch.empty(rows, device="cuda"), torch.empty(rows, device="cuda")
        dw, db = torch.zeros(width, device="cuda"), torch.zeros(width, device="cuda")
        show(f"layer norm [{rows} {width}]", layers.row("norm", (x, y, w, b, mean, inverse), (rows, width)),
             lambda x=x, w=w, b=b: torch.native_layer_norm(x, (x.shape[1],), w, b, 1e-5), 4 * x.numel())
        _, m, r = torch.native_layer_norm(x, (width,), w, b, 1e-5)
        show(f"layer norm backward [{rows} {width}]", layers.row("norm_backward", (x, dy, dx, w, mean, inverse, dw, db), (rows, width)),
             lambda x=x, dy=dy, m=m, r=r, w=w, b=b: torch.ops.aten.native_layer_norm_backward(dy, x, (x.shape[1],), m, r, w, b, [True] * 3), 6 * x.numel())
        show(f"silu pair [{rows} {width}]", layers.row("gated", (x, dy, y), (rows, width)),
             lambda x=x, dy=dy: torch.nn.functional.silu(dy) * x, 6 * x.numel())
    logits = draw(8192, 50304)
    grads, labels = torch.empty_like(logits), torch.randint(50304, (8192,), device="cuda")
    losses, total = torch.empty(8192, device="cuda", dtype=torch.float64), torch.zeros(1, device="cuda", dtype=torch.float64)

    def torch_loss():
        logs = torch.log_softmax(logits.float(), 1)
        torch.nn.functional.nll_loss(logs, labels)
        p = logs.exp()
        p[range_, labels] -= 1
        return p.to(torch.bfloat16)
    range_ = torch.arange(8192, device="cuda")
    show("cross entropy and gradient [8192 50304]", layers.row("loss", (logits, grads, labels, losses, total), (8192, 50304)), torch_loss, 4 * logits.numel())
    del logits, grads
    dy, ids, table = draw(65536, 768), torch.randint(50304, (65536,), device="cuda"), torch.zeros(50304, 768, device="cuda")
    ids[::20] = 7  # a common word
    show("embedding backward [65536 768]", layers.row("embedding_backward", (table, dy, ids), (65536, 768, 50304)),
         lambda: torch.ops.aten.embedding_dense_backward(dy, ids, 50304, -1, False), 2 * dy.numel())
    adamw_line(layers, show)


def adamw_line(layers, show):
    sizes = [50304 * 768] + [768 * 768 * 4, 768 * 3072, 3072 * 768, 768, 3072] * 12
    sets = [[torch.rand(n, device="cuda") * 0.01 for n in sizes] for _ in range(4)]
    packed, block = b"", 0
    for master, gradient, m, v in zip(*sets):
        packed += struct.pack("<5QBB6xqq", master.data_ptr(), gradient.data_ptr(), m.data_ptr(), v.data_ptr(), 0, 0, 1, master.numel(), block)
        block += -(-master.numel() // 4096)
    there = torch.frombuffer(bytearray(packed), dtype=torch.uint8).cuda()
    words = torch.frombuffer(bytearray(struct.pack("<8fi", 1e-4, 0.9, 0.999, 1e-8, 0.01, 1e-4, 1.0, 1.0, 0)), dtype=torch.uint8).cuda()
    mine = layers.row("adamw", (there, words), (len(sizes), block))
    mine.keeps += tuple(sets)
    steps, rate = [torch.ones((), device="cuda") for _ in sizes], torch.tensor(1e-4, device="cuda")

    def torch_step():
        torch._fused_adamw_(sets[0], sets[1], sets[2], sets[3], [], steps, lr=rate, beta1=0.9, beta2=0.999,
                            weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False)
    show(f"adamw of {sum(sizes) / 1e6:.0f} M numbers", mine, torch_step, 28 * sum(sizes))


def summary(few, many, copied):
    """Means, what stays under the aims (mean 0.95x, none under 0.85x; 80 % of copying from 8 MB of weights on)."""
    for name, found in (("rows 1 to 64", few), ("rows above", many), ("all", few + many)):
        ratios = [f[0] for f in found]
        if found:
            print(f"{name}: mean {statistics.mean(ratios):.3f}x, least {min(ratios):.2f}x of {len(found)}, "
                  f"{sum(r < 0.85 for r in ratios)} under 0.85x", flush=True)
    print("worst:", ", ".join(f"{words} {ratio:.2f}x" for ratio, words, _ in sorted(few + many)[:24]), flush=True)
    heavy = [f for f in few if math.prod(int(x) for x in f[1].split("[")[1].rstrip("]").split()[1:]) * 2 >= 8 << 20]
    if heavy:
        print(f"weights from 8 MB on, rows 1 to 64: {min(f[2] for f in heavy) / copied:.2f} to {max(f[2] for f in heavy) / copied:.2f} "
              f"of copying; least {min(heavy, key=lambda f: f[2])[1]}", flush=True)


def main(shim, library, seconds):
    layers, begin = Layers(shim, library), time.time()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    check(layers)
    x, y = torch.randn(1 << 30, device="cuda"), torch.empty(1 << 30, device="cuda")
    copy = min(times([graph_of([f] * 2) for f in (lambda: y.copy_(x), lambda: torch.mul(x, 1.0, out=y))], 2, 5))
    print(f"copy: {8 * (1 << 30) / copy / 1e6:.2f} TB/s", flush=True)
    del x, y
    try:
        row_lines(layers)
    except RuntimeError as error:
        print("row lines ended:", error, flush=True)
    sizes = [(768, 768), (2304, 768), (3072, 768), (768, 3072), (4096, 4096), (16384, 4096), (4096, 16384), (8192, 8192)]
    few, many = [], []
    for m in (1, 8, 16, 32, 64):
        for n, k in sizes:
            if time.time() - begin < seconds / 2:
                few.append(line(layers, m, n, k, 7))
    for m in (4096, 1024, 256, 128, 512, 2048, 8192, 65536):
        for n, k in sizes:
            if m * n * k < 65536 * 8192 * 8192 and time.time() - begin < seconds:
                many.append(line(layers, m, n, k, 5))
    for turns, end, m, n, k in (("nt", "bias", 8192, 3072, 768), ("nn", "plain", 8192, 768, 3072), ("nn", "plain", 8192, 4096, 4096),
                                ("tn", "plain", 3072, 768, 8192), ("tn", "plain", 4096, 4096, 8192)):
        if time.time() - begin < seconds:
            many.append(line(layers, m, n, k, 5, turns, end))
    summary(few, many, 8 * (1 << 30) / copy / 1e6)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 60)
