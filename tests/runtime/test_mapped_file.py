"""A file that is mapped into memory: what is read ahead, and when it is closed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from tvm_edge.runtime.mapped_file import MappedFile


def test_pages_that_are_not_in_memory_are_read_ahead(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.write_bytes(np.random.default_rng(0).bytes(64 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        mapped = MappedFile(file, str(path))
    if mapped._in_memory(0, len(mapped)).any():
        pytest.skip("this file system keeps what it is told to forget")
    start, length = 20 << 20, 24 << 20
    assert mapped.read_ahead(mapped.address + start, length)
    end = time.monotonic() + 20
    while not mapped._in_memory(start, start + length).all():
        assert time.monotonic() < end
        time.sleep(0.01)
    assert not mapped._in_memory(0, 8 << 20).any()
    assert not mapped.read_ahead(mapped.address + start, length)


def test_a_file_is_closed_with_its_memory(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.write_bytes(bytes(1 << 16))
    before = len(os.listdir("/proc/self/fd"))
    with path.open("rb") as file:
        view = np.frombuffer(MappedFile(file, str(path)), np.uint8)
    assert len(os.listdir("/proc/self/fd")) == before + 2  # mmap's own, and ours
    del view
    assert len(os.listdir("/proc/self/fd")) == before
