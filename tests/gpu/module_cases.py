"""hw.torch on CUDA tensors: forward, gradients, autocast, streams, graphs and refusals, through the Python module.

Skipped with one line where this build has no module (HEADWISE_BUILD/python)."""
import math
import sys

import torch
import torch.nn.functional as F

from common import DEVICE, check, normal
from harness import BUILD, GUARD, formula, gradient_formula, open_pairs, relative

sys.path.insert(0, str(BUILD / "python"))
try:
    import headwise as hw
    import headwise.torch  # noqa: F401  (hw.torch)
except ImportError as fault:
    hw, WHY = None, fault


def layer_cases():
    """hw.torch.MultiHead and hw.torch.Block there against the CPU's, forward and gradients."""
    for heads in ("mha:heads=4", "gqa:heads=4,kv_heads=2,dim=32", "talking:heads=4"):
        for dtype in (torch.float32, torch.bfloat16):
            part = f"hw.torch.Block {heads} {str(dtype)[6:]}"
            torch.manual_seed(1)
            here = hw.torch.Block(heads, 128, 256, feed="swiglu", norm="rms", rope=True)
            there = hw.torch.Block(heads, 128, 256, feed="swiglu", norm="rms", rope=True)
            there.load_state_dict(here.state_dict())
            there.to(DEVICE, dtype)
            x, dy = torch.randn(2, 65, 128), torch.randn(2, 65, 128)
            a, b = x.clone().requires_grad_(), x.to(DEVICE, dtype).requires_grad_()
            want, got = here(a, mask=hw.Mask.causal()), there(b, mask=hw.Mask.causal())
            want.backward(dy), got.backward(dy.to(DEVICE, dtype))
            limit = 2e-2 if dtype == torch.bfloat16 else 2e-3
            check(relative(got.detach().cpu().double(), want.detach().double()) < limit, part, "forward")
            check(relative(b.grad.cpu().double(), a.grad.double()) < limit, part, "gradient of x")
            for name, p in there.named_parameters():
                error = relative(p.grad.cpu().double(), here.get_parameter(name).grad.double())
                check(error < 2 * limit, part, f"gradient of {name}: {error:.1e}")


def module_cases():
    if hw is None:
        return print(f"hw.torch on CUDA tensors: skipped: {WHY}", flush=True)
    layer_cases()
    causal = hw.Mask.causal()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        part = f"hw.torch {str(dtype)[6:]}"
        q, k, v, dout = (normal(2, t, h, 64, dtype=dtype) for t, h in ((200, 4), (300, 2), (300, 2), (200, 4)))
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = hw.torch.attention(*leaves, causal, q_start=100)
        open_ = open_pairs(200, 300, 100, None, 0)
        truth, _ = formula(q, k, v, open_)
        check(out.is_cuda and relative(out.detach().double(), truth) < GUARD[dtype], part, f"forward {relative(out.detach().double(), truth):.1e}")
        out.backward(dout)
        *want, _ = gradient_formula(q, k, v, dout, open_)
        *yard, _ = gradient_formula(q, k, v, dout, open_, dtype=dtype)
        for name, x, w, y in zip("qkv", leaves, want, yard):
            error, limit = relative(x.grad.double(), w), max(GUARD[dtype], relative(y.double(), w))
            check(error <= limit, part, f"gradient of {name}: {error:.1e}, allowed {limit:.1e}")
    q, k, v = (normal(2, 256, 8, 128).transpose(1, 2).contiguous() for _ in range(3))
    ours, theirs = [x.clone().requires_grad_() for x in (q, k, v)], [x.clone().requires_grad_() for x in (q, k, v)]
    hw.torch.scaled_dot_product_attention(*ours, is_causal=True).sum().backward()  # a gradient spread by steps of 0
    F.scaled_dot_product_attention(*theirs, is_causal=True).sum().backward()
    for name, x, y in zip("qkv", ours, theirs):
        check(relative(x.grad.float(), y.grad.float()) < 1.2e-2, "hw.torch sdpa", f"gradient of {name} differs from torch's")
    open_ = torch.rand(2, 1, 256, 256, device=DEVICE) < 0.7
    got, want = hw.torch.scaled_dot_product_attention(q, k, v, open_), F.scaled_dot_product_attention(q, k, v, open_)
    check(relative(got.float(), want.float()) < 8e-3, "hw.torch sdpa", "a mask of bits")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        check(hw.torch.attention(*(x.float() for x in (q, k, v)), layout="bhsd").dtype == torch.bfloat16, "hw.torch autocast", "is not seen")
    sinks = torch.randn(8, device=DEVICE, requires_grad=True)
    hw.torch.attention(q, k, v, layout="bhsd", sinks=sinks, alibi=True).sum().backward()
    check(bool(torch.isfinite(sinks.grad).all()), "hw.torch sinks", "no gradient of sinks")
    result = hw.attention(q, k, v, layout="bhsd", return_lse=True, probe=hw.Probe(rows=True))
    check(result.lse.is_cuda and result.probe.entropy.is_cuda, "hw.torch probes", "statistics of rows lie elsewhere")
    seen = hw.attention(q, k, v, layout="bhsd", probe=hw.Probe(rows=True, top_k=3, columns=True)).probe
    check(relative(seen.top_weights[..., 0], result.probe.top_weight) < 1e-5, "hw.torch probes", "top keys")
    check(relative(seen.column_sums.sum(-1), torch.full((2, 8), 256.0, device=DEVICE)) < 1e-5, "hw.torch probes", "column sums")
    try:
        hw.attention(q, k, v, layout="bhsd", probe=hw.Probe(picks=[(0, 0, 0)]))
        check(False, "hw.torch probes", "picked rows ran")
    except Exception as fault:
        check("picked rows" in str(fault), "hw.torch probes", str(fault))


def module_runs():
    if hw is None:
        return
    q, k, v = (normal(2, 512, 8, 128) for _ in range(3))
    want = hw.attention(q, k, v, hw.Mask.causal())
    torch.cuda.synchronize()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        hw.torch.attention(*leaves, hw.Mask.causal()).sum().backward()
        torch.cuda.synchronize()
        first = [x.grad.clone() for x in leaves]
        for x in leaves:
            x.grad = None
        with torch.cuda.graph(graph, stream=stream):
            out = hw.torch.attention(*leaves, hw.Mask.causal())
            out.sum().backward()
        graph.replay()
    torch.cuda.synchronize()
    check(torch.equal(out, want) and all(torch.equal(x.grad, y) for x, y in zip(leaves, first)), "hw.torch graphs", "a replay differs")
    compiled = torch.compile(lambda *x: hw.torch.attention(*x, hw.Mask.causal()) * 2)
    check(torch.equal(compiled(q, k, v), want * 2), "hw.torch compile", "a compiled graph differs")
    words = hw.explain(q, k, v)
    check("cuda/hopper  chosen" in words, "hw.torch explain", words)
    for call, sentence in ((lambda: hw.attention(q, k.cpu(), v), "bring them together"), (lambda: hw.attention(q, k, v, bias=torch.zeros(512, 512)), "bring them together"),
                           (lambda: hw.attention(q, k, v, scale=torch.ones(8, device=DEVICE)), "move it there first"),
                           (lambda: hw.rms_norm(q), "move it there first")):
        try:
            call()
            check(False, "hw.torch refusals", f"nobody said: {sentence}")
        except Exception as fault:
            check(sentence in str(fault), "hw.torch refusals", str(fault))
    check(math.isfinite(want.float().sum().item()), "hw.torch", "not finite")


def module_heads():
    """hw.torch.attention(head=...) and its gradients: a head's coefficients lie on the device, row lists on the CPU."""
    if hw is None:
        return
    from head_cases import formula as head_formula
    q, k, v, dout = (normal(2, 70, 4, 64, dtype=torch.float32) for _ in range(4))
    mix = {n: torch.eye(4, device=DEVICE) + 0.3 * torch.randn(4, 4, device=DEVICE) for n in ("mix_before", "mix_after")}
    for head, given in ((hw.Talking(heads=4), mix), (hw.Entmax(heads=4), {"alpha": torch.tensor([1.5, 2.0, 1.3, 1.7], device=DEVICE)})):
        part = f"hw.torch {head.name}"
        leaves = {n: x.clone().requires_grad_() for n, x in dict(q=q, k=k, v=v, **given).items()}
        out = hw.torch.attention(leaves["q"], leaves["k"], leaves["v"], hw.Mask.causal(), head=head, coefficients={n: leaves[n] for n in given})
        out.backward(dout)
        truths = {n: x.detach().double().requires_grad_() for n, x in leaves.items()}
        truth, _ = head_formula(truths, open_pairs(70, 70, 0, None, 0, device=DEVICE), torch.float64)
        truth.backward(dout.double())
        check(relative(out.detach().double(), truth.detach()) < 2e-6, part, "forward")
        for n, x in leaves.items():
            check(relative(x.grad.double(), truths[n].grad) < 1e-5, part, f"gradient of {n}: {relative(x.grad.double(), truths[n].grad):.1e}")
    offsets = torch.arange(9) * 35
    index = torch.arange(0, 70, 2).repeat(8)
    got, whole = hw.attention(q, k, v, coefficients={"rows": (offsets, index)}), hw.attention(q, k, v)
    check(bool((got[:, 1::2] == 0).all()) and relative(got[:, ::2], whole[:, ::2]) < 1e-6, "hw.torch rows", "listed rows")


MODULE = [module_cases, module_runs, module_heads]
