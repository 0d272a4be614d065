"""OpenCL's kernels without OpenCL's launches: one call recorded, launched again by CUDA's driver.

NVIDIA's OpenCL gives programs as PTX, which CUDA's driver takes as well. ``opencl_record.c`` stands
between the runtime and the driver and writes down the launches of a call, their arguments and what
all buffers hold before and after. The same PTX with the same data is then launched by CUDA, all
buffers are compared with those of OpenCL, and CUPTI times each kernel, as it does those of
``target="cuda"``: OpenCL's own events count some microseconds of every launch in.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["build_recorder", "record", "replay"]

_SIZES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def build_recorder(folder: Path) -> Path:
    """Compile the recording library; a process takes it by ``TVM_EDGE_OPENCL_LIBRARY``."""
    library = folder / "librecord.so"
    source = Path(__file__).with_name("opencl_record.c")
    command = ["gcc", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run([*command, "-Wl,--no-as-needed", "-l:libOpenCL.so.1", "-ldl"], check=True)
    return library


def record(run: Callable[[], Any], synchronize: Callable[[], Any], folder: Path) -> None:
    """Write what a call launches to `folder`; this process runs on the recorder."""
    recorder = ctypes.CDLL(os.environ["TVM_EDGE_OPENCL_LIBRARY"])
    run()  # memory that the first call takes is kept for the next
    synchronize()
    recorder.recording_begin(os.fsencode(folder))
    run()
    synchronize()
    recorder.recording_end()


@dataclass
class _Recording:
    """Buffers by handle as (parent, offset, bytes), and launches, in order."""

    buffers: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    launches: list[tuple[int, str, tuple[int, ...], tuple[int, ...], list[tuple[int, int]]]] = (
        field(default_factory=list)
    )


def _read(folder: Path) -> _Recording:
    found = _Recording()
    for line in (folder / "log").read_text().splitlines():
        kind, *words = line.split()
        if kind == "buffer":
            it, parent = (0 if word == "(nil)" else int(word, 16) for word in words[:2])
            found.buffers[it] = (parent, int(words[2]), int(words[3]))
            continue
        sizes = [int(word) for word in words[2:8]]
        arguments = [word.split(":") for word in words[8:]]
        found.launches.append(
            (
                int(words[0]),
                words[1],
                tuple(sizes[:3]),
                tuple(sizes[3:]),
                [(int(size), int(value, 16)) for size, value in arguments],
            )
        )
    return found


def replay(folder: Path) -> tuple[Callable[[], None], int]:
    """A call that launches by CUDA what was recorded, and the number of its launches.

    Raises
    ------
    ValueError
        If a buffer ends up with other bytes than OpenCL's did.
    """
    import cupy

    recorded = _read(folder)
    modules: dict[int, Any] = {}
    for number in {launch[0] for launch in recorded.launches}:
        path = folder / f"{number}.ptx"
        # Offsets of the grid, which OpenCL sets and CUDA does not; ours has none.
        program = re.sub(rb"%envreg\d+", b"0", (folder / f"{number}.program").read_bytes())
        path.write_bytes(program.rstrip(b"\0"))
        modules[number] = cupy.RawModule(path=str(path))
    memory = {}
    for it, (parent, _, size) in recorded.buffers.items():
        if not parent:
            memory[it] = cupy.zeros(size, "uint8")
            before = folder / f"before.{it:#x}"
            if before.exists():  # not for memory that the call itself took
                memory[it].set(np.fromfile(before, "uint8"))

    def address(it: int) -> int:
        parent, offset, _ = recorded.buffers[it]
        return address(parent) + offset if parent else memory[it].data.ptr

    calls = []
    for number, name, grid, block, given in recorded.launches:
        values = [
            np.uint64(address(value)) if value in recorded.buffers else _SIZES[size](value)
            for size, value in given
        ]
        calls.append((modules[number].get_function(name), grid, block, tuple(values)))

    def run() -> None:
        for function, *launch in calls:
            function(*launch)

    run()
    cupy.cuda.runtime.deviceSynchronize()
    for it, array in memory.items():
        different = int((array.get() != np.fromfile(folder / f"after.{it:#x}", "uint8")).sum())
        if different:
            raise ValueError(
                f"{different} of {array.size} bytes of buffer {it:#x} are not OpenCL's"
            )
    return run, len(calls)
