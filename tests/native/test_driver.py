"""The worker pool alone, from several threads at once, by a program in C++."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_SOURCES = _HERE.parents[1] / "tvm_edge/native/csrc"
_POOL = ("affinity.cc", "worker_pool.cc", "worker_wakeup.cc")


def build(program: Path, *flags: str) -> None:
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{_SOURCES}", *flags]
    sources = [_HERE / "pool_driver.cc", *(_SOURCES / name for name in _POOL)]
    command += [*map(str, sources), "-pthread"]
    subprocess.run([*command, "-o", str(program)], check=True)


def test_results_errors_and_forks(tmp_path: Path) -> None:
    build(tmp_path / "driver", "-O2")
    subprocess.run([str(tmp_path / "driver"), "300"], check=True, timeout=100)


@pytest.mark.full
def test_many_launches(tmp_path: Path) -> None:
    build(tmp_path / "driver", "-O2")
    subprocess.run([str(tmp_path / "driver"), "10000"], check=True, timeout=600)


@pytest.mark.full
def test_threads_share_nothing_unguarded(tmp_path: Path) -> None:
    """Under ThreadSanitizer, which does not follow threads of a fork."""
    build(tmp_path / "driver", "-O1", "-g", "-fsanitize=thread", "-DTVM_EDGE_NO_FORK")
    # setarch: its shadow does not fit all layouts of a randomised address space.
    command = ["setarch", "-R", str(tmp_path / "driver"), "1000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]


def test_it_compiles_for_aarch64(tmp_path: Path) -> None:
    compiler = "aarch64-linux-gnu-g++"
    if subprocess.run(["which", compiler], capture_output=True).returncode:
        pytest.skip(f"no {compiler}")
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-c"]
    for name in _POOL:
        command = [compiler, *flags, str(_SOURCES / name), "-o", str(tmp_path / "pool.o")]
        subprocess.run(command, check=True)
