"""int8 and e4m3 keys and values on the GPU: against double on the numbers they stand for, in one piece and in pages; their bits."""
import functools
import math

import torch

from common import DEVICE, check, guarded, normal
from harness import GUARD, Attention, formula, open_pairs, relative
from page_cases import END, paged

DECODE, PLAIN = Attention("cuda/decode"), Attention("cuda/plain")
E4M3 = torch.float8_e4m3fn
EIGHT = {"i8": torch.int8, "e4m3": E4M3}


def quantized(x, kind):
    """`kind` of x, its scales [batch tokens heads], and the numbers both stand for in double; every layout stays what it is."""
    most = 127 if kind == "i8" else 448
    scale = (x.double().abs().amax(-1) / most).float()
    number = (x.double() / scale.double()[..., None]).float().nan_to_num(0).clamp(-most, most)
    eight = torch.empty_like(x, dtype=EIGHT[kind]).copy_(number.round() if kind == "i8" else number)
    return eight, scale, eight.double() * scale.double()[..., None]


def joined(parts, axis=0):
    """torch.cat, by bytes where there is none of e4m3."""
    return torch.cat([x.view(torch.uint8) if x.dtype == E4M3 else x for x in parts], axis).view(parts[0].dtype)


def close(x, lengths):
    """NaN in every number and scale past a sequence's tokens: what is closed reaches nothing."""
    for n, length in enumerate(lengths):
        if x.dtype == E4M3:
            x.view(torch.uint8)[n, length:] = 0x7F
        elif x.dtype != torch.int8:
            x[n, length:] = math.nan


def given(ks, vs, **more):
    return dict(k_scale=ks, v_scale=vs, **more)


def judge(kind, part, dtype, run, q, k, v, band=(None, None), q_start=0, math_terms=None, **more):
    (k8, ks, k_number), (v8, vs, v_number) = quantized(k, kind), quantized(v, kind)
    part = f"{kind} {part}"
    b, tq, h, _ = q.shape
    out, out_ok = guarded(b, tq, h, v.shape[3], dtype=dtype)
    lse, lse_ok = guarded(b, h, tq, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    run(q, k8, v8, out, lse, q_start=torch.tensor([q_start]), **given(ks, vs), **more)
    truth, truth_lse = formula(q, k_number, v_number, open_pairs(tq, k.shape[1], q_start, *band), q_start=q_start, **(math_terms or {}))
    error, lse_error = relative(out.double(), truth), ((lse.double() - truth_lse).abs() / truth_lse.abs().clamp(min=1)).max().item()
    check(error <= GUARD[dtype], part, f"relative error {error:.2e}, allowed {GUARD[dtype]:.2e}")
    check(lse_error <= 2e-6, part, f"lse error {lse_error:.2e}")
    check(out_ok() and lse_ok(), part, "wrote outside of its output")


def number_cases(kind):
    for dtype in (torch.bfloat16, torch.float16):
        for d in (64, 128, 256):
            for i, (b, h, kv, tq, tk) in enumerate([(1, 1, 1, 1, 1), (3, 32, 8, 1, 1000), (2, 32, 32, 1, 777), (1, 64, 8, 1, 2049), (1, 32, 1, 1, 4100),
                                                    (2, 16, 4, 4, 1537), (1, 64, 1, 1, 3000)]):
                for mask, band in ((None, (None, None)), ("window(600, 0)", (600, 0))):
                    q, k, v = (normal(b, t, n, d, dtype=dtype, layout=("bshd", "bhsd")[i % 2]) for t, n in ((tq, h), (tk, kv), (tk, kv)))
                    # Tokens of very different sizes: a scale belongs to its own token.
                    k, v = k * torch.rand(b, tk, kv, 1, device=DEVICE).to(dtype), v * torch.exp(2 * torch.randn(b, tk, kv, 1, device=DEVICE)).to(dtype)
                    judge(kind, f"decode {str(dtype)[6:]} {b}x{h}/{kv} {tq}x{tk} d{d} {mask}", dtype, DECODE, q, k, v, band, tk - tq, mask=mask)
            q, k, v = normal(2, 2, 8, d, dtype=dtype), normal(2, 1333, 2, d, dtype=dtype), normal(2, 1333, 2, d, dtype=dtype)
            terms = dict(softcap=20.0, slopes=torch.rand(8, device=DEVICE) * 0.1, sinks=torch.randn(8, device=DEVICE) * 4)
            judge(kind, f"decode {str(dtype)[6:]} d{d} terms", dtype, DECODE, q, k, v, (None, 0), 1331, terms, mask="causal", **terms)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for b, h, kv, tq, tk, d in ((2, 4, 2, 33, 65, 59), (1, 2, 1, 7, 100, 300)):
            q, k, v = normal(b, tq, h, d, dtype=dtype), normal(b, tk, kv, d, dtype=dtype), normal(b, tk, kv, d, dtype=dtype)
            judge(kind, f"plain {str(dtype)[6:]} d{d}", dtype, PLAIN, q, k, v, (None, 0), tk - tq, mask="causal")


def paged_cases(kind):
    for dtype, d in ((torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float16, 128), (torch.bfloat16, 256)):
        for size in (8, 32, 64, 256):
            for heads, kv, tq, lengths, mask in ((8, 2, 1, [1500, 64, 1, 777, 8, 0], None), (32, 1, 1, [2049, 65, 1024, 0], None),
                                                 (16, 8, 3, [300, 1025, 40], "window(200, 0)")):
                batch, longest, part = len(lengths), max(lengths), f"{kind} pages {str(dtype)[6:]} d{d} of {size} {heads}/{kv}"
                q = normal(batch, tq, heads, d, dtype=dtype)
                (k8, ks, _), (v8, vs, _) = (quantized(normal(batch, longest, kv, d, dtype=dtype), kind) for _ in range(2))
                for x in (k8, v8, ks, vs):
                    close(x, lengths)
                want, want_lse = torch.empty_like(q), torch.empty(batch, heads, tq, device=DEVICE)
                with_lengths = "lengths(" + ", ".join(map(str, lengths)) + ")" + (" & " + mask if mask else "")
                DECODE(q, k8, v8, want, want_lse, mask=with_lengths, q_start=torch.tensor([n - tq for n in lengths]), **given(ks, vs))
                check(bool(torch.isfinite(want).all()), part, "NaN of closed keys reached the output")
                for hnd in (False, True):
                    (pk, table), (pv, _), (pks, _), (pvs, _) = (paged(x, lengths, size, hnd) for x in (k8, v8, ks, vs))
                    at = given(pks, pvs, mask=mask, q_start=torch.tensor([END]), page_table=table, page_lengths=torch.tensor(lengths))
                    got, got_lse = torch.full_like(q, math.nan), torch.full_like(want_lse, math.nan)
                    DECODE(q, pk, pv, got, got_lse, **at)
                    check(torch.equal(got, want) and torch.equal(got_lse, want_lse), part, f"{'HND' if hnd else 'NHD'} differs from k and v in one piece")
                    if d == 128 and size in (8, 256):
                        check(relative(got.float(), PLAIN(q, pk, pv, **at).float()) < 8e-3, part, "cuda/plain disagrees")
    q, (k8, ks, _), (v8, vs, _) = normal(1, 1, 8, 128), *(quantized(normal(1, 128, 8, 128), kind) for _ in range(2))
    (pk, table), (pv, _), (pks, _), (pvs, _) = (paged(x, [128], 64, False, spare=0) for x in (k8, v8, ks, vs))
    for wrong in (-1, 7, 2 ** 31 - 1):
        table[0, 1] = wrong
        zero = [joined([x[:, :64], torch.zeros_like(x[:, 64:])], 1) for x in (k8, v8, ks, vs)]
        for run in (DECODE, PLAIN):
            got = run(q, pk, pv, page_table=table, page_lengths=torch.tensor([128]), **given(pks, pvs))
            check(relative(got.float(), run(q, zero[0], zero[1], **given(zero[2], zero[3])).float()) < 1e-6, f"{kind} pages outside the pool {wrong}",
                  "does not read as zeros")


def refusal_cases(kind):
    q, (k8, ks, _) = normal(1, 200, 4, 64), quantized(normal(1, 200, 4, 64), kind)
    lines = Attention("").choice(q, k8, k8, torch.empty_like(q), **given(ks, ks))
    check(f"cuda/hopper: keys and values are {kind}; cuda/decode and cuda/plain read them" in lines and "cuda/plain: chosen" in lines, f"{kind} refusals", lines)
    lines = Attention("").choice(q[:, :1], k8, k8, torch.empty_like(q[:, :1]), **given(ks, ks))
    check("cuda/decode: chosen" in lines, f"{kind} refusals", lines)


def bit_laws(kind):
    for dtype in (torch.bfloat16, torch.float16):
        for d in (64, 128, 256):
            part, b, h, kv, t = f"{kind} bits d{d} {str(dtype)[6:]}", 48, 32, 8, 3000
            q, (k8, ks, _), (v8, vs, _) = normal(b, 1, h, d, dtype=dtype), *(quantized(normal(b, t, kv, d, dtype=dtype), kind) for _ in range(2))
            tokens = [1 + (n * 977) % t for n in range(b)]
            for x in (k8, v8, ks, vs):
                close(x, tokens)
            whole = DECODE(q, k8, v8, mask=f"lengths({', '.join(map(str, tokens))})", **given(ks, vs))
            again = [DECODE(q, k8, v8, mask=f"lengths({', '.join(map(str, tokens))})", **given(ks, vs)) for _ in range(30)]
            check(all(torch.equal(x, whole) for x in again), part, "a repeat differs")
            alone = [DECODE(q[n:n + 1], k8[n:n + 1, :m], v8[n:n + 1, :m], **given(ks[n:n + 1, :m], vs[n:n + 1, :m])) for n, m in enumerate(tokens)]
            check(torch.equal(torch.cat(alone), whole), part, "alone differs from among other lengths")
            one = [x[:, :, 5:6] for x in (k8, v8, ks, vs)]
            one = DECODE(q[:, :, 20:24], one[0], one[1], mask=f"lengths({', '.join(map(str, tokens))})", **given(one[2], one[3]))
            check(torch.equal(one, whole[:, :, 20:24]), part, "one kv head differs from among others")
            offsets = torch.tensor([0] + torch.tensor(tokens).cumsum(0).tolist())
            ragged = [joined([x[n, :m] for n, m in enumerate(tokens)])[None] for x in (k8, v8, ks, vs)]
            got = DECODE(q.transpose(0, 1), ragged[0], ragged[1], q_offsets=torch.arange(b + 1), kv_offsets=offsets, **given(ragged[2], ragged[3]))
            check(torch.equal(got.transpose(0, 1), whole), part, "ragged differs from padded")
            vs[0, 0, 0] = math.nan  # an open one stays visible, and touches its own heads alone
            got = DECODE(q, k8, v8, mask=f"lengths({', '.join(map(str, tokens))})", **given(ks, vs))
            check(bool(torch.isnan(got[0, :, :4]).all()) and torch.equal(got[1:], whole[1:]) and torch.equal(got[0, :, 4:], whole[0, :, 4:]), part, "a scale of NaN")


def code_cases():
    """All codes of e4m3 as the values of one key, and as the first number of the keys of 256 sequences."""
    codes = torch.arange(256, dtype=torch.uint8, device=DEVICE)
    number, scale = codes.view(E4M3).float(), torch.full((1, 1, 1), 0.5, device=DEVICE)
    for dtype in (torch.bfloat16, torch.float16):
        q = torch.zeros(1, 1, 1, 256, device=DEVICE, dtype=dtype)
        for name, run in (("decode", DECODE), ("plain", PLAIN)):
            got = run(q, q.to(E4M3), codes.view(E4M3).view(1, 1, 1, 256), **given(scale, scale)).float().view(-1)
            check(torch.equal(got.nan_to_num(-1), (number / 2).nan_to_num(-1)), f"e4m3 codes {name} {str(dtype)[6:]}", "a value is not its code")
            k, ones = torch.zeros(256, 1, 1, 64, dtype=torch.uint8, device=DEVICE), torch.ones(256, 1, 1, 64, device=DEVICE, dtype=dtype)
            k[:, 0, 0, 0] = codes
            lse, many = torch.empty(256, 1, 1, device=DEVICE), scale.expand(256, 1, 1).contiguous()
            run(ones, k.view(E4M3), ones.to(E4M3), None, lse, **given(many, many))
            want = number / 2 / 8  # one over the root of 64
            error = (lse.view(-1).nan_to_num(-1) - want.nan_to_num(-1)).abs() / want.nan_to_num(-1).abs().clamp(min=1)
            check(error.max().item() < 2e-6, f"e4m3 codes {name} {str(dtype)[6:]}", "a key is not its code")
    q, (k8, ks, _), (v8, vs, _) = normal(2, 1, 8, 128), *(quantized(normal(2, 700, 2, 128), "e4m3") for _ in range(2))
    whole = DECODE(q, k8, v8, **given(ks, vs))
    v8.view(torch.uint8)[0, 350, 1, 77] = 0xFF
    got = DECODE(q, k8, v8, **given(ks, vs))
    check(bool(torch.isnan(got[0, :, 4:, 77]).all()) and torch.isnan(got).sum().item() == 4, "e4m3 codes", "a value of NaN")
    k8.view(torch.uint8)[1, 699, 0, 5] = 0x7F
    got = DECODE(q, k8, v8, **given(ks, vs))
    check(bool(torch.isnan(got[1, :, :4]).all()) and torch.equal(got[1, :, 4:], whole[1, :, 4:]), "e4m3 codes", "a key of NaN")


def module_eight(kind):
    """hw.attention on CUDA tensors of 8 bits."""
    from module_cases import hw
    if hw is None:
        return
    q, k, v = normal(2, 1, 8, 128), normal(2, 700, 2, 128), normal(2, 700, 2, 128)
    (k8, ks, k_number), (v8, vs, v_number) = quantized(k, kind), quantized(v, kind)
    for run in (hw.attention, hw.torch.attention):
        error = relative(run(q, k8, v8, k_scale=ks, v_scale=vs).double(), formula(q, k_number, v_number)[0])
        check(error < GUARD[torch.bfloat16], f"{kind} in Python", f"relative error {error:.1e}")


def both(*cases):
    return [functools.wraps(case)(functools.partial(case, kind)) for kind in EIGHT for case in cases]


EIGHT_MODULE = both(module_eight)
EIGHT_SELFTEST, EIGHT_LAWS = [*both(number_cases, paged_cases, refusal_cases), code_cases], both(bit_laws)
