"""One tree's library in a process of its own, driven by compare.py: prepares a case, runs a turn of it, says a digest of what
came out. A request is a line of JSON on stdin, an answer one on stdout."""
# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys
import time

tree, device = sys.argv[1], sys.argv[2]
sys.path.insert(0, tree + "/tests/gpu")
out_stream = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what a library prints must not meet the answers
import torch  # noqa: E402
import zlib  # noqa: E402

torch.set_num_threads(1)
import harness  # noqa: E402
from harness import Attention, Mask  # noqa: E402

DT = dict(f32=torch.float32, bf16=torch.bfloat16, f16=torch.float16, f64=torch.float64)
GPU = device == "cuda"
FLUSH = torch.empty(256 << 20, dtype=torch.int8, device="cuda") if GPU else None
CONTEXTS = {}


def context(kernels, threads):
    if (kernels, threads) not in CONTEXTS:
        made = CONTEXTS[kernels, threads] = Attention(kernels)
        if threads != 1:
            options = harness.Options(harness.ctypes.sizeof(harness.Options), threads, kernels.encode() or None)
            harness.call(harness.lib.hw_context_create(harness.ctypes.byref(options), harness.ctypes.byref(made.context)))
    return CONTEXTS[kernels, threads]


def digest(tensors):
    """A number of the bytes: every word times an odd number of its own, summed mod 2^64."""
    total = 0
    for t in tensors:
        whole = t.contiguous().view(-1)
        words = whole.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])
        for i in range(0, words.numel(), 1 << 24):
            part = words[i:i + (1 << 24)].to(torch.int64)
            keys = (torch.arange(part.numel(), device=t.device, dtype=torch.int64) + i) * 2654435761 * 2 + 1
            total = (total * 1000003 + int((part * keys).sum())) & (2 ** 64 - 1)
    return f"{total:016x}"


class Case:
    def __init__(self, c):
        torch.manual_seed(zlib.crc32(repr(sorted((k, v) for k, v in c.items() if k not in ("name", "dir", "threads", "group"))).encode()))
        self.keep, dt, b, h, kv, tq, tk, d, dv = [], DT[c["dtype"]], c["b"], c["h"], c["kv"], c["tq"], c["tk"], c["d"], c["dv"]
        wide = torch.float64 if dt == torch.float64 else torch.float32

        def rand(*size, dtype=wide):
            return torch.randn(*size, device=device).to(dtype)

        def heads(n, t, w, dtype=dt):
            if c["layout"] == "bhsd":
                return rand(b, n, t, w, dtype=dtype).transpose(1, 2)
            return rand(b, t, n, w, dtype=dtype)

        q, k, v, dout = heads(h, tq, d), heads(kv, tk, d), heads(kv, tk, dv), heads(h, tq, dv)
        more = {}
        if c["mask"]:
            more["mask"] = Mask(c["mask"])
        if c["start"] is not None:
            more["q_start"] = torch.tensor([c["start"]])
        trained = {}
        for term in c["terms"]:
            if term == "softcap":
                more["softcap"] = 5.0
            elif term == "dropout":
                more.update(dropout=0.3, seed=77)
            elif term == "slopes":
                more["slopes"] = rand(h).abs()
            elif term == "sinks":
                trained["sinks"] = more["sinks"] = rand(h)
            elif term == "gate":
                trained["gate"] = more["gate"] = torch.rand(b, tq, h, device=device).to(wide)
            elif term == "scale":
                more["scale"] = torch.rand(h, dtype=torch.float64) + 0.1
            elif term == "bias":
                more["bias"] = rand(b, h, tq, tk, dtype=dt)
            elif term == "relative":
                trained["relative"] = more["relative"] = rand(32, h)
                more["max_distance"] = 50
            elif term == "talking":
                for n in ("mix_before", "mix_after"):
                    trained[n] = more[n] = torch.eye(h, device=device) + 0.1 * rand(h, h, dtype=torch.float32)
            elif term == "dcmha":
                for n, t in (("mix_q", tq), ("mix_k", tk)):
                    trained[n] = more[n] = 0.1 * rand(b, t, 10, h, dtype=torch.float32)
            elif term == "entmax":
                more["alpha"] = torch.full((h,), 1.5, device=device)
        if c["eight"]:
            most, dtype = (127, torch.int8) if c["eight"] == "int8" else (448, torch.float8_e4m3fn)
            scales = [x.float().abs().amax(-1).clamp(min=1e-6) / most for x in (k, v)]
            numbers = [(x.float() / s[..., None]).clamp(-most, most) for x, s in zip((k, v), scales)]
            k, v = ((x.round() if c["eight"] == "int8" else x).to(dtype) for x in numbers)
            more.update(k_scale=scales[0], v_scale=scales[1])
        if c["share"]:
            chosen = torch.rand(b * h, tq) < c["share"]
            more["row_offsets"] = torch.cat([torch.zeros(1, dtype=torch.int64), chosen.sum(1).cumsum(0)]).to(device)
            more["row_index"] = chosen.nonzero()[:, 1].contiguous().to(device)
        probe = {}
        for n in c["probe"]:
            if n == "top_keys":
                probe["top_keys"] = torch.zeros(b, h, tq, 8, device=device, dtype=torch.int64)
                probe["top_weights"] = torch.zeros(b, h, tq, 8, device=device)
            elif n == "column_sums":
                probe[n] = torch.zeros(b, h, tk, device=device)
            else:
                probe[n] = torch.zeros(b, h, tq, device=device, dtype=torch.int64 if n == "top_position" else torch.float32)
        if probe:
            more["probe"] = probe
        run, self.direction = context(c["kernels"], c.get("threads", 1)), c["dir"]
        out = torch.full((b, tq, h, dv), float("nan"), device=device).to(dt)
        lse = torch.full((b, h, tq), float("nan"), device=device, dtype=wide)
        self.results = [out, *([lse] if c["group"] == "digest" else []), *probe.values()]
        if self.direction == "f":
            args = run.args(q, k, v, out, lse if c["group"] == "digest" else None, **more)
            self.call = lambda: run.run(args)
        else:
            context("", 1).run(context("", 1).args(q, k, v, out, lse, **more))
            like = dict(dq=q, dk=k, dv=v, **{"d" + n: t for n, t in trained.items()})
            found = {n: torch.full(tuple(t.shape), float("nan"), device=device).to(t.dtype) for n, t in like.items()}
            self.results = list(found.values())
            kernels = {"cuda/mma": "cuda/mma_backward", "cuda/plain": "cuda/plain_backward", "cuda/hopper": "cuda/hopper_backward",
                       "cpu/online": "cpu/backward"}.get(c["kernels"], c["kernels"])
            run = context(kernels, c.get("threads", 1))
            args = run.backward_args(q, k, v, out, lse, dout, found, **more)
            self.call = lambda: run.run_backward(args)
        self.keep = [q, k, v, dout, more, args, out, lse]

    def digest(self):
        self.call()
        if GPU:
            torch.cuda.synchronize()
        return digest(self.results)

    def kernel(self, c):
        """Which kernel takes it, where this tree's harness can say."""
        try:
            run, args = context(c["kernels"], 1), self.keep[5]
            text = run.planned("attention" if c["dir"] == "f" else "backward", args, room(c["dir"]))
            return text.strip().splitlines()[-1]
        except Exception as fault:
            return f"unknown ({str(fault)[:80]})"

    def turn(self, calls):
        """Milliseconds of each call."""
        self.call()
        if not GPU:
            times = []
            start = time.perf_counter()
            for _ in range(calls):
                self.call()
            times.append((time.perf_counter() - start) / calls * 1e3)
            return times
        torch.cuda.synchronize()
        events = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in range(calls)]
        for begin, end in events:
            FLUSH.zero_()
            begin.record()
            self.call()
            end.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in events]


def room(direction):
    problem = harness.problem_room()
    if direction == "b":
        forward = harness.problem_room()
        harness.ctypes.c_uint64.from_buffer(problem, 8).value = harness.ctypes.addressof(forward)
        problem.forward = forward
    return problem


def main():
    current, words = None, None
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            if ask["op"] == "prepare":
                current = None
                if GPU:
                    torch.cuda.empty_cache()
                words = ask["case"]
                current = Case(words)
                answer = current.digest()
            elif ask["op"] == "turn":
                answer = current.turn(ask["calls"])
            elif ask["op"] == "kernel":
                answer = current.kernel(words)
            elif ask["op"] == "drop":
                current, answer = None, True
            else:
                answer = []
                for c in ask["cases"]:
                    try:
                        answer.append(Case(c).digest())
                    except harness.Failed as fault:
                        answer.append("refused: " + str(fault)[:160])
                    except Exception as fault:
                        answer.append(f"{type(fault).__name__}: {str(fault)[:160]}")
        except Exception as fault:
            answer = {"error": f"{type(fault).__name__}: {str(fault)[:200]}"}
        out_stream.write(json.dumps(answer) + "\n")
        out_stream.flush()


main()
