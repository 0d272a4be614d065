"""How many threads, and on which CPUs."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_edge
from tests.marks import in_full
from tests.runtime.support import run_python
from tvm_edge import InputError
from tvm_edge.host import allowed_cpus, physical_cores
from tvm_edge.runtime.threads import resolve_num_threads

COUNT_WORKERS = """
import json, os, sys, time
import numpy as np
import tvm_ffi
import tvm_edge

def affinities():
    return [sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")]

count = int(sys.argv[2]) if len(sys.argv) > 2 else None
model = tvm_edge.load(sys.argv[1], num_threads=count)
model.run({"data": np.zeros((1, 3, 16, 16), "float32")})
benchmark = model.benchmark(repeat=1).num_threads
# A worker that was woken beside the calling thread takes all CPUs again when it comes up.
end = time.monotonic() + 20
while len(set(map(tuple, affinities()))) > 1 and time.monotonic() < end:
    time.sleep(0.01)
print(json.dumps({
    "pool": tvm_ffi.get_global_func("tvm_edge.pool.threads")(),
    "benchmark": benchmark,
    "affinities": affinities(),
}))
"""


def in_new_thread(action: Callable[[], Any]) -> Any:
    """The result of `action` in a thread that never launched a kernel."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(action()))
    thread.start()
    thread.join()
    return results[0]


def test_default_is_every_physical_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    assert resolve_num_threads(None) == physical_cores()
    monkeypatch.setenv("TVM_NUM_THREADS", "")
    assert resolve_num_threads(None) == physical_cores()


def test_default_counts_only_cpus_that_the_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)

    def on_one_cpu() -> int:
        os.sched_setaffinity(0, allowed_cpus()[:1])  # of this thread alone
        return resolve_num_threads(None)

    assert in_new_thread(on_one_cpu) == 1


def test_environment_then_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    assert resolve_num_threads(None) == 3
    assert resolve_num_threads(5) == 5
    monkeypatch.setenv("TVM_NUM_THREADS", "nonsense")
    assert resolve_num_threads(2) == 2


@pytest.mark.parametrize(
    "value", [0, -1, 1025, 10**30, 1.5, 2.0, True, "two", "", "-3", "2", [2], np.array([2])]
)
def test_bad_arguments(value: Any) -> None:
    with pytest.raises(InputError, match="positive") as caught:
        resolve_num_threads(value)
    assert (caught.value.name, caught.value.got) == ("num_threads", repr(value))


def test_numpy_counts_are_numbers() -> None:
    assert resolve_num_threads(np.int64(3)) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["0", "-1", "all", "1.5", " "])
def test_bad_environment(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", value)
    with pytest.raises(InputError, match="environment variable TVM_NUM_THREADS"):
        resolve_num_threads(None)


def test_compile_and_load_check_it(small_model: Any, artifact: Path) -> None:
    with pytest.raises(InputError, match="num_threads"):
        tvm_edge.compile(small_model, "llvm", num_threads=0)
    for value in (-2, 0, 10**6, "2", 1.0):
        with pytest.raises(InputError, match="num_threads"):
            tvm_edge.load(artifact, num_threads=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("variable", "argument", "expected"),
    [
        (None, 1, 1),
        ("2", None, 2),
        ("1", 2, 2),
        *in_full((None, 2, 2), ("1", None, 1), ("2", 1, 1)),
    ],
)
def test_the_pool_has_that_many(
    artifact: Path, variable: str | None, argument: int | None, expected: int
) -> None:
    """TVM's own default is half the logical CPUs, whatever they are."""
    output = run_python(
        COUNT_WORKERS,
        artifact,
        *([] if argument is None else [argument]),
        environment={"TVM_NUM_THREADS": variable, "TVM_USE_RUNTIME_LIB": "1"},
    )
    found = json.loads(output)
    assert found["pool"] == expected
    assert found["benchmark"] == expected
    assert found["affinities"] == [allowed_cpus()] * len(found["affinities"])


@pytest.mark.parametrize("num_threads", [1, 2])
def test_running_does_not_narrow_the_affinity_of_the_caller(
    artifact: Path, image: np.ndarray, num_threads: int
) -> None:
    def affinities() -> tuple[set[int], set[int]]:
        before = os.sched_getaffinity(0)
        model = tvm_edge.load(artifact, num_threads=num_threads)
        model.run({"data": image})
        return before, os.sched_getaffinity(0)

    for before, after in (affinities(), in_new_thread(affinities)):
        assert after == before


def test_models_of_different_width_in_one_thread(artifact: Path, image: np.ndarray) -> None:
    """The pool follows the model that runs."""
    import tvm_ffi

    pool_size = tvm_ffi.get_global_func("tvm_edge.pool.threads")

    def sizes() -> list[int]:
        models = {n: tvm_edge.load(artifact, num_threads=n) for n in (1, 2)}
        found = []
        for n in (1, 2, 1, 2):
            models[n].run({"data": image})
            found.append(pool_size())
        return found

    assert in_new_thread(sizes) == [1, 2, 1, 2]
