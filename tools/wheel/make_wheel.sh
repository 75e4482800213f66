#!/bin/sh
# Makes the wheel with the program inside and its tag, and the sdist, into a folder (dist). Usage: make_wheel.sh [FOLDER]
# WHEEL_SETTINGS: more settings of the build, one a word.
set -eu
cd "$(dirname "$0")/../.."
out=${1:-dist}
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT
settings="--config-settings=build-dir=build/wheel --config-settings=cmake.define.HEADWISE_CLI=ON"
for setting in ${WHEEL_SETTINGS:-}; do settings="$settings --config-settings=$setting"; done
# shellcheck disable=SC2086
.venv/bin/python -m pip wheel --quiet --no-build-isolation --no-deps $settings \
  "--config-settings=build.targets=headwise_python;headwise_cli" -w "$raw" .
mkdir -p "$out" "$raw/icu"
tools/wheel/trim_icu.sh "$raw/icu"
PATH="$PWD/.venv/bin:$PATH" LD_LIBRARY_PATH="$raw/icu" .venv/bin/python -m auditwheel repair --strip -w "$out" \
  "$raw"/headwise-*.whl > "$raw/log" 2>&1 || { cat "$raw/log" >&2; exit 1; }
.venv/bin/python -c "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])" "$out" > /dev/null
ls "$out"
