"""The OpenCL runtime under ThreadSanitizer, from threads of a C++ program.

Python and LLVM's kernels are not instrumented; `sanitize.sh` runs the tests in Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "tvm_edge" / "opencl" / "csrc"


def build(target: Path, *more: str) -> None:
    """Compile the driver and the runtime's files to one program."""
    packages = [Path(module.__file__ or "").parent for module in (tvm, tvm_ffi)]
    includes = [packages[0] / "include", packages[0] / "src" / "runtime", packages[1] / "include"]
    folders = [package / "lib" for package in packages]
    command = ["g++", "-std=c++17", "-pthread", "-I", str(SOURCES)]
    command += [part for folder in includes for part in ("-isystem", str(folder))]
    command += [*more, "-o", str(target), str(HERE / "threads_driver.cc")]
    command += [str(path) for path in sorted(SOURCES.glob("*.cc"))]
    command += [f"-L{folder}" for folder in folders]
    command += [f"-Wl,-rpath,{folder}" for folder in folders]
    command += ["-ltvm_runtime", "-ltvm_ffi", "-ldl"]
    subprocess.run(command, check=True)


@pytest.mark.full
def test_threads_of_a_program_under_thread_sanitizer(device: Any, tmp_path: Path) -> None:
    if not (shutil.which("g++") and shutil.which("setarch")):
        pytest.skip("g++ and setarch are needed")
    program = tmp_path / "driver"
    build(program, "-fsanitize=thread", "-g", "-O1", "-fno-omit-frame-pointer")
    options = f"suppressions={HERE / 'tsan.supp'}:ignore_noninstrumented_modules=1:exitcode=66"
    # setarch: ThreadSanitizer's shadow does not fit all layouts of a randomised address space.
    done = subprocess.run(
        ["setarch", "-R", str(program), str(tmp_path)],
        env={
            **os.environ,
            "TSAN_OPTIONS": f"{options}:history_size=4:handle_segv=0:handle_sigbus=0",
            "TVM_EDGE_OPENCL_CACHE": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "WARNING: ThreadSanitizer" not in done.stderr, done.stderr[:8000]
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]
