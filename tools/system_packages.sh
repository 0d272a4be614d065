#!/bin/sh
# Install the Debian packages that the tests use; where we may not, say what is missing and go on:
# the tests that need them are skipped with the reason.
set -eu
needed=""
lean=""
command -v g++ >/dev/null || needed="$needed g++"
# Artifacts for boards are linked by it.
command -v aarch64-linux-gnu-g++ >/dev/null || lean="$lean g++-aarch64-linux-gnu"
# OpenCL on the CPU, so that the OpenCL tests run without a GPU. Another driver does as well.
ls /etc/OpenCL/vendors/*.icd >/dev/null 2>&1 || needed="$needed pocl-opencl-icd"
ls /usr/lib/*/libOpenCL.so.1 >/dev/null 2>&1 || needed="$needed ocl-icd-libopencl1"
# A browser for the page of a report; without what Debian recommends beside it, printers and all.
for browser in chromium chromium-browser google-chrome; do
    command -v "$browser" >/dev/null && break
done || lean="$lean chromium"
[ -z "$needed$lean" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2086  # a list of words
    (apt-get update -qq &&
        { [ -z "$needed" ] || apt-get install -y -qq $needed; } &&
        { [ -z "$lean" ] || apt-get install -y -qq --no-install-recommends $lean; }) ||
        echo "could not install$needed $lean; the tests that need them are skipped" >&2
else
    echo "some tests need packages that are not here; run: sudo apt-get install$needed $lean" >&2
fi
