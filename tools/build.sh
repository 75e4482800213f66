#!/bin/sh
# Builds the named targets of the release preset, with the Python module where .venv is; says nothing unless it is
# the first time or fails.
# Usage: tools/build.sh TARGET...
set -eu
cd "$(dirname "$0")/.."
configure() {
  # Tests are part of the release build where GoogleTest is: who only wants the program need not have it.
  tests=OFF
  pkg-config --exists gtest && tests=ON
  if [ -x .venv/bin/python ]; then
    cmake --preset release -DHEADWISE_TESTS=$tests -DHEADWISE_PYTHON=ON -DPython_EXECUTABLE="$PWD/.venv/bin/python"
  else
    cmake --preset release -DHEADWISE_TESTS=$tests
  fi
}
[ -e build/release/.ninja_log ] || echo "building for the first time: some 5 to 10 minutes on two cores"
log=$(mktemp)
{ configure && cmake --build --preset release --target "$@"; } >"$log" 2>&1 || {
  cat "$log" >&2
  rm -f "$log"
  exit 1
}
rm -f "$log"
