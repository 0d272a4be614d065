"""Models on a GPU and the CPU whose tensors cross in shared memory, in each kind of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm

import tvm_edge
from tests.marks import sampled
from tests.onnx_models import random_input, reference, relative_error
from tests.opencl.support import Worker, build_shim, worker
from tests.runtime.frames import network
from tvm_edge import opencl
from tvm_edge.compiler import compilation
from tvm_edge.hardware import resolve_target

SHAPE = (1, 8, 12, 12)
FALLBACKS = [["Tanh"], ["Add"], ["Tanh", "Sigmoid"], ["Conv"], ["Split", "Tanh"], ["Reshape"]]


def inputs(count: int) -> list[dict[str, np.ndarray]]:
    return [{"data": random_input(SHAPE, seed)} for seed in range(count)]


def check(found: Sequence[Any], given: Sequence[dict[str, np.ndarray]], what: object) -> None:
    for outputs, each in zip(found, given, strict=True):
        for name, expected in reference(network(), each).items():
            assert relative_error(outputs[name].numpy(), expected) < 1e-5, (what, name)


@pytest.fixture(scope="module")
def shares(on_opencl: None) -> None:
    if not opencl.device_info()["unified_memory"]:
        pytest.skip("the device does not share its memory with the host")


@pytest.mark.parametrize("fallback", sampled(FALLBACKS, 2), ids="-".join)
def test_results_in_two_threads(fallback: list[str], on_opencl: None) -> None:
    """No result is changed by a later run."""
    model = tvm_edge.compile(network(), "opencl", fallback=fallback)
    given = inputs(4)

    def runs(half: int) -> list[dict[str, Any]]:
        return [model.run(each, device_outputs=True) for each in given[half::2] * 3]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(runs, range(2)))
    for half in range(2):
        check(found[half], given[half::2] * 3, fallback)


def counted(fallback: list[str]) -> dict[str, int]:
    """Bytes copied in three runs whose input lies on the device, and what the report says."""
    model = tvm_edge.compile(network(), "opencl", fallback=fallback)
    given = inputs(3)
    first = next(iter(given[0].values()))
    there = {"data": tvm.runtime.tensor(first, tvm.opencl())}
    check([model.run(there, device_outputs=True)], given[:1], fallback)
    before, replayed = opencl.copied(), opencl.command_buffers()["replayed"]
    found = [model.run(there, device_outputs=True) for _ in range(3)]
    after = opencl.copied()
    check(found, given[:1] * 3, fallback)
    report = {"in": 0, "out": 0}
    for copy in model.report.copied:
        report["in" if copy["destination"] == "opencl" else "out"] += 3 * copy["bytes"]
    return {
        "copies": len(model.report.copies),
        "copied": len(model.report.copied),
        **{way: after[way] - before[way] for way in report},
        **{f"said {way}": nbytes for way, nbytes in report.items()},
        "replayed": opencl.command_buffers()["replayed"] - replayed,
    }


def test_no_bytes_are_copied(shares: None) -> None:
    """On the way to the CPU and back, while what is between them is recorded."""
    found = counted(["Add"])
    if opencl.device_info()["memory"] == "svm-fine":
        assert found["in"] == found["said in"]
    assert found["out"] == found["said out"] == 0
    assert found["copies"] - found["copied"] >= 8 and found["copied"] <= 1
    if not opencl.command_buffers()["missing"]:
        assert found["replayed"] >= 3


@pytest.fixture(
    scope="module",
    params=["default", "mapped", "svm-coarse", "buffer"],
)
def memory(
    request: pytest.FixtureRequest, on_opencl: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Worker]]:
    """A process for each kind of memory."""
    environment: dict[str, dict[str, object]] = {
        "default": {},
        "mapped": {"TVM_EDGE_OPENCL_MEMORY": "buffer"},
        "svm-coarse": {"TVM_EDGE_OPENCL_MEMORY": "svm", "SHIM_SET": "coarse_svm=1"},
        "buffer": {"SHIM_SET": "own_memory=1"},
    }
    shim = build_shim(tmp_path_factory.mktemp("shim"), masked=False)
    more = {"TVM_EDGE_OPENCL_LIBRARY": shim, "SHIM_REAL": opencl.status()["library"]}
    with worker({**more, **environment[request.param]}) as started:
        kind = started(kind_of_memory)
        if request.param not in ("default", kind):
            pytest.skip(f"the device's memory is {kind}")
        yield kind, started


def kind_of_memory() -> str:
    return str(opencl.device_info()["memory"])


def run_what_shares(fallback: list[str]) -> None:
    """A model for a device whose memory the host reads and writes, whatever this one's is."""
    resolved = resolve_target("mali-t860", "llvm")
    fine = replace(resolved, spec=replace(resolved.spec, fine_grained_memory=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "resolve_target", lambda *_: fine)
        model = tvm_edge.compile(network(), "mali-t860", host="llvm", fallback=fallback)
    assert len(model.report.copied) < len(model.report.copies)
    given = inputs(3)
    check([model.run(each, device_outputs=True) for each in given], given, fallback)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("fallback", [["Tanh"], ["Split", "Tanh"]], ids="-".join)
def test_in_each_kind_of_memory(memory: tuple[str, Worker], fallback: list[str]) -> None:
    """As compiled for this device, and for one that shares its memory."""
    kind, run = memory
    found = run(counted, fallback)
    copies, copied = found["copies"], found["copied"]
    assert found["out"] == found["said out"]
    match kind:
        case "buffer":
            assert copies == copied and found["in"] == found["said in"] > 0
        case "svm-fine":
            assert copied < copies and found["in"] == found["said in"]
        case _:  # what the CPU writes is copied
            assert copied < copies and found["in"] == found["said in"] > 0
    run(run_what_shares, fallback)
