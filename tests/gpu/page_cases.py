"""Keys in pages on the GPU: bits of the contiguous run, poisoned rests, tables that lie."""
import math
import random

import torch

from common import DEVICE, check, normal
from harness import Attention, relative

DECODE, HOPPER, PLAIN = Attention("cuda/decode"), Attention("cuda/hopper"), Attention("cuda/plain")
END = -(2 ** 63)
MANY = [150, 9, 64, 1, 0, 130] * 20  # enough for blocks of 32 rows


def paged(k, lengths, size, hnd, spare=3):
    """k [batch tokens heads ...] cut into pages in a random order, NaN (int8: 99) wherever no token lies; the pool and its table."""
    if k.dtype == torch.float8_e4m3fn:  # torch fills and copies its bytes
        pool, table = paged(k.view(torch.uint8), lengths, size, hnd, spare)
        return pool.view(k.dtype), table
    batch, tokens, heads, *dim = k.shape
    each = -(-tokens // size)
    pages = batch * each + spare
    pool = torch.full((pages, heads, size, *dim) if hnd else (pages, size, heads, *dim), {torch.int8: 99, torch.uint8: 0x7F}.get(k.dtype, math.nan),
                      device=DEVICE, dtype=k.dtype)
    pool = pool.transpose(1, 2) if hnd else pool
    order = random.Random(size).sample(range(pages), batch * each)
    table = torch.full((batch, each + 1), 2 ** 31 - 1, dtype=torch.int32, device=DEVICE)
    for b, length in enumerate(lengths):
        for i in range(-(-length // size)):
            n = min(size, length - i * size)
            pool[order[b * each + i], :n] = k[b, i * size:i * size + n]
            table[b, i] = order[b * each + i]
    return pool, table


def page_cases():
    for dtype, d in ((torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float16, 128), (torch.bfloat16, 256)):
        for size in (8, 16, 32, 64, 128, 256):
            for heads, kv, tq, lengths, mask in ((8, 2, 1, [1500, 64, 1, 777, 8, 0], None), (32, 1, 1, [2049, 65, 1024, 0], None),
                                                 (16, 8, 3, [300, 1025, 40], "window(200, 0)"), (32, 1, 1, MANY, None)):
                if lengths is MANY and (d != 128 or size not in (8, 64)):
                    continue
                batch, longest = len(lengths), max(lengths)
                q, k, v = normal(batch, tq, heads, d, dtype=dtype), normal(batch, longest, kv, d, dtype=dtype), normal(batch, longest, kv, d, dtype=dtype)
                part = f"pages {str(dtype)[6:]} d{d} of {size} {heads}/{kv}"
                want, want_lse = torch.empty_like(q), torch.empty(batch, heads, tq, device=DEVICE)
                start = torch.tensor([n - tq for n in lengths])
                with_lengths = "lengths(" + ", ".join(map(str, lengths)) + ")" + (" & " + mask if mask else "")
                DECODE(q, k, v, want, want_lse, mask=with_lengths, q_start=start)
                for hnd in (False, True):
                    (pk, table), (pv, _) = paged(k, lengths, size, hnd), paged(v, lengths, size, hnd)
                    given = dict(mask=mask, q_start=torch.tensor([END]), page_table=table, page_lengths=torch.tensor(lengths))
                    got, got_lse = torch.full_like(q, float("nan")), torch.full_like(want_lse, float("nan"))
                    DECODE(q, pk, pv, got, got_lse, **given)
                    check(torch.equal(got, want) and torch.equal(got_lse, want_lse), part, f"{'HND' if hnd else 'NHD'} differs from k and v in one piece")
                    if d == 128 and size in (8, 256):
                        other = PLAIN(q, pk, pv, **given)
                        check(relative(got.float(), other.float()) < 8e-3, part, "cuda/plain disagrees")
    prefill_cases()
    # A page outside the pool reads as zeros: v counts as 0 there, nothing else is touched.
    q, k, v = normal(1, 1, 8, 128, dtype=torch.bfloat16), normal(1, 128, 8, 128, dtype=torch.bfloat16), normal(1, 128, 8, 128, dtype=torch.bfloat16)
    (pk, table), (pv, _) = paged(k, [128], 64, False, spare=0), paged(v, [128], 64, False, spare=0)
    for wrong in (-1, 7, 2 ** 31 - 1):
        table[0, 1] = wrong
        zero = [torch.cat([x[:, :64], torch.zeros_like(x[:, 64:])], 1) for x in (k, v)]
        for run in (DECODE, PLAIN):
            got = run(q, pk, pv, page_table=table, page_lengths=torch.tensor([128]))
            want = run(q, *zero)
            check(relative(got.float(), want.float()) < 1e-6, f"pages outside the pool {wrong}", "does not read as zeros")


def prefill_cases():
    """Many queries over pages: prefill and chunks have the bits of keys in one piece, with every term."""
    for dtype, d in ((torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float16, 96), (torch.float16, 192), (torch.bfloat16, 256)):
        for size in (8, 16, 64, 256):
            for n, (heads, kv, tq, lengths) in enumerate(((8, 2, 300, [1500, 301, 777, 300]), (4, 4, 130, [130, 1025, 200]), (8, 1, 77, [90, 400]))):
                batch, longest = len(lengths), max(lengths)
                q, k, v = normal(batch, tq, heads, d, dtype=dtype), normal(batch, longest, kv, d, dtype=dtype), normal(batch, longest, kv, d, dtype=dtype)
                start = torch.tensor([length - tq for length in lengths])
                terms = [{}, {"softcap": 20.0, "sinks": torch.randn(heads, device=DEVICE)}, {"slopes": torch.rand(heads, device=DEVICE)}][n]
                for mask in ("causal", "causal & window(200, 0)", None):
                    part = f"pages prefill {str(dtype)[6:]} d{d} of {size} {heads}/{kv} {mask} {' '.join(terms)}"
                    want, want_lse = torch.empty_like(q), torch.empty(batch, heads, tq, device=DEVICE)
                    HOPPER(q, k, v, want, want_lse, mask="lengths(" + ", ".join(map(str, lengths)) + ")" + (" & " + mask if mask else ""), q_start=start, **terms)
                    (pk, table), (pv, _) = paged(k, lengths, size, n == 1), paged(v, lengths, size, n == 1)
                    given = dict(mask=mask, q_start=torch.tensor([END]), page_table=table, page_lengths=torch.tensor(lengths), **terms)
                    got, got_lse = torch.full_like(q, float("nan")), torch.full_like(want_lse, float("nan"))
                    HOPPER(q, pk, pv, got, got_lse, **given)
                    check(torch.equal(got, want) and torch.equal(got_lse, want_lse), part, "differs from k and v in one piece")
