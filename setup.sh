#!/bin/sh
# Installs what is missing, by package name, and says nothing when nothing is. Usage: ./setup.sh [demo | python]
# Debian packages of apt.txt; "demo": also .venv with requirements.txt; "python": also tests/requirements.txt, with torch.
set -eu
cd "$(dirname "$0")"

arch=$(dpkg --print-architecture)
wanted=$(sed -e 's/#.*//' -e "s/ *\[$arch\]//" -e '/\[/d' -e '/^ *$/d' apt.txt)
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

case ${1:-} in
  '') lists= ;;
  demo) lists=requirements.txt ;;
  python) lists="requirements.txt tests/requirements.txt" ;;
  *) echo "setup: got \"$1\"; give nothing, demo or python" >&2 && exit 2 ;;
esac
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
