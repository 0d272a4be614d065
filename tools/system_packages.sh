#!/bin/sh
# Install the Debian packages that the tests use; where we may not, say what is missing and go on:
# the tests that need them are skipped with the reason.
set -eu
needed=""
command -v g++ >/dev/null || needed="$needed g++"
[ -z "$needed" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    # shellcheck disable=SC2086  # a list of words
    apt-get install -y -qq $needed
else
    echo "some tests need packages that are not here; run: sudo apt-get install$needed" >&2
fi
