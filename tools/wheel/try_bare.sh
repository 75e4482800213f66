#!/bin/sh
# Installs a wheel of this machine in a Debian that holds Python and nothing else, and runs its selftest and its program
# there. Only root may change the root. NumPy and nanobind-backend come from the index. Usage: try_bare.sh WHEEL
set -eu
wheel=$(realpath "$1")
cd "$(dirname "$0")/../.."
root=$PWD/build/root-bare
[ "$(id -u)" = 0 ] || { echo "try_bare: only root may change the root; run it as root, or in a container" >&2 && exit 1; }
tools/wheel/foreign_root.sh "$(dpkg --print-architecture)" "$root" python3 python3-venv
[ -e "$root/dev/null" ] || { mkdir -p "$root/dev" && mknod -m 666 "$root/dev/null" c 1 3; }
rm -rf "$root/tmp"
mkdir -p "$root/tmp/wheels"
.venv/bin/python -m pip download --quiet --only-binary=:all: --dest "$root/tmp/wheels" "$wheel"
run() { env -i PATH=/usr/bin:/usr/sbin HOME=/tmp chroot "$root" "$@"; }
run /usr/bin/python3 -m venv /tmp/venv
run /tmp/venv/bin/python -m pip install --quiet --no-index --find-links /tmp/wheels "/tmp/wheels/${wheel##*/}"
run /tmp/venv/bin/python -m headwise.selftest
run /tmp/venv/bin/headwise --version
rm -rf "$root/tmp"
