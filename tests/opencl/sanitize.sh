#!/bin/sh
# The runtime under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer.
#
#   tests/opencl/sanitize.sh BUILD_DIR [address|thread]
#
# PYTHON names the interpreter (python3). Everything but the runtime is as shipped, without
# instrumentation; what that brings up is in the suppression files beside this one, with reasons.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$(mkdir -p "$1" && cd "$1" && pwd)
python=${PYTHON:-python3}
runs=${2:-address thread}

# What runs in this process; the rest starts processes, or is about files.
tests="attributes kernels memory host_view streams timer profiling threads modules errors
embedded_programs leaks in_flight fork relax_vm command_buffers"

# Leaks are test_leaks.py's: it counts objects and bytes. LeakSanitizer would report the interpreter
# and each compiler it starts, which leave their memory to the end of the process.
export ASAN_OPTIONS="detect_leaks=0:malloc_context_size=20"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
# die_after_fork: the workers are forks of a process with one thread.
export TSAN_OPTIONS="suppressions=$here/tsan.supp:ignore_noninstrumented_modules=1:\
die_after_fork=0:halt_on_error=0:exitcode=66:history_size=4:print_suppressions=1"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

cd "$root"
for sanitizer in $runs; do
  cmake -S "$root" -B "$build/$sanitizer" -DTVM_EDGE_SANITIZE="$sanitizer" \
    -DPython3_EXECUTABLE="$(command -v "$python")" >"$build/$sanitizer.cmake.log" 2>&1
  cmake --build "$build/$sanitizer" -j "$(nproc)" >>"$build/$sanitizer.cmake.log" 2>&1
  case $sanitizer in
    # libstdc++ early, or AddressSanitizer finds no __cxa_throw to intercept.
    address) preload="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so.6)" ;;
    thread) preload=$(gcc -print-file-name=libtsan.so) ;;
  esac
  files=$(for test in $tests; do echo "$here/test_$test.py"; done)
  echo "== $sanitizer"
  # setarch: ThreadSanitizer's shadow does not fit all layouts of a randomised address space.
  # shellcheck disable=SC2086
  TVM_EDGE_RUNTIME=$build/$sanitizer/libtvm_edge_runtime.so.0 TVM_EDGE_TEST_SANITIZE=$sanitizer \
    LD_PRELOAD=$preload setarch -R "$python" -X faulthandler -m pytest -q --capture=sys \
    -p no:cacheprovider -c /dev/null \
    --rootdir "$root" --confcutdir "$here" $files
done
