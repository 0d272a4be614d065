"""Weights streamed from the artifact: what of them is in memory, and through which.

On CUDA their values alone are tested (`test_weight_stream.py`): its driver has no counter of ours.
"""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_edge
from tests.global_functions import overridden, without_shared_memory
from tests.onnx_models import reference, relative_error
from tests.runtime.support import memory_cgroup, rewrite_artifact, run_child
from tests.runtime.weight_stream.conftest import LAYERS, WEIGHTS_MIB, WINDOW_MIB
from tvm_edge import opencl
from tvm_edge.hardware import resolve_target
from tvm_edge.runtime.entry import UPLOAD_PART

STATUS = """
import json, os, resource, sys
import numpy as np
import tvm
import tvm_edge

def mib(field):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024
"""

# What is there when a model is loaded, and so many MiB more.
IN_CGROUP = (
    STATUS
    + """
import pathlib
import tvm_edge.runtime
path, limit, inputs, outputs, group = sys.argv[1:]
values = dict(np.load(inputs))
with open(path, "rb") as file:  # whoever reads a page first is charged for it
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
pathlib.Path(group, "limit").write_text(str(int(float(limit) * 2**20)))
pathlib.Path(group, "cgroup.procs").write_text(str(os.getpid()))
model = tvm_edge.load(path)
for _ in range(2):
    found = model.run(values)
np.savez(outputs, **found)
"""
)

LIMITED = (
    STATUS
    + """
import tvm_edge.runtime
tvm.device(sys.argv[5]).exist  # what pocl takes for itself
limit = int((mib("VmData") + float(sys.argv[2])) * 2**20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
model = tvm_edge.load(sys.argv[1])
found = model.run(dict(np.load(sys.argv[3])))
np.savez(sys.argv[4], **found)
"""
)


def test_a_device_that_is_the_cpu_reads_parts_where_they_are_mapped(
    streamed: dict[str, Path], x: dict[str, np.ndarray]
) -> None:
    """With what is behind each part read ahead, as for the CPU's own kernels."""
    if not resolve_target("opencl").spec.on_cpu:
        pytest.skip("the OpenCL device is not the CPU")
    calls: list[list[int]] = []

    def counted(original: Any) -> Any:
        def count(*arguments: Any) -> Any:
            calls.append([part.data_ptr() for part in arguments[:3]])
            return original(*arguments)

        return count

    before, copied = opencl.memory()["in_use"], opencl.copied()["in"]
    opencl.reset_peak()
    with overridden(UPLOAD_PART, counted):
        model = tvm_edge.load(streamed["opencl"])
        calls.clear()
        for _ in range(2):
            model.run(x)
    assert len(calls) == 2 * 8 * LAYERS
    for (part, following, _), (then, _, earlier) in itertools.pairwise(calls):
        assert following == then and earlier == part
    activations = 2 << 20
    assert opencl.memory()["peak"] - before < activations
    assert opencl.copied()["in"] - copied < activations
    assert resident(streamed["opencl"]) > 0
    memory = model.report.memory
    assert memory is not None and memory.window == 0


@pytest.mark.usefixtures("own_memory")
def test_a_gpu_has_two_parts_in_memory(streamed: dict[str, Path], x: dict[str, np.ndarray]) -> None:
    before = opencl.memory()["in_use"]
    opencl.reset_peak()
    model = tvm_edge.load(streamed["opencl"])
    for _ in range(2):
        model.run(x)
    beside = 2 << 20  # activations
    assert 0 < opencl.memory()["peak"] - before < (WINDOW_MIB << 20) + beside
    if opencl.device_info()["memory"] != "buffer":  # a driver copies from what is mapped
        assert resident(streamed["opencl"]) == 0  # a part is read, not mapped


def resident(path: Path) -> int:
    """KiB of a file that are mapped into this process."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    places = [i for i, line in enumerate(lines) if line.endswith(str(path))]
    found = [line for i in places for line in lines[i + 1 : i + 9] if line.startswith("Rss:")]
    assert found
    return sum(int(line.split()[1]) for line in found)


def test_a_cpu_runs_in_less_memory_than_its_weights_take(
    deep: onnx.ModelProto, streamed: dict[str, Path], x: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """The operating system may drop what is mapped; it cannot drop copies."""
    copied = rewrite_artifact(streamed["llvm"], tmp_path / "copied.tvme")  # not aligned any more
    np.savez(tmp_path / "x.npz", **x)
    files = [str(tmp_path / name) for name in ("x.npz", "y.npz")]
    with memory_cgroup() as group:
        for path, status in ((copied, -signal.SIGKILL), (streamed["llvm"], 0)):
            done = run_child(
                ["-c", IN_CGROUP, str(path), str(WEIGHTS_MIB / 2), *files, str(group)],
                environment={"TVM_USE_RUNTIME_LIB": "1", "TVM_NUM_THREADS": "1"},
            )
            assert done.returncode == status, done.stderr
    found = np.load(tmp_path / "y.npz")["y"]
    assert relative_error(found, reference(deep, x)["y"]) < 1e-4


@pytest.mark.usefixtures("own_memory")
def test_a_gpu_with_memory_of_its_own_has_one_part(
    deep: onnx.ModelProto,
    streamed: dict[str, Path],
    x: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    before = opencl.memory()["in_use"]
    opencl.reset_peak()
    with without_shared_memory():
        model = tvm_edge.load(streamed["opencl"])
        for seed in range(2):
            values = {"x": x["x"] + np.float32(seed)}
            copied = opencl.copied()["in"]
            assert relative_error(model.run(values)["y"], reference(deep, values)["y"]) < 1e-4
            assert opencl.copied()["in"] - copied >= WEIGHTS_MIB * 2**20
    assert len(model._session.window_bytes()) == 1
    beside = 1 << 20
    assert 0 < opencl.memory()["peak"] - before < (WINDOW_MIB << 20) / 2 + beside
    # The part behind may be there, and pages that the system maps around its ends.
    assert resident(streamed["opencl"]) <= WINDOW_MIB / 2 * 1024 + 2 * 64


def limited(path: Path, more_mib: float, x: dict[str, np.ndarray], target: str) -> Any:
    """Load and run in a child that may take `more_mib` of private memory; its process."""
    folder, device = path.parent, {"llvm": "cpu"}.get(target, target)
    np.savez(folder / "x.npz", **x)
    files = [str(folder / name) for name in ("x.npz", "y.npz")]
    return run_child(
        ["-c", LIMITED, str(path), str(more_mib), *files, device],
        # What LLVM takes to optimise pocl's kernels is not what is limited here.
        environment={
            "TVM_USE_RUNTIME_LIB": "1",
            "TVM_NUM_THREADS": "1",
            "POCL_EXTRA_BUILD_FLAGS": "-cl-opt-disable",
        },
    )


@pytest.mark.full
@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_it_runs_where_its_weights_have_no_room(
    deep: onnx.ModelProto,
    streamed: dict[str, Path],
    x: dict[str, np.ndarray],
    tmp_path: Path,
    target: str,
) -> None:
    """A process that may not take half of what the weights are."""
    whole = streamed[target]
    if target != "llvm":
        whole = tvm_edge.compile(deep, target, fallback="none").export(tmp_path / "whole.tvme")
    # As another tool has packed it again, the weights have to be copied.
    whole = rewrite_artifact(whole, tmp_path / "copied.tvme")
    # pocl has threads, and stacks for them.
    room = WEIGHTS_MIB / 2 if target == "llvm" else WEIGHTS_MIB - 4
    assert limited(whole, room, x, target).returncode != 0
    done = limited(streamed[target], room, x, target)
    assert done.returncode == 0, done.stderr
    found = np.load(streamed[target].parent / "y.npz")["y"]
    assert relative_error(found, reference(deep, x)["y"]) < 1e-4
