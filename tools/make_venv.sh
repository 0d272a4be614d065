#!/bin/sh
# Make a virtual environment, also where Debian's python3 comes without venv.
# Usage: [PYTHON=python3.12] make_venv.sh FOLDER
set -eu
folder=$1
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'; then
    echo "tvm-edge needs Python 3.10 to 3.13, and $python is $("$python" --version 2>&1);" >&2
    echo "name another one: make PYTHON=python3.12" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        apt-get install -y -qq python3-venv
    else
        echo "$python comes without the venv module; run: sudo apt-get install python3-venv" >&2
        exit 1
    fi
fi
"$python" -m venv "$folder"
