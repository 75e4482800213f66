"""CUDA graphs as torch's users capture them: no stream was warmed up for them, and graphs run beside each other."""
import torch

from common import DEVICE, check, normal
from harness import Attention

KERNELS = ("cuda/hopper", "cuda/decode", "cuda/mma", "cuda/plain", "cuda/entmax", "cuda/mixed", "cuda/phase")


def run_of(kernel, seed):
    """A call with its own inputs, and what it writes."""
    torch.manual_seed(seed)
    tq = 1 if kernel == "cuda/decode" else 300
    q, k, v = normal(2, tq, 8, 64), normal(2, 300, 8, 64), normal(2, 300, 8, 64)
    terms = {"cuda/entmax": {"alpha": torch.full((8,), 1.5, device=DEVICE)}, "cuda/mixed": {"mix_before": torch.randn(8, 8, device=DEVICE)}}.get(kernel, {})
    attention, out = Attention(kernel), torch.empty(2, tq, 8, 64, dtype=q.dtype, device=DEVICE)
    return lambda: attention(q, k, v, out, mask="lengths(300, 200)", **terms), out


def capture(call):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def usual_graphs():
    """Warm-up on one stream, capture on another that torch chooses, larger runs in between, replay."""
    for n, kernel in enumerate(KERNELS):
        call, out = run_of(kernel, n)
        call()
        want = out.clone()
        graph = capture(call)
        large = normal(4, 2048, 16, 64)
        Attention("")(large, large, large, mask="causal")  # makes the stream's own memory grow
        out.fill_(0)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        check(torch.equal(out, want), f"graphs {kernel}", "a replay after an ordinary warm-up differs")


def graphs_beside():
    """Two graphs of one capture stream, replayed on two streams at once, and runs beside them."""
    for kernel in ("cuda/decode", "cuda/mma", "cuda/hopper", "cuda/mixed"):
        runs = [run_of(kernel, n) for n in range(2)]
        want = []
        for call, out in runs:
            call()
            want.append(out.clone())
        torch.cuda.synchronize()
        graphs, streams = [capture(call) for call, _ in runs], [torch.cuda.Stream() for _ in range(2)]
        for _ in range(200):
            for graph, stream in zip(graphs, streams):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        check(all(torch.equal(out, x) for (_, out), x in zip(runs, want)), f"graphs beside {kernel}", "replays on two streams disturb each other")


def many_graphs():
    """Graphs that are gone leave their memory to the next: more than 256 are captured one after another."""
    call, out = run_of("cuda/mma", 3)
    call()
    want, free = out.clone(), []
    for n in range(400):
        graph = capture(call)
        out.fill_(0)
        graph.replay()
        torch.cuda.synchronize()
        if n in (100, 399):
            free.append(torch.cuda.mem_get_info()[0])
        del graph
    check(torch.equal(out, want), "graphs many", "the last of 400 differs")
    check(free[0] - free[1] < 64 << 20, "graphs many", f"300 graphs kept {(free[0] - free[1]) >> 20} MiB")


GRAPH_LAWS = [usual_graphs, graphs_beside, many_graphs]
