#!/usr/bin/env python3
"""Language models on the CPU: decode, prefill and batches of headwise beside other engines that are installed.

Usage: decoder_bench.py MODEL.gguf --out FILE.json [--folder FOLDER] [--threads 1] [--rounds 3] [--contexts 64,512]
       [--batches 8,16] [--ids 1000,40000] [--engines "a;b"]

Engines run in turns, one process each, case by case: each figure is written to FILE.json when it is measured, and a run
that was cut goes on where it stopped. FILE.md beside it is the table. Times are of the model alone: ids in, the next id
out. Two clocks run: the wall's, and the CPU time of the process; on a machine that others use, compare the latter, with
one thread. The roof of a token is the bytes of weights and of keys and values that it reads, over the bandwidth that as
many processes reach when they search a buffer of zeros. FOLDER is the same model as Hugging Face has it, in f32, which
transformers reads sooner. Engines that are not installed are said and left out."""
import argparse
import importlib.util
import json
import multiprocessing
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import time

STEPS = 24
SETTLE = 3  # steps that are not counted
WAYS = {"f32": ("f32", "exact"), "bf16": ("bf16", "exact"), "stored": ("stored", "exact"), "stored i8": ("stored", "i8")}
RIVALS = {"transformers f32": "transformers", "openvino f32": "openvino_genai", "llama.cpp, its file": "llama_cpp"}


class Clock:
    """Seconds of the wall and of the CPU since it was made, or since the last lap."""

    def __init__(self):
        self.lap()

    def lap(self):
        now = (time.perf_counter(), time.process_time())
        spent = tuple(n - p for n, p in zip(now, getattr(self, "past", now)))
        self.past = now
        return spent


def search(barrier, queue, size=256 << 20, times=6):
    buffer = b"\0" * size  # written, so that each page is one of its own
    buffer.find(b"\x01")
    barrier.wait()
    clock = Clock()
    for _ in range(times):
        buffer.find(b"\x01")
    queue.put((*clock.lap(), size * times))


def read_bandwidth(threads):
    barrier, queue = multiprocessing.Barrier(threads), multiprocessing.Queue()
    workers = [multiprocessing.Process(target=search, args=(barrier, queue)) for _ in range(threads)]
    for w in workers:
        w.start()
    parts = [queue.get() for _ in workers]
    for w in workers:
        w.join()
    size = sum(p[2] for p in parts)
    return {"wall": size / max(p[0] for p in parts), "cpu": size / statistics.mean(p[1] for p in parts)}


def ids_of(count, seed, low=1000, high=40000):
    draw = random.Random(seed)
    return [draw.randrange(low, high) for _ in range(count)]


class Headwise:
    def __init__(self, a, way):
        import headwise as hw
        dtype, rows = WAYS[way]
        kv = "bf16" if dtype == "bf16" else "f32"
        self.model = hw.Decoder(a.model, dtype=dtype, rows=rows, kv_dtype=kv, kv_mib=1024, ctx=hw.Context(threads=a.threads))
        c = self.model.config
        self.weights = c["weight_bytes"]
        self.token = 2 * c["layers"] * c["kv_heads"] * c["head_dim"] * (2 if kv == "bf16" else 4)

    def run(self, prompts, steps, heads=False):
        """Seconds until every prompt has a token, and of each step behind that."""
        clock, seen, first, pieces, early = Clock(), set(), None, 0, 0
        for piece in self.model.generate(prompts, max_tokens=steps + 1, ignore_end=True, stream=True, heads=heads):
            pieces += 1
            seen.add(piece.prompt)
            if len(seen) == len(prompts) and first is None:
                first, early = clock.lap(), pieces
        later = (pieces - early) * (steps + 1) / pieces  # steps: some tokens end inside a character and give no piece
        return first, tuple(s / later for s in clock.lap())


class Transformers:
    def __init__(self, a, _):
        import torch
        from transformers import AutoModelForCausalLM
        torch.set_num_threads(a.threads)
        folder, file = os.path.split(os.path.abspath(a.model))
        where = {"pretrained_model_name_or_path": a.folder} if a.folder else {"pretrained_model_name_or_path": folder, "gguf_file": file}
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()

    def run(self, prompts, steps):
        with self.torch.no_grad():
            clock = Clock()
            out = self.model(self.torch.tensor(prompts), use_cache=True, logits_to_keep=1)
            first = clock.lap()
            for _ in range(steps):
                ids = out.logits[:, -1].argmax(-1, keepdim=True)
                out = self.model(ids, past_key_values=out.past_key_values, use_cache=True)
            return first, tuple(s / steps for s in clock.lap())


class LlamaCpp:
    def __init__(self, a, _):
        import llama_cpp
        self.model = llama_cpp.Llama(a.model, n_threads=a.threads, n_threads_batch=a.threads, n_ctx=8192, verbose=False)

    def run(self, prompts, steps):
        if len(prompts) > 1:
            return None
        self.model.reset()
        clock = Clock()
        self.model.eval(prompts[0])
        first = clock.lap()
        for i in range(steps):
            self.model.eval([1000 + i])
        return first, tuple(s / steps for s in clock.lap())


class OpenVino:
    def __init__(self, a, _):
        import openvino_genai
        self.lib = openvino_genai
        self.model = openvino_genai.LLMPipeline(a.model, "CPU", INFERENCE_PRECISION_HINT="f32", INFERENCE_NUM_THREADS=a.threads,
                                                DYNAMIC_QUANTIZATION_GROUP_SIZE=0)

    def run(self, prompts, steps):
        if len(prompts) > 1:
            return None
        import numpy
        import openvino as ov
        spent = []
        backwards = [prompts[0][::-1]]  # prompts that were seen come out of a cache
        for tokens, given in ((1, backwards), (1, [ids_of(len(prompts[0]), 0)]), (steps + 1, prompts)):
            options = self.lib.GenerationConfig()
            options.max_new_tokens = options.min_new_tokens = tokens
            options.ignore_eos, options.do_sample = True, False
            clock = Clock()
            self.model.generate(ov.Tensor(numpy.array(given, dtype="int64")), options)
            spent.append(clock.lap())
        return spent[1], tuple((late - early) / steps for early, late in zip(*spent[1:]))


def engine_of(a):
    rivals = {"transformers f32": Transformers, "openvino f32": OpenVino, "llama.cpp, its file": LlamaCpp}
    return rivals[a.child](a, None) if a.child in rivals else Headwise(a, a.child.removeprefix("headwise "))


def cases_of(a, name):
    """What is measured together, under the names of its figures."""
    cases = {f"prefill {n};decode {n}": n for n in a.contexts}
    cases |= {f"batch {n}": n for n in a.batches}
    if name.startswith("headwise"):
        cases["decode 64, heads watched"] = 64
    return cases


def figures_of(engine, case, n, ids):
    if case.startswith("batch"):
        spent = engine.run([ids_of(64, i + 1, *ids) for i in range(n)], STEPS)
        return {case: [n / s for s in spent[1]] if spent else None}
    if case.endswith("watched"):
        return {case: [1 / s for s in engine.run([ids_of(n, n, *ids)], STEPS, heads=True)[1]]}
    first, step = engine.run([ids_of(n, n, *ids)], STEPS)
    return dict(zip(case.split(";"), ([n / s for s in first], [1 / s for s in step])))


def child(a):
    """One engine, one round: a line of JSON for each case that is wanted."""
    wanted, engine = json.loads(a.cases), engine_of(a)
    engine.run([ids_of(16, 0, *a.ids)], SETTLE)
    for case, n in wanted.items():
        facts = {key: getattr(engine, key, None) for key in ("weights", "token")}
        print(json.dumps({"figures": figures_of(engine, case, n, a.ids), **facts}), flush=True)
    return 0


class Results:
    """Figures in a file: written after each, read when a run goes on."""

    def __init__(self, path, about):
        self.path = pathlib.Path(path)
        self.all = json.loads(self.path.read_text()) if self.path.exists() else {"about": about, "rounds": []}
        for key in ("model", "threads"):
            if self.all["about"][key] != about[key]:
                sys.exit(f"{path} was measured with {key} {self.all['about'][key]}; give another file")

    def done(self, engine, number):
        return {case for r in self.all["rounds"] if r["engine"] == engine and r["round"] == number for case in r["figures"]}

    def add(self, engine, number, line):
        self.all["rounds"].append({"engine": engine, "round": number, **line})
        self.save()

    def save(self):
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.all, indent=1) + "\n")
        new.replace(self.path)


def measure(a, name, number, results):
    done = results.done(name, number)
    wanted = {c: n for c, n in cases_of(a, name).items() if not done.issuperset(c.split(";"))}
    if not wanted:
        return
    words = [sys.executable, __file__, a.model, "--threads", str(a.threads), "--child", name, "--cases", json.dumps(wanted),
             "--ids", ",".join(map(str, a.ids))]
    words += ["--out", a.out] + (["--folder", a.folder] if a.folder else [])
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith('{"figures"'):
                results.add(name, number, json.loads(line))
                print(f"round {number + 1}, {name}: {', '.join(json.loads(line)['figures'])}", flush=True)
    if process.returncode:
        print(f"{name} ended with {process.returncode}; what it had measured stays", flush=True)


def table(all_results):
    """A row for each engine and case: the median of both clocks, the spread, the roof's share, the base's multiple."""
    seen, facts = {}, {}
    for r in all_results["rounds"]:
        facts[r["engine"]] = r
        for case, figure in r["figures"].items():
            if figure:
                seen.setdefault((r["engine"], case), []).append(figure)
    middle = {key: [statistics.median(clock) for clock in zip(*figures)] for key, figures in seen.items()}
    rows = []
    for (engine, case), figures in seen.items():
        wall, cpu = middle[engine, case]
        row = {"engine": engine, "case": case, "wall": wall, "cpu": cpu, "rounds": len(figures),
               "lowest": min(f[1] for f in figures), "highest": max(f[1] for f in figures)}
        fact, words = facts[engine], case.replace(",", "").split()
        if words[0] == "decode" and fact["weights"]:
            row["share of the roof"] = cpu * (fact["weights"] + fact["token"] * int(words[1])) / all_results["bandwidth"]["cpu"]
        for base in {other for other, _ in middle if other != engine} if engine.startswith("headwise") else ():
            if (base, case) in middle and not base.startswith("headwise"):
                row.setdefault("times", {})[base] = cpu / middle[base, case][1]
        rows.append(row)
    return rows


def page(all_results):
    about, bandwidth = all_results["about"], all_results["bandwidth"]
    lines = ["# Language models on the CPU: measured", "",
             f"{about['model']}, {about['threads']} thread(s) on both sides; {about['machine']}; {about['engines']}.", "",
             "Tokens in a second of CPU time; in brackets the least and the most of the rounds, then tokens in a second of the wall. "
             f"Read bandwidth in CPU time, the best of the rounds: {bandwidth['cpu'] / 1e9:.1f} GB/s.", "",
             "| case | engine | tokens/s of CPU | wall | of the roof | x others |", "| --- | --- | --- | --- | --- | --- |"]
    for r in sorted(table(all_results), key=lambda r: (r["case"].split()[0], int(r["case"].replace(",", "").split()[1]), r["case"])):
        share = f"{100 * r['share of the roof']:.0f} %" if "share of the roof" in r else ""
        others = ", ".join(f"{x:.2f} x {name}" for name, x in sorted(r.get("times", {}).items()))
        lines.append(f"| {r['case']} | {r['engine']} | {r['cpu']:.1f} ({r['lowest']:.1f} to {r['highest']:.1f}) | {r['wall']:.1f} | {share} | {others} |")
    return "\n".join(lines) + "\n"


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else ():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def versions():
    import importlib.metadata
    names = {"transformers": "transformers", "torch": "torch", "openvino-genai": "openvino_genai", "llama-cpp-python": "llama_cpp"}
    return ", ".join(f"{package} {importlib.metadata.version(package)}" for package, module in names.items() if importlib.util.find_spec(module))


def engines_of(a):
    if a.engines:
        return a.engines.split(";")
    engines = [f"headwise {w}" for w in WAYS]
    for name, package in RIVALS.items():
        if importlib.util.find_spec(package):
            engines.append(name)
        else:
            print(f"{name}: not installed, not measured")
    return engines


def main():
    parser = argparse.ArgumentParser()
    numbers = lambda text: [int(n) for n in text.split(",") if n]  # noqa: E731
    parser.add_argument("model")
    parser.add_argument("--out", required=True)
    parser.add_argument("--folder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contexts", type=numbers, default=[64, 512])
    parser.add_argument("--batches", type=numbers, default=[8, 16])
    parser.add_argument("--ids", type=numbers, default=[1000, 40000], help="prompts are drawn from ids from the first to below the second")
    parser.add_argument("--engines", help="of: headwise f32|bf16|stored|stored i8, " + ", ".join(RIVALS))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--cases", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.child:
        return child(a)
    engines = engines_of(a)
    machine = f"{cpu_name()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.0f} at the start"
    results = Results(a.out, {"model": os.path.basename(a.model), "threads": a.threads, "machine": machine, "engines": versions()})
    for number in range(a.rounds):
        seen, before = read_bandwidth(a.threads), results.all.get("bandwidth", {})
        results.all["bandwidth"] = {clock: max(rate, before.get(clock, 0)) for clock, rate in seen.items()}
        results.save()
        for name in engines:
            measure(a, name, number, results)
            pathlib.Path(a.out).with_suffix(".md").write_text(page(results.all))
    print(page(results.all), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
