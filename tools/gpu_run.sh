#!/bin/sh
# On a machine with an NVIDIA GPU: builds, checks, measures, and writes one JSON log.
# Needs nvcc, CMake, ninja, a C++20 compiler and a Python with torch; with nanobind the Python module is checked too.
# Stages can be chosen:
#   tools/gpu_run.sh [build] [selftest] [module] [laws] [tables]        (default: all)
#   HEADWISE_LOG=file.json   where the log goes (default: benchmarks/results/gpu-<name>.json)
#   HEADWISE_QUICK=--quick   fewer calls in the tables
set -eu
cd "$(dirname "$0")/.."
stages="${*:-build selftest module laws tables}"
build="${HEADWISE_BUILD:-$PWD/build/gpu}"
export HEADWISE_BUILD="$build" PYTHONUNBUFFERED=1
parts="$(mktemp -d)"
trap 'rm -rf "$parts"' EXIT
failed=0

for stage in $stages; do
  case "$stage" in
    build)
      # exclude-libs: on a host that has libstdc++ as an archive alone, two copies must not meet in torch's process.
      begin=$(date +%s) python=OFF
      if python3 -c "import nanobind" 2> /dev/null; then python=ON; fi
      cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DHEADWISE_CUDA=ON \
        -DHEADWISE_CLI=OFF -DHEADWISE_INSTALL=OFF -DHEADWISE_PYTHON=$python -DPython_EXECUTABLE="$(command -v python3)" -DCMAKE_SHARED_LINKER_FLAGS=-Wl,--exclude-libs,ALL \
        > "$parts/build.log" 2>&1 &&
        ninja -C "$build" headwise_library headwise_cuda $([ $python = OFF ] || echo headwise_python) >> "$parts/build.log" 2>&1 ||
        { tail -n 40 "$parts/build.log"; exit 1; }
      echo "built in $(($(date +%s) - begin)) s on $(nproc) CPUs"
      if command -v cuobjdump > /dev/null; then
        cuobjdump --dump-sass "$build/libheadwise_cuda.so" | python3 tools/check_sass.py || failed=1
      fi ;;
    selftest | module | laws) python3 tests/gpu/check.py "$stage" --json "$parts/$stage.json" || failed=1 ;;
    tables) python3 benchmarks/gpu/gpu_bench.py ${HEADWISE_QUICK:-} --json "$parts/tables.json" || failed=1 ;;
    *) echo "gpu_run: no stage '$stage'; there are build, selftest, module, laws, tables" >&2; exit 2 ;;
  esac
done

HEADWISE_PARTS="$parts" python3 - <<'END'
import json, os, pathlib, re, subprocess
parts = pathlib.Path(os.environ["HEADWISE_PARTS"])
log = {f.stem: json.loads(f.read_text()) for f in sorted(parts.glob("*.json"))}
if log:
    git = subprocess.run(["git", "rev-parse", "HEAD"], text=True, capture_output=True).stdout.strip()
    nvcc = subprocess.run(["nvcc", "--version"], text=True, capture_output=True).stdout.strip().splitlines()
    log = {"commit": os.environ.get("HEADWISE_COMMIT", git), "nvcc": nvcc[-1] if nvcc else "", **log}
    device = next(v["device"] for v in log.values() if isinstance(v, dict) and "device" in v)
    name = re.sub(r"\W+", "-", device.split(":", 1)[1].split(",")[0].strip().lower())
    file = pathlib.Path(os.environ.get("HEADWISE_LOG") or f"benchmarks/results/gpu-{name}.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(log, indent=1) + "\n")
    print(f"log: {file}")
    subprocess.run(["python3", "benchmarks/gpu/gpu_report.py", str(file)], check=True)  # its tables, beside it
END
exit $failed
