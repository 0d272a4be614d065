#!/bin/sh
# Write requirements/py3*.txt: what tests, documentation and benchmarks install, for each Python.
# Usage: lock.sh UV
set -eu
for minor in 10 11 12 13; do
    "$1" pip compile --quiet --upgrade --no-annotate --custom-compile-command "make lock" \
        --python-version "3.$minor" --python-platform x86_64-manylinux_2_28 \
        --extra test --extra docs --extra bench --extra cross \
        --output-file "requirements/py3$minor.txt" pyproject.toml requirements/tools.in
done
