#!/bin/sh
# Makes the wheel with the program inside and its tag, and the sdist, into a folder (dist). Usage: make_wheel.sh [FOLDER [MACHINE]]
# MACHINE: aarch64 or x86_64; another than this one is built by Debian's cross compiler against Debian's packages of it.
# WHEEL_SETTINGS: more settings of the build, one a word.
set -eu
cd "$(dirname "$0")/../.."
out=${1:-dist}
machine=${2:-$(uname -m)}
python=$PWD/.venv/bin/python
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT
settings="build-dir=build/wheel-$machine cmake.define.HEADWISE_CLI=ON build.targets=headwise_python;headwise_cli"
prefix='' archive='' libraries='' strip=--strip
if [ "$machine" != "$(uname -m)" ]; then
  case $machine in
    aarch64) debian=arm64 ;;
    x86_64) debian=amd64 ;;
    *) echo "make_wheel: there is no machine $machine; give aarch64 or x86_64" >&2 && exit 2 ;;
  esac
  root=$PWD/build/root-$machine
  tools/wheel/foreign_root.sh $debian "$root" python3 libpython3-dev libicu-dev zlib1g-dev libfmt-dev libcli11-dev \
    nlohmann-json3-dev libstdc++6
  include=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  [ -d "$root/usr/include/$include" ] || { echo "make_wheel: .venv holds $include, which Debian has not for $machine" >&2 && exit 1; }
  # Where pyconfig.h looks for the machine's own.
  ln -sfn "../$machine-linux-gnu" "$root/usr/include/$include/$machine-linux-gnu"
  prefix=$machine-linux-gnu- archive=$root/usr/lib/$machine-linux-gnu/libicudata.a
  libraries=:$root/usr/lib/$machine-linux-gnu strip=''  # cmake has stripped what it built, Debian the rest
  settings="$settings cmake.define.CMAKE_TOOLCHAIN_FILE=$PWD/cmake/$machine.cmake cmake.define.CMAKE_FIND_ROOT_PATH=$root"
  settings="$settings cmake.define.CMAKE_LIBRARY_ARCHITECTURE=$machine-linux-gnu"
  settings="$settings cmake.define.Python_INCLUDE_DIR=$root/usr/include/$include"
  export _PYTHON_HOST_PLATFORM="linux-$machine"
fi
# shellcheck disable=SC2086
"$python" -c '
import sys
import scikit_build_core.build as b
b.build_wheel(sys.argv[1], dict(word.split("=", 1) for word in sys.argv[2:]))
' "$raw" $settings ${WHEEL_SETTINGS:-} > "$raw/log" 2>&1 || { cat "$raw/log" >&2; exit 1; }
mkdir -p "$out" "$raw/icu"
tools/wheel/trim_icu.sh "$raw/icu" $prefix $archive
PATH="$PWD/.venv/bin:$PATH" LD_LIBRARY_PATH="$raw/icu$libraries" "$python" -m auditwheel repair $strip -w "$out" \
  "$raw"/headwise-*.whl > "$raw/log" 2>&1 || { cat "$raw/log" >&2; exit 1; }
"$python" -c "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])" "$out" > /dev/null
ls "$out"
