"""Calls as plain words, the same for both trees: what is timed and what is compared bit for bit."""
# SPDX-License-Identifier: Apache-2.0
DEFAULTS = dict(dir="f", dtype="bf16", b=1, h=8, kv=None, tq=64, tk=None, d=64, dv=None, mask=None, start=None, terms=(), kernels="", layout="bhsd",
               probe=(), eight=None, share=None)


def case(group, name, **words):
    assert words.keys() <= DEFAULTS.keys(), f"no such field: {words.keys() - DEFAULTS.keys()}"
    c = dict(DEFAULTS, group=group, name=name, **words)
    c["kv"], c["tk"], c["dv"] = c["kv"] or c["h"], c["tk"] or c["tq"], c["dv"] or c["d"]
    return c


def gpu_times():
    out = []
    for d in (128, 64, 256):
        for mask in (None, "causal"):
            for t in (512, 2048, 8192):
                out.append(case("forward", f"D{d} {t} {mask or 'full'}", b=16384 // t, h=2048 // d, tq=t, d=d, mask=mask))
                out.append(case("backward", f"D{d} {t} {mask or 'full'}", dir="b", b=16384 // t, h=2048 // d, tq=t, d=d, mask=mask))
    for mask in (None, "causal"):
        out.append(case("forward", f"gqa 64/8 D128 8192 {mask or 'full'}", h=64, kv=8, tq=8192, d=128, mask=mask))
        out.append(case("backward", f"gqa 64/8 D128 8192 {mask or 'full'}", dir="b", h=64, kv=8, tq=8192, d=128, mask=mask))
        for d in (96, 192):
            out.append(case("forward", f"D{d} 8192 {mask or 'full'}", b=2, h=16, tq=8192, d=d, mask=mask))
            out.append(case("backward", f"D{d} 8192 {mask or 'full'}", dir="b", b=2, h=16, tq=8192, d=d, mask=mask))
    for b, h, kv, t in ((64, 32, 8, 8192), (1, 32, 8, 32768), (64, 32, 1, 8192), (1, 32, 8, 1024), (16, 32, 32, 8192)):
        out.append(case("decode", f"B{b} {h}/{kv} {t}", b=b, h=h, kv=kv, tq=1, tk=t, d=128))
    for kind in ("int8", "e4m3"):
        out.append(case("decode", f"B64 32/8 8192 {kind}", b=64, h=32, kv=8, tq=1, tk=8192, d=128, eight=kind))
    for d in (64, 128):
        out.append(case("window", f"D{d} 8192 of 1024", b=2, h=2048 // d, tq=8192, d=d, mask="window(1023, 0)"))
        out.append(case("probes", f"D{d} 8192 entropy, top weight", b=2, h=2048 // d, tq=8192, d=d, probe=("entropy", "top_weight")))
        out.append(case("terms", f"D{d} 4096 softcap, slopes, sinks", b=4, h=2048 // d, tq=4096, d=d, mask="causal", terms=("softcap", "slopes", "sinks")))
        out.append(case("terms", f"D{d} 4096 softcap, slopes backward", dir="b", b=4, h=2048 // d, tq=4096, d=d, mask="causal", terms=("softcap", "slopes")))
    out.append(case("documents", "D128 8192 of 1024", b=2, h=16, tq=8192, d=128, mask="documents(" + ", ".join(map(str, range(0, 8193, 1024))) + ") & causal"))
    out.append(case("terms", "D128 4096 bias", b=4, h=16, tq=4096, d=128, terms=("bias",)))
    out.append(case("terms", "D128 4096 dropout", b=4, h=16, tq=4096, d=128, terms=("dropout",)))
    for direction in "fb":
        word = " backward" if direction == "b" else ""
        out.append(case("heads", "talking 2048" + word, dir=direction, b=2, h=16, tq=2048, terms=("talking",)))
        out.append(case("heads", "dcmha 2048" + word, dir=direction, b=1, h=16, tq=2048, terms=("dcmha",)))
        out.append(case("heads", "entmax 2048" + word, dir=direction, b=1, h=16, tq=2048, terms=("entmax",)))
        out.append(case("mma", "f32 D128 2048" + word, dir=direction, dtype="f32", b=2, h=16, tq=2048, d=128))
    out.append(case("heads", "rows listed 0.5", b=4, h=32, tq=4096, share=0.5))
    out.append(case("plain", "f64 512", dtype="f64", b=1, h=8, tq=512))
    out.append(case("phase", "D128 8192 causal", b=2, h=16, tq=8192, d=128, mask="causal", kernels="cuda/phase"))
    return out


def cpu_times():
    out = []
    for dtype in ("f32", "bf16"):
        for d in (128, 64):
            for mask in (None, "causal"):
                word = f"{dtype} D{d} 1024 {mask or 'full'}"
                out.append(case("forward", word, dtype=dtype, tq=1024, h=4, d=d, mask=mask))
                if d == 128 or mask:
                    out.append(case("backward", word, dir="b", dtype=dtype, tq=1024, h=4, d=d, mask=mask))
        out.append(case("small", f"{dtype} [1 64 8 64]", dtype=dtype, tq=64))
        out.append(case("small", f"{dtype} [8 32 8 64]", dtype=dtype, b=8, tq=32))
        out.append(case("small", f"{dtype} [1 64 8 64] backward", dir="b", dtype=dtype, tq=64))
        out.append(case("decode", f"{dtype} 8/8 16384", dtype=dtype, tq=1, tk=16384, d=128))
        out.append(case("decode", f"{dtype} 32/8 8192", dtype=dtype, h=32, kv=8, tq=1, tk=8192, d=128))
    out.append(case("decode", "f32 8/8 16384 int8", dtype="f32", tq=1, tk=16384, d=128, eight="int8"))
    out.append(case("forward", "f16 D128 1024 full", dtype="f16", tq=1024, h=4, d=128))
    for probe in (("entropy", "top_weight"), ("top_keys",), ("column_sums",)):
        out.append(case("probes", f"f32 1024 {probe[0]}", dtype="f32", tq=1024, h=4, d=128, probe=probe))
    out.append(case("terms", "f32 1024 softcap, slopes, sinks", dtype="f32", tq=1024, h=4, mask="causal", terms=("softcap", "slopes", "sinks")))
    out.append(case("terms", "f32 1024 bias, relative", dtype="f32", tq=1024, h=4, terms=("bias", "relative")))
    out.append(case("terms", "f32 1024 dropout backward", dir="b", dtype="f32", tq=512, h=4, terms=("dropout",)))
    for direction in "fb":
        word = " backward" if direction == "b" else ""
        out.append(case("heads", "talking f32 512" + word, dir=direction, dtype="f32", tq=512, terms=("talking",)))
        out.append(case("heads", "dcmha f32 256" + word, dir=direction, dtype="f32", tq=256, terms=("dcmha",)))
        out.append(case("heads", "entmax f32 512" + word, dir=direction, dtype="f32", tq=512, terms=("entmax",)))
    out.append(case("window", "f32 2048 of 256", dtype="f32", tq=2048, h=4, mask="window(255, 0)"))
    return out


MASKS = (None, "causal", "window(20, 3)", "prefix(9)", "window(4, 2) | prefix(3)", "documents(0, 20, 61, 90) & causal",
         "blocks(16, 16; 0, 2, 3, 5, 5, 6, 7; 0, 1, 2, 4, 5, 3, 0)", "strided(5, 2)", "global(3, 17) | window(2, 2)")
TERMS = ((), ("softcap",), ("slopes",), ("bias",), ("relative",), ("sinks",), ("dropout",), ("gate",), ("scale",),
         ("softcap", "slopes", "bias", "relative", "sinks", "gate"))


def digests(device):
    """Some 650 small calls over dtypes, masks, terms, widths, probes and kinds of heads, both directions."""
    out, n = [], 0

    def add(**words):
        nonlocal n
        n += 1
        for direction in "fb":
            c = case("digest", f"{n}", dir=direction, **words)
            shown = {k: v for k, v in words.items() if v not in (None, (), "")}
            c["name"] = f"{n} {direction} " + " ".join(f"{k}={v}" for k, v in shown.items())
            if direction == "f" or not (c["probe"] or c["eight"] or c["share"] or c["kernels"].endswith(("phase", "decode", "packed", "rows"))):
                out.append(c)

    for dtype in ("f32", "bf16", "f16"):
        for i, mask in enumerate(MASKS):
            add(dtype=dtype, mask=mask, b=2, h=4, kv=(4, 2, 1)[i % 3], tq=90, tk=90, d=(64, 128, 32)[i % 3], layout=("bhsd", "bshd")[i % 2])
        for i, terms in enumerate(TERMS):
            for d, tq, tk in ((64, 65, 129), (128, 200, 336), (20, 29, 61)):
                add(dtype=dtype, terms=terms, mask=("causal", None)[i % 2], b=2, h=4, kv=2, tq=tq, tk=tk, d=d, start=tk - tq)
        for d, dv in ((1, 1), (8, 8), (33, 20), (96, 96), (192, 128), (256, 256), (80, 112), (300, 20)):
            for tq, tk in ((1, 1), (17, 33), (130, 257)):
                add(dtype=dtype, h=2, kv=1, tq=tq, tk=tk, d=d, dv=dv, mask=("causal", None)[tq % 2], start=tk - tq)
        for b, h, kv, tq, tk in ((1, 8, 8, 1, 300), (3, 32, 8, 1, 1000), (1, 32, 1, 1, 4100), (2, 16, 4, 4, 1537), (100, 8, 1, 1, 77)):
            for d in (64, 128):
                add(dtype=dtype, b=b, h=h, kv=kv, tq=tq, tk=tk, d=d, start=tk - tq, mask="causal")
        for probe in (("entropy",), ("top_weight", "second_moment", "mean_distance", "sink_mass", "top_position"), ("top_keys",), ("column_sums",)):
            for mask in (None, "causal"):
                add(dtype=dtype, probe=probe, mask=mask, b=2, h=2, tq=150, tk=150, d=64)
        for terms in (("talking",), ("dcmha",), ("entmax",), ("talking", "bias"), ("dcmha", "sinks")):
            for t in (40, 130, 300):
                add(dtype=dtype, terms=terms, mask="causal", b=2, h=8, tq=t, d=(32, 64)[t % 2])
        for eight in ("int8", "e4m3"):
            for tq, tk in ((1, 700), (33, 65)):
                add(dtype=dtype, eight=eight, b=2, h=8, kv=2, tq=tq, tk=tk, d=64)
        add(dtype=dtype, share=0.5, b=2, h=4, tq=150, d=64)
        for kernel in ("ref", "cpu/online", "cpu/decode") if device == "cpu" else ("cuda/mma", "cuda/plain", "cuda/phase", "cuda/hopper"):
            for mask in (None, "causal"):
                add(dtype=dtype, kernels=kernel, mask=mask, b=2, h=4, kv=2, tq=1 if kernel.endswith("decode") else 130, tk=130, d=64)
    for mask in (None, "causal"):
        for terms in ((), ("softcap", "bias", "sinks")):
            add(dtype="f64", mask=mask, terms=terms, b=2, h=2, tq=33, tk=61, d=24)
    if device == "cpu":  # threads must not matter, the same on both sides
        for c in [dict(c, name=c["name"] + " threads 3", threads=3) for c in out[::7]]:
            out.append(c)
    return out
