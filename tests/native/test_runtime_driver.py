"""Parts of the native runtime alone, by a program in C++."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import tvm
import tvm_ffi

_HERE = Path(__file__).parent
_PACKAGE = _HERE.parents[1] / "tvm_edge"
_PARTS = [
    *(
        "affinity",
        "captures",
        "device",
        "error",
        "host",
        "mapped_file",
        "parallel_launch",
        "pinned_copies",
    ),
    *("sha256", "task_thread", "tensors", "text", "worker_pool", "worker_wakeup"),
]


def build(program: Path, *flags: str) -> None:
    """Compile the driver with the sources that it tests, all as one: they share TVM's headers."""
    site, ffi = (Path(str(module.__file__)).parent for module in (tvm, tvm_ffi))
    sources = [_PACKAGE / f"native/csrc/{name}.cc" for name in _PARTS]
    sources.append(_PACKAGE / "opencl/csrc/page_guard.cc")
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *flags]
    for folder in (_PACKAGE / "native/csrc", _PACKAGE / "opencl/csrc"):
        command.append(f"-I{folder}")
    for folder in (site / "include", ffi / "include"):
        command += ["-isystem", str(folder)]
    whole = program.with_suffix(".cc")
    sources.append(_HERE / "runtime_driver.cc")
    whole.write_text("".join(f'#include "{source}"\n' for source in sources))
    command += [str(whole), "-pthread"]
    for library in (site / "lib/libtvm_runtime.so", ffi / "lib/libtvm_ffi.so"):
        command += [str(library), f"-Wl,-rpath,{library.parent}"]
    subprocess.run([*command, "-o", str(program)], check=True)


def test_files_turns_copies_and_texts(tmp_path: Path) -> None:
    build(tmp_path / "driver", "-O0")
    done = subprocess.run(
        [str(tmp_path / "driver"), str(tmp_path)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_the_same_under_thread_sanitizer(tmp_path: Path) -> None:
    build(tmp_path / "driver", "-O1", "-g", "-fsanitize=thread", "-Wno-tsan")
    command = ["setarch", "-R", str(tmp_path / "driver"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
