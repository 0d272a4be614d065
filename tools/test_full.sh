#!/bin/sh
# Run the full-size tests and write their dated outcome to tests/test-full.txt, which is committed.
# Usage: test_full.sh PYTHON
set -u
python=$1
out=tests/test-full.txt
"$python" -c 'import json; from benchmarks.common.machine import describe_machine
print("make test-full, the full-size tests of it"); print(json.dumps(describe_machine(), indent=2))' > "$out"
# As kernels are built for use; make test has LLVM leave optimisation out.
export TVM_EDGE_TEST_OPTIMISED=1
status=0

run() { # POCL'S FLAGS, TESTS
    POCL_EXTRA_BUILD_FLAGS=$1 "$python" -m pytest -m "$2" -n 2 -v --tb=short --no-header -p no:cacheprovider \
        >> "$out" 2>&1 || status=$?
}

run "" "full and not as_written"
run "-cl-opt-disable" "full and as_written"
cat "$out"
exit $status
