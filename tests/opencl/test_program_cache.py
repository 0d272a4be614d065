"""Built programs on disk: a second process builds nothing, and nothing on disk can do harm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.opencl import cache_child
from tests.opencl.cache_child import run_both
from tests.opencl.support import ROOT, child_environment, worker

Start = Callable[..., dict[str, int]]


@pytest.fixture(scope="module")
def start(device: Any, modules: Path) -> Start:
    """``start(folder, **environment)``: a process that runs both modules; its program_stats."""

    def run(folder: object, **changes: object) -> dict[str, int]:
        with worker({"TVM_EDGE_OPENCL_CACHE": folder, **changes}) as process:
            return process(run_both, modules)

    return run


@pytest.fixture(scope="module")
def once_filled(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that one process has filled, not to be changed."""
    folder = tmp_path_factory.mktemp("cache")
    stats = start(folder)
    assert (stats["built"], stats["from_disk"], stats["stored"]) == (2, 0, 2)
    assert len(list(folder.iterdir())) == 2
    return folder


@pytest.fixture
def filled(once_filled: Path, tmp_path: Path) -> Path:
    """A folder that one process has filled."""
    return Path(shutil.copytree(once_filled, tmp_path / "cache"))


def test_a_second_process_builds_nothing(start: Start, filled: Path) -> None:
    stats = start(filled)
    assert (stats["built"], stats["from_disk"], stats["stored"]) == (0, 2, 0)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def last_bit(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def longer(data: bytes) -> bytes:
    return data + b"\0"


def nothing(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [cut, flip, last_bit, longer, nothing])
def test_a_damaged_entry_is_built_again(
    start: Start, filled: Path, damage: Callable[[bytes], bytes]
) -> None:
    for entry in filled.iterdir():
        entry.write_bytes(damage(entry.read_bytes()))
    stats = start(filled)
    assert (stats["built"], stats["from_disk"], stats["damaged"]) == (2, 0, 2)
    stats = start(filled)
    assert (stats["built"], stats["from_disk"], stats["damaged"]) == (0, 2, 0)


def test_another_programs_entry_is_not_taken(start: Start, filled: Path) -> None:
    """Sound, and under the wrong name: two keys may hash alike."""
    first, second = sorted(filled.iterdir())
    shutil.copy(first, second)
    stats = start(filled)
    assert (stats["built"], stats["from_disk"]) == (1, 1)


def test_another_driver_has_programs_of_its_own(
    start: Start, tmp_path: Path, on_shim: dict[str, object]
) -> None:
    folder = tmp_path / "cache"
    assert start(folder, **on_shim)["built"] == 2
    assert start(folder, **on_shim)["built"] == 0
    assert start(folder, **on_shim, SHIM_SET="stale_driver=1")["built"] == 2


def test_the_driver_may_refuse_its_own_binary(
    start: Start, filled: Path, on_shim: dict[str, object]
) -> None:
    """What a driver that changed behind an unchanged version string does."""
    refuse = "clCreateProgramWithBinary:1:-1:-42"
    stats = start(filled, **on_shim, SHIM_FAULTS=refuse)
    assert (stats["built"], stats["from_disk"]) == (2, 0)


def test_a_folder_that_cannot_be_written(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    # The superuser may write anywhere but below a file and in /proc.
    for folder in (tmp_path / "file" / "cache", "/proc/self/cache"):
        stats = start(folder)
        assert (stats["built"], stats["stored"]) == (2, 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write read-only folders")
def test_a_read_only_folder_is_still_read(start: Start, filled: Path) -> None:
    filled.chmod(0o555)
    stats = start(filled)
    filled.chmod(0o755)
    assert (stats["built"], stats["from_disk"]) == (0, 2)


def test_the_cache_can_be_off(start: Start, tmp_path: Path) -> None:
    home = tmp_path / "home"
    changes = {"XDG_CACHE_HOME": home, "HOME": home}
    stats = start(0, **changes)
    assert (stats["built"], stats["from_disk"], stats["stored"]) == (2, 0, 0)
    assert not list(home.glob("**/tvm-edge"))


def test_the_folder_is_the_users_cache(start: Start, tmp_path: Path) -> None:
    start(None, XDG_CACHE_HOME=tmp_path / "xdg")
    assert len(list((tmp_path / "xdg" / "tvm-edge" / "opencl").iterdir())) == 2


def test_the_oldest_entries_make_room(start: Start, filled: Path) -> None:
    """A bound of 1 MiB, a folder with three: the new ones stay, the oldest go."""
    entry = max(filled.iterdir(), key=lambda path: path.stat().st_size)
    content = entry.read_bytes() + b"\0" * (200 << 10)
    for old in list(filled.iterdir()):
        old.unlink()
    for i in range(15):
        filler = filled / f"{i:032x}{entry.suffix}"
        filler.write_bytes(content)
        os.utime(filler, (1_000_000_000 + i, 1_000_000_000 + i))
    stats = start(filled, TVM_EDGE_OPENCL_CACHE_SIZE=1)
    assert stats["stored"] == 2
    kept = [path for path in filled.iterdir() if path.name.startswith("0000")]
    assert sum(path.stat().st_size for path in filled.iterdir()) <= 1 << 20
    assert kept and min(int(path.stem, 16) for path in kept) == 15 - len(kept)
    assert start(filled, TVM_EDGE_OPENCL_CACHE_SIZE=1)["from_disk"] == 2


def test_a_used_entry_is_young(start: Start, filled: Path) -> None:
    for entry in filled.iterdir():
        os.utime(entry, (1_000_000_000, 1_000_000_000))
    start(filled)
    assert all(entry.stat().st_mtime > 1_500_000_000 for entry in filled.iterdir())


def test_processes_that_write_at_once(start: Start, modules: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    # The runtime tier starts in a third of the time.
    changes = {"TVM_EDGE_OPENCL_CACHE": folder, "TVM_USE_RUNTIME_LIB": 1}
    command = [sys.executable, cache_child.__file__, str(modules)]
    children = [
        subprocess.Popen(command, env=child_environment(changes), cwd=ROOT, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    for child in children:
        output, _ = child.communicate(timeout=120)
        assert child.returncode == 0
        stats = json.loads(output)
        assert stats["built"] + stats["from_disk"] == 2 and stats["damaged"] == 0
    assert len(list(folder.iterdir())) == 2, "half-written files stayed"
    assert start(folder)["from_disk"] == 2
