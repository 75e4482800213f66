#!/usr/bin/env python3
"""17 of 48: an English-German encoder of 6 layers of 8 heads learns L0 gates on Multi30K; BLEU lost, and which roles remain.

Usage: gates_proof.py TRANSLATE GATES HEADWISE DATA --out FOLDER [--heads 17] [--steps 2000] [--gate-steps 1200] [--train-seconds 200] [--smoke]
       gates_proof.py --score FOLDER DATA
TRANSLATE and GATES are headwise_translate and headwise_translate_gates, HEADWISE is `headwise`; threads are those of HEADWISE_THREADS. The
translator of FOLDER/model is trained first, unless it is there. With --train-seconds and --gate-seconds the steps are as many as a first
few say will fit. FOLDER keeps whole.hyp, gated.hyp and result.json; --score adds BLEU by sacrebleu, which may be elsewhere."""
# SPDX-License-Identifier: Apache-2.0
import argparse
import gzip
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

TEST = "test_2016_flickr"
SMALL = ["dim=32", "feed=64", "heads=mha:heads=8,dim=4", "depth=1", "source_depth=6", "bpe=400", "rows=4", "warm_up=5"]
SIZES = ["dim=256", "feed=512", "heads=mha:heads=8,dim=32", "depth=3", "source_depth=6", "bpe=5000", "dropout=0.12", "rows=96", "warm_up=300"]


def read(data: pathlib.Path, name: str) -> list[str]:
    return gzip.decompress((data / f"{name}.gz").read_bytes()).decode().splitlines()


def run(*words) -> str:
    return subprocess.run([str(w) for w in words], check=True, stdout=subprocess.PIPE, text=True).stdout


def prove(asked, room: pathlib.Path) -> None:
    out, model = asked.out, asked.out / "model"
    for language in ("en", "de"):
        for part in ("train", "val"):
            (room / f"{part}.{language}").write_text("\n".join(read(asked.data, f"{part}.{language}")[: asked.pairs]) + "\n")
    (room / "test.en").write_text("\n".join(read(asked.data, f"{TEST}.en")[: asked.tests]) + "\n")
    sizes = SMALL if asked.smoke else SIZES
    result = {"data": f"multi30k en-de, {TEST}", "sizes": sizes, "seed": 1, "heads": 48}

    def learn(steps, *words):
        return run(asked.translate, room, *sizes, "rate=0.0012", "decay=linear", f"steps={steps}", "test=0", *words)

    if not model.is_dir():
        begun = time.monotonic()
        if asked.train_seconds:
            said = json.loads(learn(100000, "seconds=15").splitlines()[-1])
            asked.steps = max(400, int(asked.train_seconds * said["steps"] / said["train_seconds"]))
        result["translator"] = json.loads(learn(asked.steps, f"model={model}").splitlines()[-1])
        print(f"trained in {time.monotonic() - begun:.0f} s", flush=True)

    def gates(steps, *words):
        return run(asked.gates, room, model, f"heads={asked.heads}", "price=0.002", f"rate={asked.rate}", f"steps={steps}", *words)

    steps = asked.gate_steps
    if asked.gate_seconds:  # as many as 40 of them say will fit
        steps = max(100, int(40 * asked.gate_seconds / json.loads(gates(40).splitlines()[-1])["seconds"]))
    pruned = out / "pruned"
    shutil.rmtree(pruned, ignore_errors=True)
    result["gates"] = json.loads(gates(steps, f"model={pruned}").splitlines()[-1])
    for name in ("whole.hyp", "gated.hyp"):
        shutil.copy(room / name, out / name)
    print(json.dumps(result["gates"]), flush=True)
    for name, folder in (("whole", model), ("pruned", pruned)):
        survey = out / f"survey-{name}"
        run(asked.headwise, "survey", folder, "--part", "source", "--texts", room / "test.en", "--most", 300, "--out", survey)
        heads = json.loads((survey / "survey.json").read_text())["heads"]
        result[f"roles_{name}"] = [[h["layer"], h["head"], h["roles"]] for h in heads]
        (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")


def score(folder: pathlib.Path, data: pathlib.Path) -> None:
    import sacrebleu

    result = json.loads((folder / "result.json").read_text())
    truth = read(data, f"{TEST}.de")
    for name in ("whole", "gated"):
        found = (folder / f"{name}.hyp").read_text().split("\n")
        metric = sacrebleu.BLEU()
        result[f"bleu_{name}"] = round(metric.corpus_score(found[: len(truth)], [truth]).score, 2)
        result["signature"] = str(metric.get_signature())
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(result["bleu_whole"], result["bleu_gated"])


def main() -> None:
    if sys.argv[1:2] == ["--score"]:
        return score(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("translate", "gates", "headwise", "data"):
        words.add_argument(name, type=pathlib.Path)
    words.add_argument("--out", type=pathlib.Path, required=True)
    words.add_argument("--heads", type=int, default=17)
    words.add_argument("--steps", type=int, default=2000)
    words.add_argument("--gate-steps", type=int, default=1200)
    words.add_argument("--train-seconds", type=float, default=0)
    words.add_argument("--gate-seconds", type=float, default=0)
    words.add_argument("--rate", type=float, default=3e-4, help="of the weights while gates are learnt")
    words.add_argument("--smoke", action="store_true", help="a tiny model of a few pairs, only to show that it runs")
    asked = words.parse_args()
    asked.pairs, asked.tests = (200, 20) if asked.smoke else (None, None)
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as held:
        prove(asked, pathlib.Path(held))


if __name__ == "__main__":
    main()
