#!/bin/sh
# Run the full-size tests and write their dated outcome to tests/test-full.txt, which is committed.
# Usage: test_full.sh PYTHON
set -u
python=$1
out=tests/test-full.txt
"$python" -c 'import json; from benchmarks.machine import describe_machine
print("make test-full, the full-size tests of it"); print(json.dumps(describe_machine(), indent=2))' > "$out"
# As kernels are built for use; make test has pocl and LLVM leave optimisation out.
export POCL_EXTRA_BUILD_FLAGS=
export TVM_EDGE_TEST_OPTIMISED=1
status=0
"$python" -m pytest -m full -n 2 -v --tb=short --no-header -p no:cacheprovider >> "$out" 2>&1 || status=$?
cat "$out"
exit $status
