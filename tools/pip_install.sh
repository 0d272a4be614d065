#!/bin/sh
# pip install at the versions that the lock in requirements/ has for this Python.
# NEWEST=1 takes the newest releases that pyproject.toml allows instead.
# Usage: [NEWEST=1] pip_install.sh PYTHON WHAT...
set -eu
python=$1
shift
if [ -n "${NEWEST:-}" ]; then
    "$python" -m pip install --quiet --upgrade pip
    exec "$python" -m pip install --quiet --upgrade --upgrade-strategy eager "$@"
fi
lock=requirements/$("$python" -c 'import sys; print("py%d%d.txt" % sys.version_info[:2])')
"$python" -m pip install --quiet --constraint "$lock" pip # a new environment has another one
exec "$python" -m pip install --quiet --constraint "$lock" --build-constraint "$lock" "$@"
