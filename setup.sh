#!/bin/sh
# Installs what is missing, by package name, and says nothing when nothing is. Usage: ./setup.sh SECTION...
# Sections are those of apt.txt; "python" also makes .venv with requirements.txt, "torch" is
# tests/requirements.txt in it, "docs" site/requirements.txt, and "wheel" python/wheel.txt.
# SETUP_LIST=1: prints the packages instead.
set -eu
cd "$(dirname "$0")"

[ $# -gt 0 ] || set -- build
wanted= lists=
arch=$(dpkg --print-architecture)
for section; do
  case $section in
    python) lists="$lists requirements.txt" ;;
    torch) lists="$lists tests/requirements.txt" && continue ;;
    docs) lists="$lists site/requirements.txt" && continue ;;
    wheel) lists="$lists python/wheel.txt" && continue ;;
  esac
  grep -qx "# section $section" apt.txt || {
    echo "setup: there is no section \"$section\"; there are:" "$(sed -n 's/^# section //p' apt.txt | tr '\n' ' ')torch docs wheel" >&2
    exit 2
  }
  wanted="$wanted $(sed -n "/^# section $section\$/,/^# section/p" apt.txt |
    sed -e 's/#.*//' -e "s/ *\[$arch\]//" -e '/\[/d' -e '/^ *$/d' | tr '\n' ' ')"
done
if [ -n "${SETUP_LIST:-}" ]; then
  echo $wanted $lists
  exit 0
fi
missing=
for package in $wanted; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing="$missing $package"
done
if [ -n "$missing" ]; then
  if [ "$(id -u)" != 0 ]; then
    echo "headwise needs packages that only root can install. Run this, then the same command again:"
    echo "sudo apt-get install --no-install-recommends$missing"
    exit 1
  fi
  echo "installing:$missing"
  log=$(mktemp)
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086
  { apt-get -qq update && apt-get -qq -y install --no-install-recommends $missing; } >"$log" 2>&1 || {
    cat "$log" >&2
    echo "setup: apt-get failed; its words are above" >&2
    exit 1
  }
  rm -f "$log"
fi

for list in $lists; do
  stamp=.venv/installed/$list
  cmp -s "$list" "$stamp" && continue
  echo "installing into .venv what $list names"
  [ -x .venv/bin/python ] || /usr/bin/python3 -m venv .venv
  log=$(mktemp)
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$list" >"$log" 2>&1 || {
    cat "$log" >&2
    echo "setup: pip failed; its words are above" >&2
    exit 1
  }
  rm -f "$log"
  mkdir -p "$(dirname "$stamp")"
  cp "$list" "$stamp"
done
