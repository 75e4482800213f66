#!/bin/sh
# Unpacks Debian packages of another architecture, with what they need, into a folder: headers and libraries to link
# against, and programs for qemu-user. Nothing is installed, and no right of root is asked. Usage: foreign_root.sh ARCH FOLDER PACKAGE...
set -eu
arch=$1 root=$2
shift 2
[ "$(cat "$root/packages" 2>/dev/null || true)" != "$*" ] || exit 0
rm -rf "$root"
mkdir -p "$root/apt/state/lists/partial" "$root/apt/cache/archives/partial"
apt=$(cd "$root/apt" && pwd)
. /etc/os-release
: > "$apt/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $VERSION_CODENAME main" > "$apt/sources"
get() {
  apt-get -qq -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o Dir::State="$apt/state" \
    -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" -o Dir::Etc::sourcelist="$apt/sources" \
    -o Dir::Etc::sourceparts=- -o APT::Sandbox::User= -o Debug::NoLocking=1 "$@"
}
get update
get -y --no-install-recommends --download-only install "$@" > "$apt/log" 2>&1 || { cat "$apt/log" >&2; exit 1; }
for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
rm -rf "$apt"
echo "$*" > "$root/packages"
