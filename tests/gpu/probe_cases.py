"""Probes on the GPU: statistics of rows, top keys and column sums against their definitions in double, and their bits."""
import itertools
import math

import torch

from common import DEVICE, check, guarded, normal
from harness import ROW_PROBES, Attention, open_pairs

RUN = {name: Attention(name) for name in ("cuda/hopper", "cuda/mma", "cuda/probes")}


def row_cases():
    """Statistics of rows against their definitions in double."""
    for kernel, dtype, (tq, tk, d), mask, band in (
            ("cuda/mma", torch.bfloat16, (150, 333, 64), None, (None, None)), ("cuda/mma", torch.float16, (200, 200, 128), "causal", (None, 0)),
            ("cuda/mma", torch.float32, (70, 150, 96), "window(30, 9)", (30, 9)), ("cuda/hopper", torch.bfloat16, (150, 333, 64), None, (None, None)),
            ("cuda/hopper", torch.float16, (200, 200, 128), "causal", (None, 0)), ("cuda/hopper", torch.bfloat16, (300, 700, 96), "window(30, 9)", (30, 9)),
            ("cuda/hopper", torch.bfloat16, (1000, 1000, 128), None, (None, None)), ("cuda/hopper", torch.float16, (900, 1100, 64), "causal", (None, 0))):
        for sinks in (None, torch.randn(4, device=DEVICE)):
            part = f"{kernel} probes {str(dtype)[6:]} {mask} {'sinks' if sinks is not None else ''}"
            q, k, v = normal(2, tq, 4, d, dtype=dtype) * 2, normal(2, tk, 2, d, dtype=dtype), normal(2, tk, 2, d, dtype=dtype)
            probe = {n: torch.full((2, 4, tq), -7, device=DEVICE, dtype=torch.int64 if n == "top_position" else torch.float32) for n in ROW_PROBES}
            given = {} if sinks is None else {"sinks": sinks}
            out = RUN[kernel](q, k, v, mask=mask, probe=probe, **given)
            check(torch.equal(out, RUN[kernel](q, k, v, mask=mask, **given)), part, "probes change the output")
            s = (q.double().transpose(1, 2) @ k.double().transpose(1, 2).repeat_interleave(2, 1).transpose(-1, -2)) / math.sqrt(d)
            s = s.masked_fill(~open_pairs(tq, tk, 0, *band), -math.inf)
            if sinks is not None:
                s = torch.cat([s, sinks.double().view(1, 4, 1, 1).expand(2, 4, tq, 1)], -1)
            w = torch.softmax(s, -1).nan_to_num(0)
            keys = w[..., :tk]
            distance = (torch.arange(tq, device=DEVICE)[:, None] - torch.arange(tk, device=DEVICE)).abs().double()
            truth = {"entropy": -(w * w.clamp(min=1e-300).log()).sum(-1), "top_weight": keys.max(-1).values, "second_moment": keys.square().sum(-1),
                     "mean_distance": (keys * distance).sum(-1), "sink_mass": w[..., tk:].sum(-1)}
            for name, want in truth.items():
                error = ((probe[name].double() - want).abs() / want.abs().clamp(min=1)).max().item()
                check(error < 1e-5, part, f"{name} is off by {error:.1e}")
            at = probe["top_position"]
            chosen = keys.gather(-1, at.clamp(min=0)[..., None])[..., 0]
            check(bool(torch.where(keys.amax(-1) > 0, chosen >= keys.amax(-1) * (1 - 1e-5), at == -1).all()), part, "top_position")


def some_row_cases():
    """Statistics of rows alone and by twos: those named as among all, the others and the output untouched; a score of -inf weighs nothing."""
    empty = lambda tq, names: {n: torch.full((2, 4, tq), -7, device=DEVICE, dtype=torch.int64 if n == "top_position" else torch.float32) for n in names}
    for kernel, dtype, (tq, tk, d), mask in (
            ("cuda/hopper", torch.bfloat16, (450, 1333, 64), None), ("cuda/hopper", torch.float16, (700, 700, 64), "causal"), ("cuda/hopper", torch.float16, (450, 1333, 128), None),
            ("cuda/hopper", torch.bfloat16, (700, 700, 128), "causal"), ("cuda/hopper", torch.bfloat16, (300, 700, 96), "window(30, 9)"), ("cuda/hopper", torch.float16, (300, 700, 96), None),
            ("cuda/mma", torch.bfloat16, (150, 333, 64), "causal"), ("cuda/mma", torch.float32, (70, 150, 96), None)):
        for sinks in (None, torch.randn(4, device=DEVICE)):
            part = f"{kernel} some probes {str(dtype)[6:]} d{d} {mask} {'sinks' if sinks is not None else ''}"
            q, k, v = normal(2, tq, 4, d, dtype=dtype) * 2, normal(2, tk, 2, d, dtype=dtype), normal(2, tk, 2, d, dtype=dtype)
            k *= torch.linspace(4, 0, tk, device=DEVICE).view(1, -1, 1, 1)  # keys to the left are heavier, and references grow
            given = {"mask": mask} if sinks is None else {"mask": mask, "sinks": sinks}
            whole = empty(tq, ROW_PROBES)
            out = RUN[kernel](q, k, v, probe=whole, **given)
            open_ = open_pairs(tq, tk, 0, *{None: (None, None), "causal": (None, 0), "window(30, 9)": (30, 9)}[mask])
            s = ((q.double().transpose(1, 2) @ k.double().transpose(1, 2).repeat_interleave(2, 1).transpose(-1, -2)) / math.sqrt(d)).masked_fill(~open_, -math.inf)
            s = s if sinks is None else torch.cat([s, sinks.double().view(1, 4, 1, 1).expand(2, 4, tq, 1)], -1)
            w = torch.softmax(s, -1).nan_to_num(0)
            truth = {"entropy": -(w * w.clamp(min=1e-300).log()).sum(-1), "top_weight": w[..., :tk].max(-1).values, "sink_mass": w[..., tk:].sum(-1)}
            for names in [(n,) for n in ROW_PROBES] + list(itertools.combinations(ROW_PROBES, 2)) + [("entropy", "top_weight", "sink_mass")]:
                some = empty(tq, names)
                check(torch.equal(RUN[kernel](q, k, v, probe=some, **given), out), f"{part} {names}", "probes change the output")
                for n in names:
                    want = truth.get(n, whole[n].double())
                    error = ((some[n].double() - want).abs() / want.abs().clamp(min=1)).max().item()
                    check(error < 2e-5, f"{part} {names}", f"{n} is off by {error:.1e}")
    # With terms of scores, which an instance of their own has: what is named alone is what it is among all.
    for d, given in itertools.product((64, 96, 128), ({"softcap": 20.0}, {"slopes": torch.tensor([0.5, 0.25, 0.1, 0.0], device=DEVICE)})):
        q, k, v = normal(2, 300, 4, d) * 2, normal(2, 700, 2, d), normal(2, 700, 2, d)
        whole = empty(300, ROW_PROBES)
        RUN["cuda/hopper"](q, k, v, probe=whole, **given)
        for names in (("entropy",), ("top_weight",), ("entropy", "top_weight", "sink_mass")):
            some = empty(300, names)
            RUN["cuda/hopper"](q, k, v, probe=some, **given)
            check(all(torch.equal(some[n], whole[n]) for n in names), f"cuda/hopper some probes d{d} {next(iter(given))} {names}", "other numbers than among all")
    # A score of -inf that no mask made.
    for d in (64, 96, 128):
        q, k, v = normal(1, 300, 2, d).abs().clamp(min=0.01), normal(1, 900, 2, d), normal(1, 900, 2, d)  # 0 times inf is no score
        k[:, 333] = -math.inf
        without = torch.cat([k[:, :333], k[:, 334:]], 1)
        s = (q.double().transpose(1, 2) @ without.double().transpose(1, 2).transpose(-1, -2)) / math.sqrt(d)
        w = torch.softmax(s, -1)
        for names in (("entropy",), ("entropy", "second_moment")):
            probe = {n: torch.full((1, 2, 300), -7, device=DEVICE, dtype=torch.float32) for n in names}
            RUN["cuda/hopper"](q, k, v, probe=probe)
            error = (probe["entropy"].double() + (w * w.clamp(min=1e-300).log()).sum(-1)).abs().max().item()
            check(error < 1e-4, f"cuda/hopper probes d{d} of a score of -inf {names}", f"entropy is off by {error:.1e}")


def look(q, k, v, top_k, columns=True, out=None, lse=None, **more):
    """out, top_keys, top_weights and column_sums of one run, and whether all stayed inside of their tensors."""
    b, tq, h, _ = q.shape
    keys_band = torch.full((b * h * tq * max(top_k, 1) + 64,), -7, device=DEVICE, dtype=torch.int64)
    keys = keys_band[32:-32].view(b, h, tq, max(top_k, 1))
    weights, weights_ok = guarded(b, h, tq, max(top_k, 1), dtype=torch.float32)
    sums, sums_ok = guarded(b, h, k.shape[1], dtype=torch.float32)
    probe = {**({"top_keys": keys, "top_weights": weights} if top_k else {}), **({"column_sums": sums} if columns else {})}
    out = RUN["cuda/probes"](q, k, v, out, lse, probe=probe, **more)
    return out, keys, weights, sums, weights_ok() and sums_ok() and bool((keys_band[:32] == -7).all()) and bool((keys_band[-32:] == -7).all())


def true_weights(q, k, open_, q_start=0, scale=None, softcap=0.0, slopes=None, sinks=None, bias=None):
    """[batch heads q kv] in double, sinks counted and left out."""
    q, k = q.double().transpose(1, 2), k.double().transpose(1, 2).repeat_interleave(q.shape[2] // k.shape[2], 1)
    s = (q @ k.transpose(-1, -2)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    s = softcap * torch.tanh(s / softcap) if softcap else s
    s = s if bias is None else s + bias.double()
    if slopes is not None:
        far = (torch.arange(q.shape[2], device=DEVICE)[:, None] + q_start - torch.arange(k.shape[2], device=DEVICE)).abs()
        s = s - slopes.double().view(1, -1, 1, 1) * far
    s = s.masked_fill(~open_, -math.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.double().view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
    return torch.softmax(s, -1).nan_to_num(0)[..., :k.shape[2]]


def judge(part, w, open_, top_k, keys, weights, sums):
    """The weights found are those of the keys named, and no heavier key was left out."""
    error = ((sums.double() - w.sum(-2)).abs() / w.sum(-2).clamp(min=1)).max().item()
    check(error < 1e-5, part, f"column sums are off by {error:.1e}")
    count = open_.expand_as(w).sum(-1).clamp(max=top_k)
    there = torch.arange(top_k, device=DEVICE) < count[..., None]
    check(bool(((keys >= 0) == there).all()) and bool((weights[~there] == 0).all()), part, "keys where none are open, or none where some are")
    named = w.gather(-1, keys.clamp(min=0)).where(there, torch.zeros((), dtype=torch.float64, device=DEVICE))
    best = torch.cat([w, torch.zeros(*w.shape[:3], top_k, device=DEVICE, dtype=w.dtype)], -1).topk(top_k, -1).values
    error = max((weights.double() - named).abs().max().item(), (named - best).abs().max().item())
    check(error < 1e-5, part, f"top weights are off by {error:.1e}")
    apart = torch.where(there, keys, -1 - torch.arange(top_k, device=DEVICE)).sort(-1).values
    check(top_k == 1 or bool((apart[..., 1:] != apart[..., :-1]).all()), part, "a key is named twice")


def look_cases():
    k_at = lambda tk: torch.arange(tk, device=DEVICE)
    masks = {"causal | prefix(20)": lambda tq, tk, start: open_pairs(tq, tk, start, None, 0) | (k_at(tk) < 20),
             "window(30, 9)": lambda tq, tk, start: open_pairs(tq, tk, start, 30, 9),
             "causal": lambda tq, tk, start: open_pairs(tq, tk, start, None, 0),
             "prefix(77)": lambda tq, tk, start: (k_at(tk) < 77).expand(tq, tk),
             None: lambda tq, tk, start: torch.ones(tq, tk, dtype=torch.bool, device=DEVICE)}
    n = 0
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for d, dv in ((64, 64), (128, 128), (80, 48), (300, 20), (256, 256)):
            for tq, tk in ((150, 333), (1, 700), (65, 64), (300, 31), (129, 1000)):
                mask, top_k = list(masks)[n % len(masks)], (8, 1, 64, 5)[n % 4]
                top_k = min(top_k, 16) if dtype == torch.float32 and d > 128 else top_k
                start, n = (tk - tq if n % 2 else 0), n + 1
                part = f"cuda/probes {str(dtype)[6:]} {tq}x{tk} d{d} top {top_k} {mask} start {start}"
                layout = ("bshd", "bhsd", "packed")[n % 3]
                q, k, v = normal(2, tq, 4, d, dtype=dtype, layout=layout), normal(2, tk, 2, d, dtype=dtype, layout=layout), normal(2, tk, 2, dv, dtype=dtype)
                out, *found, kept = look(q, k, v, top_k, mask=mask, q_start=torch.tensor([start]))
                open_ = masks[mask](tq, tk, start)
                judge(part, true_weights(q, k, open_, start), open_, top_k, *found)
                check(kept, part, "wrote outside of its output")
                check(torch.equal(out, Attention("")(q, k, v, mask=mask, q_start=torch.tensor([start]))), part, "probes change the output")
    h = 4
    for dtype in (torch.bfloat16, torch.float32):
        for extra in ({}, {"dropout": 0.4, "seed": 9}):
            terms = dict(softcap=5.0, slopes=torch.rand(h, device=DEVICE), sinks=torch.randn(h, device=DEVICE), bias=torch.randn(2, h, 90, 200, device=DEVICE))
            q, k, v = normal(2, 90, h, 64, dtype=dtype), normal(2, 200, 2, 64, dtype=dtype), normal(2, 200, 2, 64, dtype=dtype)
            _, *found, _ = look(q, k, v, 12, mask="causal", q_start=torch.tensor([50]), gate=torch.rand(2, 90, h, device=DEVICE), **terms, **extra)
            open_ = open_pairs(90, 200, 50, None, 0)
            judge(f"cuda/probes terms {str(dtype)[6:]} {list(extra)}", true_weights(q, k, open_, 50, **terms), open_, 12, *found)
        _, *found, _ = look(q, k, v, 12, scale=torch.tensor([-0.3], dtype=torch.float64))
        open_ = torch.ones(90, 200, dtype=torch.bool, device=DEVICE)
        judge(f"cuda/probes negative scale {str(dtype)[6:]}", true_weights(q, k, open_, scale=-0.3), open_, 12, *found)
    # Equal scores: the lowest keys, whichever thread saw them; also where the mask closes some.
    q, k = normal(1, 100, 2, 64), normal(1, 1, 2, 64).expand(1, 300, 2, 64).contiguous()
    for mask, first in ((None, 0), ("window(9, 0)", None)):
        _, keys, weights, _, _ = look(q, k, k, 7, mask=mask)
        lowest = torch.zeros(100, 1, dtype=torch.int64, device=DEVICE) if first == 0 else (torch.arange(100, device=DEVICE) - 9).clamp(min=0)[:, None]
        want = lowest + torch.arange(7, device=DEVICE)
        want = want if first == 0 else torch.where(want <= torch.arange(100, device=DEVICE)[:, None], want, -1)
        check(bool((keys == want).all()), "cuda/probes ties", f"{mask}: not the lowest keys")
    # Statistics of rows beside them, and each of the two alone.
    q, k, v = normal(2, 200, 4, 128), normal(2, 300, 4, 128), normal(2, 300, 4, 128)
    rows = {n: torch.empty(2, 4, 200, device=DEVICE, dtype=torch.int64 if n == "top_position" else torch.float32) for n in ROW_PROBES}
    both = {"top_keys": torch.empty(2, 4, 200, 1, dtype=torch.int64, device=DEVICE), "top_weights": torch.empty(2, 4, 200, 1, device=DEVICE)}
    RUN["cuda/probes"](q, k, v, probe={**rows, **both})
    error = (rows["top_weight"] - both["top_weights"][..., 0]).abs().max().item()
    check(error < 1e-5, "cuda/probes with rows", f"top weights differ by {error:.1e}")
    whole = look(q, k, v, 8)
    check(torch.equal(look(q, k, v, 8, columns=False)[1], whole[1]) and torch.equal(look(q, k, v, 0)[3], whole[3]), "cuda/probes", "one alone differs from both")
    for probe, sentence in (({"top_keys": torch.empty(2, 4, 200, 65, dtype=torch.int64, device=DEVICE), "top_weights": torch.empty(2, 4, 200, 65, device=DEVICE)},
                             "cuda/probes: top_k 65; it takes up to 64"), (None, "cuda/probes: no top keys or column sums are asked for")):
        lines = RUN["cuda/probes"].choice(q, k, v, torch.empty_like(q), probe=probe)
        check(sentence in lines, "refusals", lines)


def look_laws():
    """Equal bits over repeats, batch, streams' graphs, and in a ragged batch."""
    for dtype, d in ((torch.bfloat16, 128), (torch.float16, 64), (torch.float32, 80)):
        q, k, v = normal(4, 500, 4, d, dtype=dtype), normal(4, 900, 2, d, dtype=dtype), normal(4, 900, 2, d, dtype=dtype)
        for mask in (None, "causal"):
            part, start = f"bits probes {str(dtype)[6:]} d{d} {mask}", torch.tensor([400])
            whole = look(q, k, v, 8, mask=mask, q_start=start)[:4]
            same = lambda x, y: all(torch.equal(a, b) for a, b in zip(x, y))
            check(all(same(look(q, k, v, 8, mask=mask, q_start=start)[:4], whole) for _ in range(20)), part, "a repeat differs")
            alone = look(q[2:3], k[2:3], v[2:3], 8, mask=mask, q_start=start)[:4]
            check(same(alone, [x[2:3] for x in whole]), part, "alone differs from in a batch")
            chunk = look(q[:, 100:300], k, v, 8, mask=mask, q_start=torch.tensor([500]))
            check(torch.equal(chunk[1], whole[1][:, :, 100:300]) and torch.equal(chunk[2], whole[2][:, :, 100:300]), part, "a chunk of queries differs")
        lengths = [(70, 70), (300, 333), (40, 200), (90, 64)]  # each too long for cuda/decode, whose lse has other bits
        offsets = [torch.tensor([sum(x[i] for x in lengths[:n]) for n in range(len(lengths) + 1)]) for i in (0, 1)]
        q, k, v = normal(1, 500, 4, d, dtype=dtype), normal(1, 667, 2, d, dtype=dtype), normal(1, 667, 2, d, dtype=dtype)
        _, keys, weights, sums, kept = look(q, k, v, 8, mask="causal", q_start=torch.tensor([-(2 ** 63)]), q_offsets=offsets[0], kv_offsets=offsets[1])
        for n, (a, b) in enumerate(lengths):
            rows, columns = slice(int(offsets[0][n]), int(offsets[0][n + 1])), slice(int(offsets[1][n]), int(offsets[1][n + 1]))
            alone = look(q[:, rows], k[:, columns], v[:, columns], 8, mask="causal", q_start=torch.tensor([b - a]))
            check(kept and torch.equal(alone[1], keys[:, :, rows]) and torch.equal(alone[2], weights[:, :, rows]) and torch.equal(alone[3], sums[:, :, columns]),
                  f"bits probes ragged {a}x{b}", "differs from the sequence alone")
    q, k, v = normal(2, 300, 4, 128), normal(2, 300, 4, 128), normal(2, 300, 4, 128)
    probe = {"top_keys": torch.empty(2, 4, 300, 4, dtype=torch.int64, device=DEVICE), "top_weights": torch.empty(2, 4, 300, 4, device=DEVICE),
             "column_sums": torch.empty(2, 4, 300, device=DEVICE)}
    out, stream, graph = torch.empty_like(q), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        RUN["cuda/probes"](q, k, v, out, probe=probe)
        torch.cuda.synchronize()
        want = {n: t.clone() for n, t in probe.items()}
        with torch.cuda.graph(graph, stream=stream):
            RUN["cuda/probes"](q, k, v, out, probe=probe)
        for t in probe.values():
            t.fill_(0)
        graph.replay()
    torch.cuda.synchronize()
    check(all(torch.equal(t, want[n]) for n, t in probe.items()), "graphs", "a replay of cuda/probes differs")
