"""Gradients on a GPU: every kernel against double, poisoned outputs in guard bands, laws of bits."""
import math

import torch

from common import DEVICE, TALLY, check, guarded, normal
from harness import GUARD, Attention, Failed, Mask, gradient_formula, open_pairs

TILES, FREE, MMA, PLAIN = "cuda/hopper_backward", "cuda/unordered", "cuda/mma_backward", "cuda/plain_backward"
FORWARD = Attention("")
BACKWARD = {name: Attention(name) for name in (TILES, FREE, MMA, PLAIN)}
END = -(2 ** 63)


def error_of(got, truth):
    """Relative to the truth, or to a gradient of 0.1 an element (1 where there is one alone) if the truth is nearly 0."""
    got, truth = got.double(), truth.double()
    least = 0.1 * math.sqrt(truth.numel()) if truth.numel() > 1 else 1.0
    return ((got - truth).norm() / max(truth.norm().item(), least)).item()


def judge(part, dtype, got, truth, yard):
    for name, g, t, y in zip(("dq", "dk", "dv"), got, truth, yard):
        if not bool(torch.isfinite(g).all()):
            check(False, part, f"{name} is not finite")
            continue
        error, limit = error_of(g, t), max(GUARD[dtype], error_of(y, t))
        key = part.split()[0] + " " + str(dtype)[6:]
        worst = TALLY["worst"].setdefault(key, {})
        worst[name] = max(worst.get(name, 0.0), error)
        check(error <= limit, part, f"{name}: relative error {error:.2e}, allowed {limit:.2e}")


def judge_slice(part, dtype, got, q, k, v, dout, open_):
    """Against the formula in double, with the formula in `dtype` as the yardstick."""
    *truth, _ = gradient_formula(q, k, v, dout, open_)
    *yard, _ = gradient_formula(q, k, v, dout, open_, dtype=dtype)
    judge(part, dtype, got, truth, yard)


def forward(q, k, v, **more):
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32, device=q.device)
    FORWARD(q, k, v, out, lse, **more)
    return out, lse


def case(kernel, dtype, b, h, kv, tq, tk, d, dv=None, mask=None, band=None, q_start=0, layout="bshd", **terms):
    part = (f"{kernel} {str(dtype)[6:]} {b}x{h}/{kv} {tq}x{tk} d{d}/{dv or d} {mask or 'all'} start {q_start} {layout} " + " ".join(terms))
    q, k, v, dout = (normal(b, t, n, w, dtype=dtype, layout=layout) for t, n, w in ((tq, h, d), (tk, kv, d), (tk, kv, dv or d), (tq, h, dv or d)))
    given = dict(terms, mask=mask)
    if q_start:
        given["q_start"] = torch.tensor([q_start])
    try:
        out, lse = forward(q, k, v, **given)
        bands = {n: guarded(*t.shape, dtype=dtype) for n, t in (("dq", q), ("dk", k), ("dv", v))}
        gradients = {n: x for n, (x, _) in bands.items()}
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        for term, name in (("sinks", "dsinks"), ("bias", "dbias"), ("gate", "dgate")):
            if term in terms and (kernel == PLAIN or term == "sinks" or (kernel == MMA and term == "gate") or (kernel == TILES and term == "bias")):
                gradients[name] = torch.full(terms[term].shape, math.nan, device=DEVICE, dtype=terms[term].dtype if kernel == TILES and term == "bias" else wide)
        BACKWARD[kernel].backward(q, k, v, out, lse, dout, gradients, **given)
        torch.cuda.synchronize()
    except Failed as fault:
        return check(False, part, str(fault))
    math_terms = {n: x for n, x in terms.items() if n in ("softcap", "slopes", "sinks", "bias", "gate")}
    if "scale" in terms:
        math_terms["scale"] = terms["scale"].to(DEVICE).view(1, -1, 1, 1).double()
    open_ = open_pairs(tq, tk, q_start, *(band or (None, None)))
    *truth, more = gradient_formula(q, k, v, dout, open_, q_start=q_start, **math_terms)
    *yard, more_yard = gradient_formula(q, k, v, dout, open_, q_start=q_start, dtype=dtype,
                                        **{n: (x.to(dtype) if torch.is_tensor(x) else x) for n, x in math_terms.items()})
    judge(part, dtype, [bands[n][0] for n in ("dq", "dk", "dv")], truth, yard)
    if "dbias" in gradients:  # along axes of size 1 it is a sum
        axes = [i for i, n in enumerate(gradients["dbias"].shape) if n == 1]
        for some in (more, more_yard):
            some["dbias"] = some["dbias"].sum(axes, keepdim=True) if axes and some["dbias"].shape != gradients["dbias"].shape else some["dbias"]
    for name in ("dsinks", "dbias", "dgate"):
        if name in gradients:
            error, limit = error_of(gradients[name], more[name]), max(4 * GUARD[dtype], error_of(more_yard[name], more[name]))
            if name == "dsinks":  # a sum that cancels: rounding of out alone may cost this
                cost = (terms["sinks"].double().view(1, -1, 1) - lse.double()).exp() * (dout.double() * out.double()).abs().sum(-1).transpose(1, 2)
                limit = max(limit, torch.finfo(dtype).eps / 2 * cost.sum((0, 2)).norm().item() / max(more[name].norm().item(), 0.1 * math.sqrt(h)))
            check(error <= limit, part, f"{name}: relative error {error:.2e}, allowed {limit:.2e}")
    check(all(ok() for _, ok in bands.values()), part, "wrote outside of its gradients")
    closed = ~open_.any(1)
    check(bool((bands["dq"][0][:, closed] == 0).all()), part, "dq of rows without keys is not 0")
    if "sinks" not in terms:
        check(bool((bands["dv"][0][:, ~open_.any(0)] == 0).all()), part, "dv of keys nobody sees is not 0")


SHAPES = [(1, 1, 1, 128, 128), (1, 1, 1, 256, 256), (2, 4, 2, 256, 384), (1, 2, 1, 1, 1), (1, 2, 2, 63, 65), (2, 3, 3, 129, 127), (1, 8, 2, 511, 1025),
          (2, 4, 4, 1023, 1023), (1, 4, 1, 300, 77), (1, 8, 2, 2049, 2049), (1, 2, 1, 1, 513), (3, 5, 5, 193, 400), (1, 64, 8, 1100, 1100)]
MASKS = [(None, None), ("causal", (None, 0)), ("window(100, 0)", (100, 0)), ("window(17, 300)", (17, 300))]


def tile_cases():
    for widths, dtype in (((64, 128), torch.bfloat16), ((64, 128), torch.float16), ((96, 192, 256), torch.bfloat16), ((96, 192, 256), torch.float16)):
        for d in widths:
            for i, (b, h, kv, tq, tk) in enumerate(SHAPES):
                for n, (mask, band) in enumerate(MASKS):
                    start = tk - tq if (i + n) % 2 else 0
                    case(TILES, dtype, b, h, kv, tq, tk, d, mask=mask, band=band, q_start=start, layout=("bshd", "bhsd", "packed")[i % 3])
                    if i in (2, 6, 12):
                        case(FREE, dtype, b, h, kv, tq, tk, d, mask=mask, band=band, q_start=start)
            h = 4
            for mask, band in ((None, None), ("causal", (None, 0)), ("window(70, 20)", (70, 20))):
                given = dict(mask=mask, band=band, q_start=133)
                case(TILES, dtype, 2, h, 2, 200, 333, d, softcap=5.0, **given)
                case(TILES, dtype, 2, h, 2, 200, 333, d, slopes=torch.rand(h, device=DEVICE), **given)
                case(TILES, dtype, 2, h, 2, 200, 333, d, sinks=torch.randn(h, device=DEVICE) * 4, **given)
                case(TILES, dtype, 1, h, 4, 150, 333, d, mask=mask, band=band, softcap=3.0, slopes=torch.rand(h, device=DEVICE),
                     sinks=torch.randn(h, device=DEVICE), scale=torch.tensor([-0.2], dtype=torch.float64))
            case(TILES, dtype, 1, 2, 2, 200, 200, d, mask="causal", band=(None, 0), q_start=-90)
            case(TILES, dtype, 1, 2, 2, 200, 700, d, mask="window(60, 9)", band=(60, 9), q_start=1500)


def pair_cases():
    """A bias in tiles and number by number, its gradient in place and summed, dropout: the Hopper gradients against double."""
    for d, dtype in ((64, torch.bfloat16), (128, torch.bfloat16), (64, torch.float16), (128, torch.float16), (40, torch.bfloat16)):
        h, draw = 4, lambda *shape, dtype=dtype: torch.randn(*shape, device=DEVICE).to(dtype)
        for mask, band in ((None, None), ("causal", (None, 0)), ("window(70, 20)", (70, 20))):
            given = dict(mask=mask, band=band, q_start=133)
            case(TILES, dtype, 2, h, 2, 200, 336, d, bias=draw(2, h, 200, 336), **given)
            case(TILES, dtype, 3, h, 2, 200, 336, d, bias=draw(1, h, 200, 336), slopes=torch.rand(h, device=DEVICE), **given)
            case(TILES, dtype, 2, h, 4, 200, 333, d, bias=draw(2, h, 200, 333, dtype=torch.float32), **given)
            case(TILES, dtype, 2, h, 4, 200, 336, d, bias=draw(2, 1, 1, 336), sinks=torch.randn(h, device=DEVICE), **given)
        case(TILES, dtype, 1, h, 2, 1100, 1096, d, bias=draw(1, 1, 1100, 1096))
    reference = Attention("ref")
    for d, dtype in ((64, torch.bfloat16), (128, torch.bfloat16), (128, torch.float16)):
        for mask, (b, h, kv, tq, tk) in ((None, (2, 4, 2, 130, 200)), ("causal", (1, 4, 4, 300, 300)), ("window(70, 20)", (3, 2, 1, 77, 150))):
            for more in ({}, {"bias": torch.randn(b, h, tq, tk).to(dtype)}):
                part = f"{TILES} {str(dtype)[6:]} d{d} dropout {mask} {' '.join(more)}"
                given = dict(mask=mask, dropout=0.3, seed=77, q_start=torch.tensor([5]), sequence_ids=torch.arange(b) + 9)
                x = [normal(b, t, n, d, dtype=dtype) for t, n in ((tq, h), (tk, kv), (tk, kv), (tq, h))]
                there = dict(given, **{n: t.to(DEVICE) for n, t in more.items()})
                out, lse = forward(*x[:3], **there)
                names = ["dq", "dk", "dv"] + (["dbias"] if more else [])
                sizes = [t.shape for t in x[:3]] + [t.shape for t in more.values()]
                got = {n: torch.full(tuple(s), math.nan, dtype=dtype, device=DEVICE) for n, s in zip(names, sizes)}
                BACKWARD[TILES].backward(*x[:3], out, lse, x[3], got, **there)
                y, truth = [t.cpu().double() for t in x], torch.empty(b, h, tq, dtype=torch.float64)
                wide = {n: t.double() for n, t in more.items()}
                want_out = reference(*y[:3], None, truth, **given, **wide)
                want = {n: torch.empty(*s, dtype=torch.float64) for n, s in zip(names, sizes)}
                reference.backward(*y[:3], want_out, truth, y[3], want, **given, **wide)
                for n in names:
                    check(error_of(got[n].cpu(), want[n]) < 1e-2, part, f"{n}: {error_of(got[n].cpu(), want[n]):.1e}")


def ragged_backward():
    """Packed sequences: each as if it were alone, bit for bit, some without queries or keys."""
    lengths = [(70, 70), (0, 5), (300, 300), (1, 200), (129, 64), (64, 0), (193, 800)]
    offsets = [torch.tensor([sum(x[i] for x in lengths[:n]) for n in range(len(lengths) + 1)]) for i in (0, 1)]
    tq, tk, h, kv = int(offsets[0][-1]), int(offsets[1][-1]), 8, 2
    for d in (64, 128, 256, 96, 192):
        for dtype in (torch.bfloat16, torch.float16):
            q, k, v, dout = normal(1, tq, h, d, dtype=dtype), normal(1, tk, kv, d, dtype=dtype), normal(1, tk, kv, d, dtype=dtype), normal(1, tq, h, d, dtype=dtype)
            bad = slice(int(offsets[0][2]), int(offsets[0][3])), slice(int(offsets[1][2]), int(offsets[1][3]))
            q[:, bad[0]], v[:, bad[1]] = math.nan, math.nan  # one sequence is spoilt: it keeps that to itself
            given = dict(mask="causal", q_offsets=offsets[0], kv_offsets=offsets[1], q_start=torch.tensor([END]))
            out, lse = forward(q, k, v, **given)
            bands = {n: guarded(*t.shape, dtype=dtype) for n, t in (("dq", q), ("dk", k), ("dv", v))}
            BACKWARD[TILES].backward(q, k, v, out, lse, dout, {n: x for n, (x, _) in bands.items()}, **given)
            dq, dk, dv = (bands[n][0] for n in ("dq", "dk", "dv"))
            for n, (a, b) in enumerate(lengths):
                rows, keys = slice(int(offsets[0][n]), int(offsets[0][n + 1])), slice(int(offsets[1][n]), int(offsets[1][n + 1]))
                part = f"{TILES} ragged {str(dtype)[6:]} d{d} {a}x{b}"
                if n == 2:
                    continue
                if a == 0 or b == 0:
                    check(all(bool((x == 0).all()) for x in (dq[:, rows], dk[:, keys], dv[:, keys])), part, "without queries or keys")
                    continue
                alone = BACKWARD[TILES].backward(q[:, rows], k[:, keys], v[:, keys], out[:, rows], lse[:, :, rows], dout[:, rows], mask="causal",
                                                 q_start=torch.tensor([b - a]))
                check(all(torch.equal(x, y) for x, y in zip(alone, (dq[:, rows], dk[:, keys], dv[:, keys]))), part, "differs from the sequence alone")
                judge_slice(part, dtype, (dq[:, rows], dk[:, keys], dv[:, keys]), q[:, rows], k[:, keys], v[:, keys], dout[:, rows],
                            open_pairs(a, b, b - a, None, 0))
            check(all(ok() for _, ok in bands.values()), f"{TILES} ragged d{d}", "wrote outside of its gradients")


def closed_key_cases():
    """lengths, prefix and documents: keys no query may see hold NaN, their gradients are 0."""
    h, kv, tq, tk = 4, 2, 260, 300
    for d in (64, 128, 256, 96, 192):
        for text, rows, keys in (("lengths(1, 80, 0, 300) & causal", lambda n: slice(0, tq), lambda n: slice(0, (1, 80, 0, 300)[n])),
                                 ("prefix(130)", lambda n: slice(0, tq), lambda n: slice(0, 130)),
                                 ("documents(0, 70, 200) & window(90, 4)", lambda n: slice(70, 200), lambda n: slice(70, 200))):
            q, k, v, dout = normal(4, tq, h, d), normal(4, tk, kv, d), normal(4, tk, kv, d), normal(4, tq, h, d)
            band = (90, 4) if "window" in text else (None, 0) if "causal" in text else (None, None)
            for n in range(4):
                seen = keys(n) if "documents" not in text else slice(0, 200)
                k[n, seen.stop:], v[n, seen.stop:] = math.nan, math.nan
            out, lse = forward(q, k, v, mask=text)
            dq, dk, dv = BACKWARD[TILES].backward(q, k, v, out, lse, dout, mask=text)
            for n in range(4):
                i, j, part = rows(n), keys(n), f"{TILES} {text} d{d}"
                past = 200 if "documents" in text else j.stop
                check(bool((dk[n, past:] == 0).all()) and bool((dv[n, past:] == 0).all()), part, "gradients of closed keys are not 0")
                if j.stop == 0:
                    check(bool((dq[n] == 0).all()), part, "dq without keys is not 0")
                    continue
                start = i.start - j.start
                judge_slice(part, torch.bfloat16, (dq[n:n + 1, i], dk[n:n + 1, j], dv[n:n + 1, j]), q[n:n + 1, i], k[n:n + 1, j], v[n:n + 1, j],
                            dout[n:n + 1, i], open_pairs(i.stop - i.start, j.stop - j.start, start, *band))


def hostile_backward():
    """Logits of +-1e4, equal and growing ones: finite, and near the truth as far as rounded scores allow."""
    for d in (64, 128, 256, 96, 192):
        for name in ("huge", "equal", "growing"):
            t = 1000
            q, k, v, dout = (torch.randn(1, t, 4, d, device=DEVICE) for _ in range(4))
            if name == "huge":
                q, k = q * 30, k * 30
            if name == "equal":
                k[:] = 1
            if name == "growing":
                q, k = q.abs(), k.abs() * torch.linspace(4, 0, t, device=DEVICE).view(1, t, 1, 1)
            q, k, v, dout = (x.bfloat16() for x in (q, k, v, dout))
            for mask, band in ((None, None), ("causal", (None, 0))):
                out, lse = forward(q, k, v, mask=mask)
                got = BACKWARD[TILES].backward(q, k, v, out, lse, dout, mask=mask)
                open_ = open_pairs(t, t, 0, *(band or (None, None)))
                judge_slice(f"{TILES}-hostile {name} d{d} {mask}", torch.bfloat16, got, q, k, v, dout, open_)


def portable_cases():
    """cuda/plain_backward and cuda/mma_backward: widths, layouts, terms; other masks and terms against the double reference."""
    shapes = [(1, 1, 1, 1, 1, 1, 1), (2, 4, 2, 33, 65, 59, 80), (1, 2, 1, 7, 100, 300, 20), (3, 3, 3, 40, 31, 64, 64), (1, 4, 2, 200, 333, 96, 96),
              (1, 2, 1, 130, 257, 256, 256), (2, 4, 1, 65, 129, 192, 128)]
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        widest = 128 if dtype == torch.float32 else 256
        for kernel in (PLAIN, MMA) if dtype != torch.float64 else (PLAIN,):
            for i, (b, h, kv, tq, tk, d, dv) in enumerate(shapes):
                if kernel == MMA and max(d, dv) > widest:
                    continue
                for mask, band in ((None, None), ("causal", (None, 0)), ("window(5, 3)", (5, 3))):
                    case(kernel, dtype, b, h, kv, tq, tk, d, dv, mask, band, q_start=tk - tq if i % 2 else 0, layout=("bshd", "bhsd", "packed")[i % 3])
            h = 4
            case(kernel, dtype, 2, h, 2, 30, 50, 40, softcap=5.0, slopes=torch.rand(h, device=DEVICE), q_start=11, sinks=torch.randn(h, device=DEVICE),
                 bias=torch.randn(2, h, 30, 50, device=DEVICE), gate=torch.rand(2, 30, h, device=DEVICE), scale=torch.rand(h, dtype=torch.float64) + 0.1)
    reference = Attention("ref")
    b, h, tq, tk, d = 2, 4, 137, 153, 24
    masks = ("causal | prefix(9)", "documents(0, 7, 20, 153) & causal", "blocks(32, 32; 0, 2, 3, 5, 5, 6; 0, 1, 2, 0, 4, 3)",
             "per_head(causal; all; window(6, 0); strided(5, 2))", "lengths(30, 153)")
    terms = ({"dropout": 0.3, "seed": 77}, {"relative": torch.randn(32, h), "max_distance": 50}, {}, {"bias": torch.randn(1, h, 1, tk)}, {})
    for text, more in zip(masks, terms):
        x = [torch.randn(b, t, n, d).double() for t, n in ((tq, h), (tk, 2), (tk, 2), (tq, h))]
        mask = Mask(text)
        lse = torch.empty(b, h, tq, dtype=torch.float64)
        out = reference(*x[:3], None, lse, mask=mask, **more)
        names = ["dq", "dk", "dv"] + (["dbias"] if "bias" in more else [])
        sizes = dict(zip(names, [t.shape for t in x[:3]] + [t.shape for n, t in more.items() if n == "bias"]))
        want = {n: torch.empty(*s, dtype=torch.float64) for n, s in sizes.items()}
        reference.backward(*x[:3], out, lse, x[3], want, mask=mask, **more)
        there = {n: t.to(DEVICE) if torch.is_tensor(t) else t for n, t in more.items()}
        for kernel, dtype, limit in ((PLAIN, torch.float64, 1e-12), (PLAIN, torch.float32, 3e-6), (MMA, torch.float32, 3e-6)):
            some = names if kernel == PLAIN else names[:3]
            got = {n: torch.full(tuple(sizes[n]), math.nan, dtype=dtype, device=DEVICE) for n in some}
            BACKWARD[kernel].backward(*(t.to(DEVICE).to(dtype) for t in (*x[:3], out, lse, x[3])), got, mask=mask, **there)
            for n in some:
                check(error_of(got[n].cpu(), want[n]) < limit, f"{kernel} {str(dtype)[6:]} {text}", f"{n}: {error_of(got[n].cpu(), want[n]):.1e}")


def backward_refusals():
    q = normal(1, 200, 4, 20)
    out, lse = forward(q, q, q)
    lines = Attention("").backward_choice(q, q, q, out, lse, q, {"dq": torch.empty_like(q)})
    check("cuda/hopper_backward: head_dim 20 and value_dim 20" in lines and "cuda/mma_backward: chosen" in lines, "refusals", lines)
    q = normal(1, 200, 4, 64)
    out, lse = forward(q, q, q)
    lines = Attention("").backward_choice(q, q, q, out, lse, q, {"dq": torch.empty_like(q)}, gate=torch.rand(1, 200, 4, device=DEVICE))
    check("cuda/hopper_backward: a gate" in lines, "refusals", lines)
    lines = Attention("").backward_choice(q, q, q, out, lse, q, {"dq": torch.empty_like(q)})
    check(lines.startswith("cuda/hopper_backward: chosen"), "refusals", lines)
    for some in (("dq",), ("dk",), ("dv",)):
        found = {n: torch.full_like(q, math.nan) for n in some}
        BACKWARD[TILES].backward(q, q, q, out, lse, q, found)
        check(all(bool(torch.isfinite(x).all()) for x in found.values()), f"{TILES} alone {some}", "is not finite")


def backward_bits():
    """Equal bits over repeats, batch, heads, streams and graphs."""
    for d in (64, 128, 256, 96, 192):
        for dtype in (torch.bfloat16, torch.float16):
            b, h, kv, t = 5, 8, 2, 777
            q, k, v, dout = (normal(b, t, n, d, dtype=dtype) for n in (h, kv, kv, h))
            for mask in (None, "causal", "window(200, 0)"):
                part = f"bits backward d{d} {str(dtype)[6:]} {mask}"
                out, lse = forward(q, k, v, mask=mask)
                run = lambda *x: BACKWARD[TILES].backward(*x, mask=mask)
                whole = run(q, k, v, out, lse, dout)
                check(all(all(torch.equal(x, y) for x, y in zip(run(q, k, v, out, lse, dout), whole)) for _ in range(20)), part, "a repeat differs")
                one = [x[2:3] for x in (q, k, v, out, lse, dout)]
                check(all(torch.equal(x, y[2:3]) for x, y in zip(run(*one), whole)), part, "alone differs from in a batch")
    for d in (64, 128, 256, 96, 192):  # groups cut into parts, beside sequences so short that they are not
        lengths = [1100] * 19 + [300, 1500]
        ends = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
        q, k, v, dout = (normal(1, ends[-1], n, d) for n in (8, 2, 2, 8))
        given = dict(mask="causal", q_offsets=torch.tensor(ends), kv_offsets=torch.tensor(ends), q_start=torch.tensor([END]))
        out, lse = forward(q, k, v, **given)
        whole = BACKWARD[TILES].backward(q, k, v, out, lse, dout, **given)
        for n in (0, 7, 19, 20):
            at = slice(ends[n], ends[n + 1])
            one = BACKWARD[TILES].backward(*(x[:, at] for x in (q, k, v, out)), lse[:, :, at], dout[:, at], mask="causal")
            check(all(torch.equal(x, y[:, at]) for x, y in zip(one, whole)), f"bits backward d{d} groups", f"{lengths[n]} tokens alone differ from in a batch")
    q, k, v, dout = (normal(2, 1500, 16, 128) for _ in range(4))
    out, lse = forward(q, k, v, mask="causal")
    whole = BACKWARD[TILES].backward(q, k, v, out, lse, dout, mask="causal")
    found = {n: torch.empty_like(q) for n in ("dq", "dk", "dv")}
    a = BACKWARD[TILES].backward_args(q, k, v, out, lse, dout, found, mask="causal")
    differ = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for _ in range(1000):
        BACKWARD[TILES].run_backward(a)
        for x, y in zip(found.values(), whole):
            differ += (x != y).any()
    check(differ.item() == 0, "repeats backward", f"{differ.item()} gradients of 1000 runs differ")


def pair_bits():
    """A bias and dropout: equal bits over repeats and batch; sequences by way of scratch, too."""
    for d in (64, 128):
        b, h, t = 5, 4, 520
        q, k, v, dout = (normal(b, t, h, d) for _ in range(4))
        bias, part = torch.randn(b, h, t, t, device=DEVICE).bfloat16(), f"bits backward d{d} pairs"
        for mask in (None, "causal"):
            for bias_gradient in (torch.bfloat16, torch.float32):
                def run(at, ids):
                    some, own = [x[at] for x in (q, k, v, dout)], dict(mask=mask, bias=bias[at], dropout=0.2, seed=3, sequence_ids=torch.tensor(ids))
                    out, lse = forward(*some[:3], **own)
                    found = {n: torch.empty_like(x) for n, x in zip(("dq", "dk", "dv"), some)}
                    found["dbias"] = torch.full(bias[at].shape, math.nan, device=DEVICE, dtype=bias_gradient)
                    BACKWARD[TILES].backward(*some[:3], out, lse, some[3], found, **own)
                    return list(found.values())
                whole = run(slice(0, b), list(range(b)))
                check(all(torch.equal(x, y) for _ in range(5) for x, y in zip(run(slice(0, b), list(range(b))), whole)), part, "a repeat differs")
                check(all(torch.equal(x, y[2:3]) for x, y in zip(run(slice(2, 3), [2]), whole)), part, "alone differs from in a batch")


def backward_runs():
    """Streams that wait for each other's processors, graphs, groups cut into parts, no queries."""
    q, k, v, dout = (normal(1, 4096, n, 128) for n in (16, 4, 4, 16))
    out, lse = forward(q, k, v, mask="causal")
    whole = BACKWARD[TILES].backward(q, k, v, out, lse, dout, mask="causal")
    judge_slice(f"{TILES} parts", torch.bfloat16, (whole[0][:, :, :4], whole[1][:, :, :1], whole[2][:, :, :1]), q[:, :, :4], k[:, :, :1], v[:, :, :1],
                dout[:, :, :4], open_pairs(4096, 4096, 0, None, 0))
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in range(4)], []
    for n in range(24):
        with torch.cuda.stream(streams[n % 4]):
            found.append(BACKWARD[TILES].backward(q, k, v, out, lse, dout, mask="causal"))
    torch.cuda.synchronize()
    check(all(torch.equal(x, y) for some in found for x, y in zip(some, whole)), "streams backward", "runs on four streams differ")
    found = None
    for kernel in (TILES, MMA, PLAIN):
        small = [x[:, :300] for x in (q, k, v)]
        out, lse = forward(*small, mask="lengths(200)")
        want = BACKWARD[kernel].backward(*small, out, lse, dout[:, :300], mask="lengths(200)")
        got = {n: torch.empty_like(x) for n, x in zip(("dq", "dk", "dv"), want)}
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            BACKWARD[kernel].backward(*small, out, lse, dout[:, :300], got, mask="lengths(200)")
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                BACKWARD[kernel].backward(*small, out, lse, dout[:, :300], got, mask="lengths(200)")
            for x in got.values():
                x.fill_(0)
            for _ in range(3):
                graph.replay()
        torch.cuda.synchronize()
        check(all(torch.equal(x, y) for x, y in zip(got.values(), want)), "graphs backward", f"a replay of {kernel} differs")
    none = [x[:, :0] for x in (q, dout)]
    dk = BACKWARD[PLAIN].backward(none[0], k, v, none[0], torch.empty(1, 16, 0, device=DEVICE), none[1], {"dk": torch.full_like(k, math.nan)})[0]
    check(bool((dk == 0).all()), "sizes backward", "dk without queries is not 0")


BACKWARD_SELFTEST = [tile_cases, pair_cases, ragged_backward, closed_key_cases, hostile_backward, portable_cases, backward_refusals]
BACKWARD_LAWS = [backward_bits, pair_bits, backward_runs]
