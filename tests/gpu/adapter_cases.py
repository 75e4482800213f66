"""flash_attn's names and models of transformers on CUDA tensors, as a program written for them calls: against headwise on the
CPU in double, and against transformers' own eager attention.

Skipped with one line where this build has no module, or where there is no transformers."""
import pathlib
import sys

import torch

import module_cases
from common import DEVICE, check, normal

hw, WHY = module_cases.hw, getattr(module_cases, "WHY", "")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
LIMIT = {torch.bfloat16: 1.2e-2, torch.float16: 2e-3, torch.float32: 1e-5}  # of out, rounded to its dtype, and of gradients


def distance(found, want):
    want = want.detach().double()
    return ((found.detach().cpu().double() - want).square().mean().sqrt() / want.square().mean().sqrt()).item()


def near(found, want, part, sentence, dtype, rival=0.0):
    """`rival`: the distance of another program's answer from the same; twice that is allowed too."""
    error = distance(found, want)
    check(error <= max(LIMIT[dtype], 2 * rival), part, f"{sentence}: relative error {error:.1e}")


def wide(x):
    return x.detach().cpu().double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x.cpu() if isinstance(x, torch.Tensor) else x


def both(call, arguments, words):
    """What a function gives on the device, and on the CPU in double."""
    return call(*arguments, **words), call(*map(wide, arguments), **{word: wide(x) for word, x in words.items()})


FLASH = [
    {},
    dict(causal=True),
    dict(causal=True, window_size=(30, 0), softcap=15.0),
    dict(window_size=(20, 10), softmax_scale=0.2),
]


def flash_cases():
    if hw is None:
        return print(f"hw.flash_attn on CUDA tensors: skipped: {WHY}", flush=True)
    fa = hw.flash_attn
    for dtype in LIMIT:
        part = f"flash_attn {str(dtype)[6:]}"
        q, k, v, dout = (normal(2, t, h, 64, dtype=dtype) for t, h in ((100, 8), (170, 2), (170, 2), (100, 8)))
        for words in (*FLASH, dict(causal=True, alibi_slopes=torch.linspace(0.05, 0.5, 8, device=DEVICE))):
            found, want = both(fa.flash_attn_func, (q, k, v), {**words, "return_attn_probs": True})
            near(found[0], want[0], part, f"func {words}", dtype)
            check(found[1].dtype == torch.float32 and torch.allclose(found[1].cpu().double(), want[1].double(), atol=2e-3), part, f"lse {words}")
        leaves, truths = ([y.clone().requires_grad_() for y in x] for x in ((q, k, v), map(wide, (q, k, v))))
        fa.flash_attn_func(*leaves, causal=True).backward(dout)
        fa.flash_attn_func(*truths, causal=True).backward(wide(dout))
        for name, x, y in zip("qkv", leaves, truths):
            near(x.grad, y.grad, part, f"gradient of {name}", dtype)
        varlen_cases(part, dtype)
        cache_cases(part, dtype)


def varlen_cases(part, dtype):
    """The offsets lie on the device, as flash_attn wants them."""
    fa = hw.flash_attn
    starts, key_starts = ([0, *torch.tensor(x).cumsum(0).tolist()] for x in ([50, 0, 90, 7], [90, 30, 90, 120]))
    q, k, v = (normal(1, t[-1], h, 64, dtype=dtype)[0] for t, h in ((starts, 8), (key_starts, 2), (key_starts, 2)))
    offsets = [torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in (starts, key_starts)]
    for words in FLASH:
        found, want = both(fa.flash_attn_varlen_func, (q, k, v, *offsets, 90, 120), words)
        near(found, want, part, f"varlen {words}", dtype)
    leaves, truths = ([y.clone().requires_grad_() for y in x] for x in ((q, k, v), map(wide, (q, k, v))))
    fa.flash_attn_varlen_func(*leaves, *offsets, 90, 120, causal=True).square().sum().backward()
    fa.flash_attn_varlen_func(*truths, *map(wide, offsets), 90, 120, causal=True).square().sum().backward()
    for name, x, y in zip("qkv", leaves, truths):
        near(x.grad, y.grad, part, f"varlen gradient of {name}", dtype)


def cache_cases(part, dtype):
    """A cache in rows and one in pages, with new tokens and their rotation; both sides write their own."""
    fa = hw.flash_attn
    q, new, other = (normal(3, 2, h, 64, dtype=dtype) for h in (8, 2, 2))
    lengths = torch.tensor([70, 5, 126], dtype=torch.int32, device=DEVICE)
    angles = torch.outer(torch.arange(128, device=DEVICE), 1e-3 ** torch.linspace(0, 1, 32, device=DEVICE))
    turns = dict(rotary_cos=angles.cos(), rotary_sin=angles.sin(), rotary_interleaved=False)
    table = torch.randperm(12, device=DEVICE)[:6].to(torch.int32).view(3, 2)
    for kind, words in (("rows", dict(cache_batch_idx=torch.tensor([3, 0, 2], dtype=torch.int32, device=DEVICE))), ("pages", dict(block_table=table))):
        shape = (4, 128) if kind == "rows" else (12, 64)
        caches = [normal(*shape, 2, 64, dtype=dtype) for _ in range(2)]
        twins = [wide(x) for x in caches]
        words = dict(words, **turns, cache_seqlens=lengths, causal=True)
        found = fa.flash_attn_with_kvcache(q, *caches, new, other, **words)
        want = fa.flash_attn_with_kvcache(wide(q), *twins, wide(new), wide(other), **{word: wide(x) for word, x in words.items()})
        near(found, want, part, f"kvcache in {kind}", dtype)
        for name, x, y in zip("kv", caches, twins):
            near(x, y, part, f"the {name} cache in {kind} after the call", dtype)


def family_cases():
    """Tiny random models on the device, in f32, beside eager attention on the CPU, and as near to it as eager attention on the device."""
    try:
        assert hw is not None, WHY
        import headwise.transformers  # noqa: F401
        from tiny_transformers import FAMILIES, SWAPPED, inputs_of, model_of, real
    except (AssertionError, ImportError) as fault:
        return print(f"models of transformers on CUDA tensors: skipped: {fault}", flush=True)
    for family, (*_, kind) in FAMILIES.items():
        for padding in (None, "right", "left") if kind not in ("vision", "speech") else (None,):
            given = inputs_of(family, padding)
            there = {name: x.to(DEVICE) for name, x in given.items()}
            mine, theirs = model_of(family, "swap" if family in SWAPPED else "headwise").to(DEVICE), model_of(family, "eager")
            rival = model_of(family, "eager").to(DEVICE)
            with torch.no_grad():
                want = real(family, given, theirs(**given).logits)
                eager = real(family, there, rival(**there).logits)
            logits = real(family, there, mine(**there).logits)
            near(logits, want, family, f"logits, padding {padding}", torch.float32, distance(eager, want))
            logits.square().mean().backward()
            check(all(torch.isfinite(x.grad).all() for x in mine.parameters() if x.grad is not None), family, f"gradients, padding {padding}")
            if padding == "left" and kind == "decoder":
                ids = [m.generate(**x, max_new_tokens=8, do_sample=False).cpu() for m, x in ((mine.eval(), there), (theirs, given))]
                check(torch.equal(*ids), family, "generation")


ADAPTERS = [flash_cases, family_cases]
