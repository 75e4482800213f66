#!/bin/sh
# Runs the selftest of a wheel of another machine under qemu-user, with Debian's Python of that machine. Usage: try_wheel.sh WHEEL
# What make_wheel.sh unpacked has that Python; NumPy and nanobind-backend come from the index.
set -eu
cd "$(dirname "$0")/../.."
wheel=$1
machine=$(echo "$wheel" | sed -n 's/.*_\(aarch64\|x86_64\)\.whl$/\1/p')
root=$PWD/build/root-$machine
version=$(cd "$root/usr/bin" && ls python3.[0-9]* | sed -n 's/^python\(3\.[0-9]*\)$/\1/p')
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
platforms=$(seq -f "--platform manylinux_2_%.0f_$machine" 17 40)
# shellcheck disable=SC2086
.venv/bin/python -m pip install --quiet --no-compile --target "$room" --only-binary=:all: --python-version "$version" \
  $platforms --platform manylinux2014_"$machine" "$wheel"
export PYTHONPATH="$room" PYTHONHOME="$root/usr" PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1
run() { "qemu-$machine-static" -cpu max -L "$root" "$@"; }
run "$root/usr/bin/python$version" -m headwise.selftest
[ ! -f "$room/headwise/bin/headwise" ] || run "$room/headwise/bin/headwise" --version
