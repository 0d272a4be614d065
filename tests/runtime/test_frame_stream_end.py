"""End of a stream: no thread, memory or source of it stays."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tvm_edge
from tests.marks import in_full
from tests.runtime.frames import (
    SHAPE,
    WAIT_S,
    Frame,
    endless,
    threads,
)
from tests.runtime.support import in_forked_child, run_python
from tvm_edge import DeviceUnavailableError


def close(stream: Any) -> None:
    stream.close()
    assert list(stream) == []
    stream.close()  # once more does nothing


def leave(stream: Any) -> None:
    with pytest.raises(ZeroDivisionError), stream:
        raise ZeroDivisionError


ENDS: dict[str, Callable[[Any], None]] = {
    "close": close,
    "with": leave,
    "dropped": lambda stream: None,
}


@pytest.mark.parametrize("how", ENDS)
def test_threads_end_with_the_stream(mixed: tvm_edge.CompiledModel, gpu: str, how: str) -> None:
    before = threads()  # of streams that tests before left to the collector
    stream: Any = mixed.stream(endless(), 4)
    next(stream)
    started = [thread for thread in threads() if thread not in before]
    assert len(started) == 2
    ENDS[how](stream)
    del stream
    gc.collect()
    for thread in started:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_the_gpus_memory_is_free_behind_a_stream(gpu: str, mixed: tvm_edge.CompiledModel) -> None:
    if gpu != "opencl":
        pytest.skip("only the OpenCL runtime counts it")
    depth, times = 2, 40
    in_use = []
    for _ in range(times):
        stream = mixed.stream(endless(), depth)
        next(stream)
        stream.close()
        in_use.append(tvm_edge.opencl.memory()["in_use"])
    # What TVM keeps for the next tensors depends on how many there were at once.
    image = 4 * math.prod(SHAPE)
    assert in_use[-1] - in_use[0] < image * times / 2


def test_a_source_of_ones_own_is_let_go(on_cpu: tvm_edge.CompiledModel) -> None:
    ended = threading.Event()

    def source() -> Iterator[Frame]:
        try:
            yield from endless()
        finally:
            ended.set()

    stream = on_cpu.stream(source())
    next(stream)
    stream.close()
    gc.collect()
    assert ended.is_set()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_refused(on_cpu: tvm_edge.CompiledModel) -> None:
    stream = on_cpu.stream(endless())
    next(stream)
    assert in_forked_child(lambda: next(stream)) == DeviceUnavailableError.__name__
    assert in_forked_child(lambda: next(on_cpu.stream(endless()))) == "done"
    stream.close()


MEMORY = """
import itertools, json, sys
import numpy as np
import tvm_edge

def anonymous_kib():
    lines = open("/proc/self/status").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line[:7] in ("RssAnon", "RssShme"))

path, before, after = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = tvm_edge.load(path, num_threads=1)
frame = {"data": np.ones((1, 8, 12, 12), "float32")}
found = []
stream = model.stream(itertools.repeat(frame), 3)  # open to the end
for number, outputs in enumerate(stream, 1):
    if number in (before, after):
        found.append(anonymous_kib())
    if number == after:
        break
print(json.dumps(found))
"""


def growth_kib(artifact: Path, before: int, after: int) -> int:
    """Return the growth of a process's memory between two numbers of frames, in KiB.

    It exits with the stream open.
    """
    output = run_python(MEMORY, artifact, before, after, environment={"TVM_USE_RUNTIME_LIB": "1"})
    first, last = (int(each) for each in output.strip("[]\n").split(","))
    return last - first


@pytest.mark.parametrize("count", [1000, *in_full(10000)])
def test_memory_does_not_grow_with_the_frames(
    on_cpu: tvm_edge.CompiledModel, tmp_path: Path, count: int
) -> None:
    """A result of each frame that stayed would be 5 KiB."""
    assert growth_kib(on_cpu.export(tmp_path / "cpu.tvme"), count // 10, count) < 1024


@pytest.mark.parametrize("count", in_full(300, 10000))
def test_memory_of_two_devices_does_not_grow(
    mixed: tvm_edge.CompiledModel, tmp_path: Path, count: int
) -> None:
    assert growth_kib(mixed.export(tmp_path / "mixed.tvme"), count // 10, count) < 1024
