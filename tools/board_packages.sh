#!/bin/sh
# Install the Debian packages that the emulated board of tests/board needs; where we may not, say
# what is missing and go on: its tests are skipped with the reason.
set -eu
needed=""
command -v qemu-aarch64-static >/dev/null || needed="$needed qemu-user-static"
command -v aarch64-linux-gnu-g++ >/dev/null || needed="$needed g++-aarch64-linux-gnu"
command -v cmake >/dev/null || needed="$needed cmake"
command -v ninja >/dev/null || needed="$needed ninja-build"
[ -z "$needed" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2086  # a list of words
    (apt-get update -qq && apt-get install -y -qq --no-install-recommends $needed) ||
        echo "could not install$needed; the tests of the board are skipped" >&2
else
    echo "the board needs packages that are not here; run: sudo apt-get install$needed" >&2
fi
