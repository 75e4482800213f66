#!/bin/sh
# Builds the named targets of the release preset, the Python module included; says nothing unless it fails.
# Usage: tools/build.sh TARGET...
set -eu
cd "$(dirname "$0")/.."
log=$(mktemp)
{ cmake --preset release -DHEADWISE_PYTHON=ON -DPython_EXECUTABLE="$PWD/.venv/bin/python" &&
  cmake --build --preset release --target "$@"; } >"$log" 2>&1 || {
  cat "$log" >&2
  rm -f "$log"
  exit 1
}
rm -f "$log"
