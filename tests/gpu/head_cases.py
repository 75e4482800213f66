"""Mixed heads, entmax and listed rows on a GPU, both directions: against double, poisoned outputs in guard bands, laws of bits."""
import math

import torch

from backward_cases import error_of
from common import DEVICE, TALLY, check, guarded, normal
from harness import GUARD, Attention, Failed, open_pairs

RUN = Attention("")
END = -(2 ** 63)


def entmax(s, alpha, sink):
    """Weights of logits [b h q k] by bisection, differentiable in s, alpha and sink by one Newton step at the root."""
    if sink is not None:
        s = torch.cat([s, sink[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    a = alpha[None, :, None, None]
    none = torch.isneginf(s).all(-1, keepdim=True)
    s = s.masked_fill(none, 0.0)
    power = 1 / (a - 1)
    shut = torch.isneginf(s)
    z = ((a - 1) * s.masked_fill(shut, 0.0)).masked_fill(shut, -math.inf)
    with torch.no_grad():
        high, low = z.amax(-1, keepdim=True), z.amax(-1, keepdim=True) - 1
        for _ in range(80):
            tau = (high + low) / 2
            over = (z - tau).clamp(min=0).pow(power).sum(-1, keepdim=True) >= 1
            low, high = torch.where(over, tau, low), torch.where(over, high, tau)
        inside = z > tau
    d = torch.where(inside, z - tau, 1.0)
    slope = torch.where(inside, power * d.pow(power - 1), 0.0).sum(-1, keepdim=True).detach()
    tau = tau + (torch.where(inside, d.pow(power), 0.0).sum(-1, keepdim=True) - 1) / slope
    w = torch.where(inside & ~none, torch.where(inside, z - tau, 1.0).pow(power), 0.0)
    return w, torch.where(none, -math.inf, tau)[..., 0].detach()


def mixed(x, given, row0, rank, of_q, of_k):
    """y_h = sum_m M[m h] x_m of every pair; x [b m q k]."""
    if of_q is None and of_k is None:
        return torch.einsum("bmij,mh->bhij", x, given)
    y = x if given is None else x + torch.einsum("bmij,mh->bhij", x, given)
    for of, axis in ((of_q, "i"), (of_k, "j")):
        if of is None:
            continue
        w1, w2, gate = of[:, :, row0:row0 + rank], of[:, :, row0 + rank:row0 + 2 * rank], of[:, :, row0 + 2 * rank]
        inner = torch.einsum(f"bmij,b{axis}rm->brij", x, w1)
        gates = gate.permute(0, 2, 1)
        y = y + torch.einsum(f"brij,b{axis}rh->bhij", inner, w2) + x * (gates[..., None] if axis == "i" else gates[:, :, None])
    return y


def formula(t, open_, dtype, softcap=0.0, q_start=0):
    """out and lse of the tensors in t, step by step in `dtype`."""
    t = {n: x.to(dtype) for n, x in t.items()}
    q, k, v = (t[n].transpose(1, 2) for n in "qkv")
    k, v = k.repeat_interleave(q.shape[1] // k.shape[1], 1), v
    s = q @ k.transpose(-1, -2) * (t["scale"].to(DEVICE)[None, :, None, None] if "scale" in t else 1 / math.sqrt(q.shape[-1]))
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    of_q, of_k = t.get("mix_q"), t.get("mix_k")
    dynamic = of_q is not None or of_k is not None
    rank = ((of_q if of_q is not None else of_k).shape[2] // 2 - 1) // 2 if dynamic else 0
    if dynamic or "mix_before" in t:
        s = mixed(s, t.get("mix_before"), 0, rank, of_q, of_k)
    if "bias" in t:
        s = s + t["bias"]
    if "slopes" in t:
        far = (torch.arange(q.shape[2], device=DEVICE)[:, None] + q_start - torch.arange(k.shape[2], device=DEVICE)[None]).abs()
        s = s - t["slopes"][None, :, None, None] * far.to(dtype)
    s = s.masked_fill(~open_, -math.inf)
    if "alpha" in t:
        w, lse = entmax(s, t["alpha"], t.get("sinks"))
        w = w[..., :k.shape[2]]
    else:
        if "sinks" in t:
            s = torch.cat([s, t["sinks"][None, :, None, None].expand(*s.shape[:3], 1)], -1)
        lse = torch.logsumexp(s, -1).detach()
        dead = torch.isneginf(s).all(-1, keepdim=True)
        w = torch.softmax(s.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0)[..., :k.shape[2]]
    if dynamic or "mix_after" in t:
        w = mixed(w, t.get("mix_after"), 2 * rank + 1, rank, of_q, of_k)
    out = (w @ v.repeat_interleave(w.shape[1] // v.shape[1], 1)).transpose(1, 2)
    if "gate" in t:
        out = out * t["gate"][..., None]
    return out, lse


def judged(part, name, dtype, got, truth, yard, slack=1.0):
    if not bool(torch.isfinite(got).all()):
        return check(False, part, f"{name} is not finite")
    error, limit = error_of(got, truth), slack * max(GUARD[dtype], error_of(yard, truth))
    worst = TALLY["worst"].setdefault(part.split()[0] + " " + str(dtype)[6:], {})
    worst[name] = max(worst.get(name, 0.0), error)
    check(error <= limit, part, f"{name}: relative error {error:.2e}, allowed {limit:.2e}")


def case(kind, dtype, b, h, kv, tq, tk, d, dv=None, mask=None, band=None, q_start=0, hv=None, softcap=0.0, layout="bshd", wants=(), grow=1.0, cold=False, **terms):
    """One run and its gradients; terms: tensors by the names of the C interface; grow: of the first head's queries; cold: gradients find nothing in
    the second cache."""
    hv = hv or h
    part = f"cuda/{kind} {str(dtype)[6:]} {b}x{h}/{kv}/{hv} {tq}x{tk} d{d}/{dv or d} {mask or 'all'} start {q_start} {layout} " + " ".join(terms)
    t = {"q": normal(b, tq, h, d, dtype=dtype, layout=layout), "k": normal(b, tk, kv, d, dtype=dtype, layout=layout),
         "v": normal(b, tk, kv if hv == h else hv, dv or d, dtype=dtype, layout=layout), **terms}
    t["q"][:, :, 0] *= grow
    normal_heads = terms["mix_before"].shape[1] if "mix_before" in terms else h
    dout = normal(b, tq, hv, dv or d, dtype=dtype)
    out, out_ok = guarded(b, tq, hv, dv or d, dtype=dtype)
    lse, lse_ok = guarded(b, normal_heads, tq, dtype=torch.float32)
    given = dict(terms, mask=mask, softcap=softcap)
    if q_start:
        given["q_start"] = torch.tensor([q_start])
    names = ["q", "k", "v", *wants]
    bands = {n: guarded(*t[n].shape, dtype=t[n].dtype) for n in names}
    try:
        RUN(t["q"], t["k"], t["v"], out, lse, **given)
        if cold:
            torch.zeros(256 << 20, dtype=torch.int8, device=DEVICE)
        RUN.backward(t["q"], t["k"], t["v"], out, lse, dout, {"d" + n: x for n, (x, _) in bands.items()}, **given)
        torch.cuda.synchronize()
    except Failed as fault:
        return check(False, part, str(fault))
    open_ = open_pairs(tq, tk, q_start, *(band or (None, None)))
    leaves = {n: x.double().requires_grad_() for n, x in t.items()}
    truth, truth_lse = formula(leaves, open_, torch.float64, softcap, q_start)
    truth.backward(dout.double())
    yards = {n: x.detach().clone().requires_grad_() for n, x in t.items()}
    wide = torch.float32 if "alpha" in t else dtype  # the recipe's bisection needs more than 8 bits
    yard, _ = formula(yards, open_, wide, softcap, q_start)
    yard = yard.to(dtype)
    yard.backward(dout)
    judged(part, "out", dtype, out, truth.detach(), yard.detach())
    finite = torch.isfinite(truth_lse)
    lse_error = ((lse.double() - truth_lse).abs() / truth_lse.abs().clamp(min=1))[finite].max().item() if finite.any() else 0.0
    check(lse_error <= 2e-6 and bool((lse[~finite] == -math.inf).all()), part, f"lse error {lse_error:.2e}")
    for n in names:
        judged(part, "d" + n, dtype, bands[n][0], leaves[n].grad, yards[n].grad, 2.0)
    check(out_ok() and lse_ok() and all(ok() for _, ok in bands.values()), part, "wrote outside of its output")


def rand(*size, scale=1.0, dtype=torch.float32):
    return (torch.randn(*size, device=DEVICE) * scale).to(dtype)


def near_one(m, h):
    return torch.eye(m, h, device=DEVICE) + rand(m, h, scale=0.3)


MASKS = ((None, None), ("causal", (None, 0)), ("window(40, 9)", (40, 9)))


def talking_cases():
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for n, (b, h, kv, tq, tk, d) in enumerate([(1, 1, 1, 1, 1, 8), (2, 4, 4, 65, 130, 64), (1, 16, 4, 200, 333, 64), (2, 12, 12, 100, 77, 40)]):
            mask, band = MASKS[n % 3]
            case("mixed", dtype, b, h, kv, tq, tk, d, mask=mask, band=band, q_start=tk - tq, mix_before=near_one(h, h), mix_after=near_one(h, h),
                 wants=("mix_before", "mix_after"), layout=("bshd", "bhsd", "packed")[n % 3])
    case("mixed", torch.bfloat16, 1, 4, 4, 90, 150, 64, hv=3, mix_before=near_one(4, 6), mix_after=near_one(6, 3), wants=("mix_before", "mix_after"))
    # Products of sixteen heads: parts of 1024 keys, widths of 16, heads that share keys, gaps between mixes, sinks, scores past 2^15.
    case("mixed", torch.bfloat16, 1, 16, 2, 90, 2100, 64, mask="window(900, 40)", band=(900, 40), q_start=1500, mix_before=near_one(16, 16),
         mix_after=near_one(16, 16), sinks=rand(16), wants=("mix_before", "mix_after", "sinks"))
    case("mixed", torch.float16, 3, 16, 16, 33, 257, 48, dv=16, mix_before=near_one(16, 16), mix_after=near_one(16, 16), wants=("mix_before", "mix_after"))
    case("mixed", torch.bfloat16, 2, 5, 5, 64, 300, 16, dv=64, hv=7, mix_before=near_one(5, 15), mix_after=near_one(15, 7), mask="causal", band=(None, 0),
         q_start=236, wants=("mix_before", "mix_after"))
    # Gradients past 8,192 keys: a block of the eight that share a query takes two parts of it.
    for dtype in (torch.bfloat16, torch.float16):
        case("mixed", dtype, 1, 3, 3, 20, 9300, 16, mix_before=near_one(3, 3), mix_after=near_one(3, 3), mask="window(9000, 40)", band=(9000, 40), q_start=9270,
             wants=("mix_before", "mix_after"))
    tame = near_one(8, 8)
    tame[0] *= 1e-5
    case("mixed", torch.bfloat16, 1, 8, 8, 64, 300, 64, mix_before=tame, mix_after=near_one(8, 8), grow=6e4, wants=("mix_before", "mix_after"))
    case("mixed", torch.bfloat16, 1, 8, 8, 64, 300, 64, mix_before=near_one(8, 8) * 1e5, mix_after=near_one(8, 8), grow=1.0,
         scale=torch.full((8,), 1e-6, dtype=torch.float64), wants=("mix_before",))
    # More than eight heads in bf16: scores past f16, a gate, queries before every key, values of 16 columns.
    tame = near_one(16, 16)
    tame[0] *= 1e-5
    case("mixed", torch.bfloat16, 1, 16, 16, 64, 300, 64, mix_before=tame, mix_after=near_one(16, 16), grow=6e4, wants=("mix_before", "mix_after"))
    case("mixed", torch.bfloat16, 2, 16, 16, 70, 90, 64, mix_before=near_one(16, 16), mix_after=near_one(16, 16), gate=rand(2, 70, 16), mask="causal", band=(None, 0),
         q_start=-30, wants=("mix_before", "mix_after"))
    # Logits past 2^120 and below 2^-100 for some queries of a part; parts that no query or few of them see.
    case("mixed", torch.bfloat16, 1, 16, 16, 150, 1200, 64, mix_before=near_one(16, 16) * 30, mix_after=near_one(16, 16), mask="window(700, 0)", band=(700, 0),
         q_start=600)
    # Few queries a block: what is known of one has to be there before it is mixed, however far it came.
    for h, d, dv in 4 * ((11, 32, 16), (16, 64, 64), (8, 64, 64)):
        case("mixed", torch.bfloat16, 2, h, h, 130, 700, d, dv=dv, mix_before=near_one(h, h), sinks=rand(h), wants=("mix_before", "sinks"), cold=True)
    case("mixed", torch.float32, 1, 20, 20, 70, 90, 32, dv=48, mix_before=near_one(20, 20), wants=("mix_before",))
    case("mixed", torch.float16, 1, 8, 8, 70, 90, 128, mix_after=near_one(8, 8), wants=("mix_after",), mask="causal", band=(None, 0), q_start=-30)
    case("mixed", torch.float32, 2, 6, 6, 70, 90, 64, mix_before=near_one(6, 6), mix_after=near_one(6, 6), softcap=3.0, sinks=rand(6),
         slopes=torch.rand(6, device=DEVICE) * 0.1, gate=rand(2, 70, 6), bias=rand(2, 6, 70, 90), wants=("mix_before", "mix_after", "sinks"))


def dynamic_cases():
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for n, (b, h, kv, tq, tk, d, rank) in enumerate([(2, 4, 4, 65, 130, 64, 2), (1, 16, 16, 200, 333, 64, 2), (2, 9, 3, 30, 77, 24, 1)]):
            mask, band = MASKS[n % 3]
            rows = 2 * (2 * rank + 1)
            terms = dict(mix_q=rand(b, tq, rows, h, scale=0.4), mix_k=rand(b, tk, rows, h, scale=0.4))
            case("mixed", dtype, b, h, kv, tq, tk, d, mask=mask, band=band, q_start=tk - tq, wants=("mix_q", "mix_k"), **terms)
    # Tiles of sixteen heads: parts of 512 keys, heads that share keys, sinks, one side's coefficients alone.
    case("mixed", torch.bfloat16, 1, 16, 4, 90, 1100, 64, mask="window(700, 40)", band=(700, 40), q_start=800, sinks=rand(16), wants=("mix_q", "mix_k", "sinks"),
         mix_q=rand(1, 90, 10, 16, scale=0.3), mix_k=rand(1, 1100, 10, 16, scale=0.3))
    case("mixed", torch.float16, 3, 5, 5, 33, 257, 48, dv=16, mask="causal", band=(None, 0), q_start=224, wants=("mix_q",), mix_q=rand(3, 33, 6, 5, scale=0.4))
    given = dict(mix_before=rand(8, 8, scale=0.3), mix_after=rand(8, 8, scale=0.3), mix_q=rand(1, 50, 10, 8, scale=0.4))
    case("mixed", torch.float32, 1, 8, 8, 50, 70, 64, wants=tuple(given), **given)
    case("mixed", torch.bfloat16, 1, 8, 8, 50, 70, 64, wants=("mix_k",), mix_k=rand(1, 70, 18, 8, scale=0.3))


def entmax_cases():
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for n, (b, h, kv, tq, tk, d) in enumerate([(1, 1, 1, 1, 1, 8), (2, 4, 4, 65, 130, 64), (1, 8, 2, 200, 333, 64), (2, 3, 3, 100, 77, 40)]):
            for alpha in (1.5, 2.0, 1.25):
                mask, band = MASKS[n % 3]
                case("entmax", dtype, b, h, kv, tq, tk, d, mask=mask, band=band, q_start=tk - tq, alpha=torch.full((h,), alpha, device=DEVICE), wants=("alpha",))
    case("entmax", torch.float32, 2, 5, 5, 70, 90, 64, alpha=torch.tensor([1.2, 1.5, 1.7, 2.0, 1.4], device=DEVICE), softcap=3.0, sinks=rand(5),
         slopes=torch.rand(5, device=DEVICE) * 0.1, gate=rand(2, 70, 5), bias=rand(2, 5, 70, 90), wants=("alpha", "sinks", "gate"))
    case("entmax", torch.float16, 1, 4, 4, 70, 40, 64, mask="causal", band=(None, 0), q_start=-30, alpha=torch.full((4,), 1.5, device=DEVICE), wants=("alpha",))


def row_lists(b, h, tq, share):
    """Random rows of each list, one list empty, one full: offsets, index, and the same as bits [b h q]."""
    listed = torch.rand(b, h, tq) < share
    listed[0, 0], listed[-1, -1] = True, False
    flat = listed.view(b * h, tq)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), flat.sum(1).cumsum(0)])
    return offsets, flat.nonzero()[:, 1].contiguous(), listed.to(DEVICE)


def rows_cases():
    """cuda/rows: listed rows against double, the others 0 and -inf; and their gradients."""
    for n, (dtype, b, h, kv, tq, tk, d, mask, band) in enumerate([
            (torch.bfloat16, 2, 4, 4, 300, 300, 64, None, None), (torch.float16, 1, 8, 2, 1000, 513, 128, None, None),
            (torch.bfloat16, 2, 4, 2, 77, 200, 256, "prefix(150)", None), (torch.bfloat16, 2, 6, 6, 200, 200, 64, "causal", (None, 0)),
            (torch.float32, 2, 3, 3, 90, 110, 40, "causal", (None, 0)), (torch.float16, 1, 4, 4, 130, 130, 96, None, None)]):
        part = f"cuda/rows {str(dtype)[6:]} {b}x{h}/{kv} {tq}x{tk} d{d} {mask}"
        q, k, v, dout = normal(b, tq, h, d, dtype=dtype), normal(b, tk, kv, d, dtype=dtype), normal(b, tk, kv, d, dtype=dtype), normal(b, tq, h, d, dtype=dtype)
        offsets, index, listed = row_lists(b, h, tq, 0.5)
        out, out_ok = guarded(b, tq, h, d, dtype=dtype)
        lse, lse_ok = guarded(b, h, tq, dtype=torch.float32)
        gate = rand(b, tq, h) if n % 2 else None
        given = dict(mask=mask, row_offsets=offsets, row_index=index, **({} if gate is None else {"gate": gate}))
        try:
            RUN(q, k, v, out, lse, **given)
            torch.cuda.synchronize()
        except Failed as fault:
            check(False, part, str(fault))
            continue
        open_ = open_pairs(tq, tk, 0, *(band or (None, None)), length=150 if mask == "prefix(150)" else None) & listed[..., None]
        t = {"q": q, "k": k, "v": v, **({} if gate is None else {"gate": gate})}
        leaves, yards = ({x: y.to(w).clone().requires_grad_() for x, y in t.items()} for w in (torch.float64, dtype))
        truth, truth_lse = formula(leaves, open_, torch.float64)
        yard, _ = formula(yards, open_, dtype)
        judged(part, "out", dtype, out, truth.detach(), yard.detach(), 1.5 if gate is not None else 1.0)
        finite = torch.isfinite(truth_lse)
        check(bool((lse[~finite] == -math.inf).all()) and (lse[finite] - truth_lse[finite]).abs().max().item() < 1e-5, part, "lse")
        check(out_ok() and lse_ok(), part, "wrote outside of its output")
        check(bool((out.transpose(1, 2)[~listed] == 0).all()), part, "rows that are not listed are not 0")
        same = all(torch.equal(RUN(q, k, v, torch.empty_like(out), **given), out) for _ in range(20))
        check(same, part, "a repeat differs")
        there = dict(given, row_offsets=offsets.to(DEVICE), row_index=index.to(DEVICE))
        again, again_lse = torch.empty_like(out), torch.empty_like(lse)
        RUN(q, k, v, again, again_lse, **there)
        check(torch.equal(again, out) and torch.equal(again_lse, lse), part, "lists on the device give other bits")
        far = torch.cat([index, torch.tensor([tq, -1, tq + 7])]).to(DEVICE)  # the last list is empty: these are its rows
        ends = offsets.clone()
        ends[-1] += 3
        RUN(q, k, v, again, **dict(there, row_offsets=ends.to(DEVICE), row_index=far))
        check(torch.equal(again, out), part, "rows outside of the sequence are not passed over")
        if "row_offsets" in given and n < 4:
            try:
                found = RUN.backward(q, k, v, out, lse, dout, **(given if n % 2 else there))
            except Failed as fault:
                if "does not have it" not in str(fault):
                    check(False, part, str(fault))
                continue
            truth.backward(dout.double())
            yard.backward(dout)
            for x, g in zip("qkv", found):
                judged(part, "d" + x, dtype, g, leaves[x].grad, yards[x].grad, 2.0)


def both(kind, q, k, v, dout, heads, **given):
    out = torch.empty_like(dout)
    lse = torch.empty(q.shape[0], heads, q.shape[1], device=DEVICE)
    RUN(q, k, v, out, lse, **given)
    return (out, lse, *RUN.backward(q, k, v, out, lse, dout, **given))


def head_laws():
    """Repeats, neighbours in a batch, packed sequences: the same bits. Nothing of n x n stays in memory."""
    d, dtype = 64, torch.bfloat16
    for kind, h in (("mixed", 8), ("mixed", 16), ("entmax", 8)):
        terms = dict(alpha=torch.full((h,), 1.5, device=DEVICE)) if kind == "entmax" else dict(mix_before=near_one(h, h), mix_after=near_one(h, h))
        q, k, v, dout = (normal(3, 300, h, d) for _ in range(4))
        whole = both(kind, q, k, v, dout, h, mask="causal", **terms)
        same = all(torch.equal(x, y) for _ in range(100) for x, y in zip(both(kind, q, k, v, dout, h, mask="causal", **terms), whole))
        check(same, f"bits {kind}", "a repeat of 100 differs")
        alone = both(kind, *(x[1:2] for x in (q, k, v, dout)), h, mask="causal", **terms)
        check(all(torch.equal(x, y[1:2]) for x, y in zip(alone, whole)), f"bits {kind}", "alone differs from in a batch")
        lengths = [(70, 70), (0, 5), (130, 130), (1, 200), (64, 0), (129, 65)]
        offsets = [torch.tensor([sum(x[i] for x in lengths[:n]) for n in range(len(lengths) + 1)]) for i in (0, 1)]
        q, dout = (normal(1, int(offsets[0][-1]), h, d) for _ in range(2))
        k, v = (normal(1, int(offsets[1][-1]), h, d) for _ in range(2))
        out, lse, dq, dk, dv = both(kind, q, k, v, dout, h, mask="causal", q_start=torch.tensor([END]), q_offsets=offsets[0], kv_offsets=offsets[1], **terms)
        for n, (a, c) in enumerate(lengths):
            rows, keys = slice(int(offsets[0][n]), int(offsets[0][n + 1])), slice(int(offsets[1][n]), int(offsets[1][n + 1]))
            if a == 0 or c == 0:
                check(bool((out[:, rows] == 0).all()) and bool((dk[:, keys] == 0).all()), f"bits {kind}", f"ragged {a}x{c} is not 0")
                continue
            one = both(kind, q[:, rows].contiguous(), k[:, keys].contiguous(), v[:, keys].contiguous(), dout[:, rows].contiguous(), h, mask="causal",
                       q_start=torch.tensor([c - a]), **terms)
            two = (out[:, rows], lse[:, :, rows], dq[:, rows], dk[:, keys], dv[:, keys])
            check(all(torch.equal(x, y) for x, y in zip(one, two)), f"bits {kind}", f"ragged {a}x{c} differs from alone")
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        q, k, v, dout = (normal(1, 200, h, d) for _ in range(4))
        want = both(kind, q, k, v, dout, h, **terms)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            both(kind, q, k, v, dout, h, **terms)
            with torch.cuda.graph(graph, stream=stream):
                got = both(kind, q, k, v, dout, h, **terms)
            graph.replay()
        torch.cuda.synchronize()
        check(all(torch.equal(x, y) for x, y in zip(got, want)), f"bits {kind}", "a replay of a graph differs")


def dynamic_laws():
    """Coefficients of every token: repeats, neighbours in a batch, packed sequences, graphs, and the same bits."""
    h, d = 8, 64

    def run(q, k, v, dout, mix_q, mix_k, **given):
        out, lse = torch.empty_like(q), torch.empty(q.shape[0], h, q.shape[1], device=DEVICE)
        given.update(mix_q=mix_q, mix_k=mix_k)
        RUN(q, k, v, out, lse, **given)
        found = {"d" + n: torch.empty_like(t) for n, t in (("q", q), ("k", k), ("v", v), ("mix_q", mix_q), ("mix_k", mix_k))}
        return (out, lse, *RUN.backward(q, k, v, out, lse, dout, found, **given))

    def inputs(b, tq, tk):
        q, dout, k, v = normal(b, tq, h, d), normal(b, tq, h, d), normal(b, tk, h, d), normal(b, tk, h, d)
        return q, k, v, dout, rand(b, tq, 10, h, scale=0.3), rand(b, tk, 10, h, scale=0.3)

    x = inputs(3, 600, 600)
    whole = run(*x, mask="causal")
    check(all(torch.equal(a, b) for _ in range(50) for a, b in zip(run(*x, mask="causal"), whole)), "bits dynamic", "a repeat of 50 differs")
    alone = run(*(t[1:2].contiguous() for t in x), mask="causal")
    check(all(torch.equal(a, b[1:2]) for a, b in zip(alone, whole)), "bits dynamic", "alone differs from in a batch")
    lengths = [(70, 70), (0, 5), (130, 130), (1, 700), (64, 0), (129, 65)]
    offsets = [torch.tensor([sum(n[i] for n in lengths[:at]) for at in range(len(lengths) + 1)]) for i in (0, 1)]
    x = inputs(1, int(offsets[0][-1]), int(offsets[1][-1]))
    packed = run(*x, mask="causal", q_start=torch.tensor([END]), q_offsets=offsets[0], kv_offsets=offsets[1])
    by_query = (True, False, False, True, True, False)
    for n, (a, c) in enumerate(lengths):
        rows, keys = slice(int(offsets[0][n]), int(offsets[0][n + 1])), slice(int(offsets[1][n]), int(offsets[1][n + 1]))
        out, lse, dq, dk, dv, dmix_q, dmix_k = packed
        two = (out[:, rows], lse[:, :, rows], dq[:, rows], dk[:, keys], dv[:, keys], dmix_q[:, rows], dmix_k[:, keys])
        if a == 0 or c == 0:
            check(all(bool((t == 0).all()) for i, t in enumerate(two) if i != 1), "bits dynamic", f"ragged {a}x{c} is not 0")
            continue
        one = run(*(t[:, rows if of else keys].contiguous() for t, of in zip(x, by_query)), mask="causal", q_start=torch.tensor([c - a]))
        check(all(torch.equal(a1, b1) for a1, b1 in zip(one, two)), "bits dynamic", f"ragged {a}x{c} differs from alone")
    x = inputs(1, 200, 200)
    want, stream, graph = run(*x), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        run(*x)
        with torch.cuda.graph(graph, stream=stream):
            got = run(*x)
        graph.replay()
    torch.cuda.synchronize()
    check(all(torch.equal(a, b) for a, b in zip(got, want)), "bits dynamic", "a replay of a graph differs")


HEAD_SELFTEST = [rows_cases, talking_cases, dynamic_cases, entmax_cases]
HEAD_LAWS = [head_laws, dynamic_laws]
