"""Built programs on disk: a second process builds nothing, and nothing on disk can do harm."""

from __future__ import annotations

import fcntl
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


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.clbin"))


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
    assert len(entries(folder)) == 2
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
    for entry in entries(filled):
        entry.write_bytes(damage(entry.read_bytes()))
    stats = start(filled)
    assert (stats["built"], stats["from_disk"], stats["damaged"]) == (2, 0, 2)
    stats = start(filled)
    assert (stats["built"], stats["from_disk"], stats["damaged"]) == (0, 2, 0)


def test_another_programs_entry_is_not_taken(start: Start, filled: Path) -> None:
    """Sound, and under the wrong name: two keys may hash alike."""
    first, second = entries(filled)
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
    assert len(entries(tmp_path / "xdg" / "tvm-edge" / "opencl")) == 2


def test_the_oldest_entries_make_room(start: Start, filled: Path) -> None:
    """A bound of 1 MiB, a folder with three: the new ones stay, the oldest go."""
    entry = max(entries(filled), key=lambda path: path.stat().st_size)
    content = entry.read_bytes() + b"\0" * (200 << 10)
    for old in entries(filled):
        old.unlink()
    for i in range(15):
        filler = filled / f"{i:032x}{entry.suffix}"
        filler.write_bytes(content)
        os.utime(filler, (1_000_000_000 + i, 1_000_000_000 + i))
    stats = start(filled, TVM_EDGE_OPENCL_CACHE_SIZE=1)
    assert stats["stored"] == 2
    kept = [path for path in entries(filled) if path.name.startswith("0000")]
    assert sum(path.stat().st_size for path in entries(filled)) <= 1 << 20
    assert kept and min(int(path.stem, 16) for path in kept) == 15 - len(kept)
    assert start(filled, TVM_EDGE_OPENCL_CACHE_SIZE=1)["from_disk"] == 2


def test_a_used_entry_is_young(start: Start, filled: Path) -> None:
    for entry in entries(filled):
        os.utime(entry, (1_000_000_000, 1_000_000_000))
    start(filled)
    assert all(entry.stat().st_mtime > 1_500_000_000 for entry in entries(filled))


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
    assert len(list(folder.iterdir())) == 3, "half-written files stayed"  # two, and the key
    assert start(folder)["from_disk"] == 2


def plant_folder(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("")


def plant_endless(path: Path) -> None:
    """More than memory, and no blocks on the disk."""
    path.touch(0o600)
    os.truncate(path, 1 << 40)


PLANTS: dict[str, Callable[[Path], None]] = {
    "folder": plant_folder,
    "fifo": lambda path: os.mkfifo(path, 0o600),
    "link": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to(path),
    "endless": plant_endless,
}


@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_no_file_of_ours_does_no_harm(
    start: Start, filled: Path, tmp_path: Path, plant: str
) -> None:
    """Foreign errors, and a wait for ever for whoever writes into a FIFO."""
    for entry in entries(filled):
        entry.unlink()
        PLANTS[plant](entry)
    stats = start(filled)
    assert (stats["built"], stats["from_disk"]) == (2, 0)
    assert stats["damaged"] == (1 if plant == "endless" else 2)  # the bound has the second go
    again = start(filled)
    # A folder with something in it stays where it is.
    assert again["from_disk"] == (0 if plant == "folder" else 2)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_an_entry_that_others_may_write_is_not_used(start: Start, filled: Path, mode: int) -> None:
    for entry in entries(filled):
        entry.chmod(mode)
    stats = start(filled)
    assert (stats["built"], stats["from_disk"], stats["damaged"]) == (2, 0, 2)
    assert all(entry.stat().st_mode & 0o777 == 0o600 for entry in entries(filled))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_entry_of_another_user_is_not_used(start: Start, filled: Path) -> None:
    for entry in entries(filled):
        os.chown(entry, 1, 1)
    stats = start(filled)
    assert (stats["built"], stats["from_disk"]) == (2, 0)


@pytest.mark.parametrize("harm", ["read by others", "another", "cut", "fifo", "link"])
def test_without_the_secret_nothing_is_used(
    start: Start, filled: Path, tmp_path: Path, harm: str
) -> None:
    """Whoever has the key can make entries; one that is not ours is replaced."""
    key = filled / ".key"
    assert key.stat().st_mode & 0o777 == 0o600
    content = key.read_bytes()
    if harm == "read by others":
        key.chmod(0o640)
    elif harm == "fifo":
        key.unlink()
        os.mkfifo(key, 0o600)
    elif harm == "link":
        key.rename(tmp_path / "elsewhere")
        key.symlink_to(tmp_path / "elsewhere")
    else:
        key.write_bytes(content[:5] if harm == "cut" else bytes(16))
    stats = start(filled)
    assert (stats["built"], stats["from_disk"], stats["stored"]) == (2, 0, 2)
    assert key.read_bytes() != content
    assert start(filled)["from_disk"] == 2


def test_what_a_killed_writer_left_is_removed(start: Start, filled: Path) -> None:
    left, lives = filled / ".writing-killed", filled / ".writing-lives"
    left.write_bytes(b"half an entry")
    with lives.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        start(filled)
        assert not left.exists() and lives.exists()


def test_a_size_beyond_all_numbers(start: Start, filled: Path) -> None:
    assert start(filled, TVM_EDGE_OPENCL_CACHE_SIZE=2**63 - 1)["from_disk"] == 2
