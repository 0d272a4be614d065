"""Weights streamed from the artifact: what is in memory, and what may happen to the file."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model, reference, relative_error
from tests.runtime.support import memory_cgroup, rewrite_artifact, run_child
from tests.runtime.test_concurrency import at_once
from tvm_edge import ArtifactError, opencl
from tvm_edge.compiler.driver import compile_with
from tvm_edge.hardware import resolve_target
from tvm_edge.runtime import mapped_file, pinned_copies, streaming
from tvm_edge.runtime.mapped_file import MappedFile
from tvm_edge.runtime.streaming import WeightStream

LAYERS, WIDTH = 3, 2048
WEIGHTS_MIB = LAYERS * WIDTH * WIDTH * 4 / 2**20  # 48
WINDOW_MIB = 4

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


@pytest.fixture(scope="module")
def deep() -> onnx.ModelProto:
    """Three dense layers with 16 MiB of weights each."""
    random = np.random.default_rng(0)
    tensors = ["x", *(f"t{i}" for i in range(1, LAYERS)), "y"]
    nodes = [
        helper.make_node("MatMul", [tensors[i], f"w{i}"], [tensors[i + 1]], name=f"fc{i}")
        for i in range(LAYERS)
    ]
    weights = {f"w{i}": random.standard_normal((WIDTH, WIDTH), np.float32) for i in range(LAYERS)}
    return make_model(nodes, {"x": (1, WIDTH)}, ["y"], weights)


@pytest.fixture(scope="module")
def streamed(deep: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model in parts, by target. Not to be changed: copy it first."""
    folder, paths = tmp_path_factory.mktemp("streamed"), {}
    for target in ("llvm", "opencl", *(["cuda"] if tvm.cuda().exist else [])):
        model = compile_with(
            deep, target, {}, fallback="none", weight_window=WINDOW_MIB << 20, num_threads=1
        )
        assert [split.parts for split in model.report.splits] == [8] * LAYERS
        paths[target] = model.export(folder / f"{target}.tvme")
    return paths


@pytest.fixture
def x() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(3).standard_normal((1, WIDTH)).astype("float32")}


@pytest.fixture
def own_memory_through_blocks(own_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An OpenCL device gets parts as CUDA's do, through blocks of which each part has some."""
    monkeypatch.setattr(streaming, "_host_writes_at_any_time", lambda device: False)
    monkeypatch.setattr(streaming, "_pinned_memory", lambda device: tvm.cpu())
    monkeypatch.setattr(pinned_copies, "_BLOCK", (1 << 19) - 4092)


@pytest.fixture(
    params=["llvm", "opencl", "opencl with memory of its own", "opencl through blocks", "cuda"]
)
def target(request: pytest.FixtureRequest) -> str:
    """What has parts where they are mapped, the second if it is the CPU; what copies them."""
    name: str = request.param
    if name == "cuda" and not tvm.cuda().exist:
        pytest.skip("no CUDA device")
    if name.endswith("own"):
        request.getfixturevalue("own_memory")
    if name.endswith("blocks"):
        request.getfixturevalue("own_memory_through_blocks")
    return name.split()[0]


def test_values_from_the_file(
    deep: onnx.ModelProto, streamed: dict[str, Path], x: dict[str, np.ndarray], target: str
) -> None:
    model = tvm_edge.load(streamed[target])
    for seed in range(2):
        values = {"x": x["x"] + np.float32(seed)}
        assert relative_error(model.run(values)["y"], reference(deep, values)["y"]) < 1e-4


def test_a_device_that_is_the_cpu_reads_parts_where_they_are_mapped(
    streamed: dict[str, Path], x: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is behind each part read ahead, as for the CPU's own kernels."""
    if not resolve_target("opencl").spec.on_cpu:
        pytest.skip("the OpenCL device is not the CPU")
    original, calls = WeightStream.next_part, []

    def counted(self: WeightStream, *arguments: Any) -> Any:
        calls.append([part.data_ptr() for part in arguments])
        return original(self, *arguments)

    monkeypatch.setattr(WeightStream, "next_part", counted)
    before, copied = opencl.memory()["in_use"], opencl.copied()["in"]
    opencl.reset_peak()
    model = tvm_edge.load(streamed["opencl"])
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
    assert resident(streamed["opencl"]) == 0  # a part is read, not mapped


@pytest.mark.usefixtures("own_memory_through_blocks")
def test_parts_go_through_two_blocks(
    deep: onnx.ModelProto,
    streamed: dict[str, Path],
    x: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All pieces of all parts, by threads that are none of the run's."""
    original, pieces = MappedFile.read_into, []

    def counted(self: MappedFile, into: np.ndarray, address: int) -> None:
        pieces.append((into.ctypes.data, into.nbytes, threading.current_thread().name))
        original(self, into, address)

    monkeypatch.setattr(MappedFile, "read_into", counted)
    before = opencl.memory()["in_use"]
    opencl.reset_peak()
    model = tvm_edge.load(streamed["opencl"])
    for seed in range(2):
        values = {"x": x["x"] + np.float32(seed)}
        assert relative_error(model.run(values)["y"], reference(deep, values)["y"]) < 1e-4
    assert 0 < opencl.memory()["peak"] - before < (WINDOW_MIB << 20) / 2 + (1 << 20)
    assert sum(nbytes for _, nbytes, _ in pieces) == 2 * WEIGHTS_MIB * 2**20
    assert all(name.startswith("tvm-edge-pinned") for _, _, name in pieces)
    places = sorted({address for address, _, _ in pieces})
    blocks = 1 + sum(b - a > pinned_copies._BLOCK for a, b in itertools.pairwise(places))
    assert blocks == 2 and len(pieces) >= 2 * 8 * LAYERS * 4


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
    monkeypatch.setattr(streaming, "_host_writes_at_any_time", lambda device: False)
    read_ahead = MappedFile.read_ahead

    def late(self: MappedFile, address: int, nbytes: int) -> bool:
        """From a slow disk: what is in the system's cache of the file is not mapped otherwise."""
        time.sleep(0.005)
        first, last = self._pages(address, nbytes)
        self.madvise(mapped_file._POPULATE_READ, first, last - first)
        return read_ahead(self, address, nbytes)

    monkeypatch.setattr(MappedFile, "read_ahead", late)
    before = opencl.memory()["in_use"]
    opencl.reset_peak()
    model = tvm_edge.load(streamed["opencl"])
    for seed in range(2):
        values = {"x": x["x"] + np.float32(seed)}
        copied = opencl.copied()["in"]
        assert relative_error(model.run(values)["y"], reference(deep, values)["y"]) < 1e-4
        assert opencl.copied()["in"] - copied >= WEIGHTS_MIB * 2**20
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


def copy_of(path: Path, folder: Path) -> Path:
    target = folder / "copy.tvme"
    target.write_bytes(path.read_bytes())
    return target


def test_a_file_that_is_cut_between_runs(
    streamed: dict[str, Path], x: dict[str, np.ndarray], tmp_path: Path, target: str
) -> None:
    path = copy_of(streamed[target], tmp_path)
    content = path.read_bytes()
    model = tvm_edge.load(path)
    expected = model.run(x)["y"]
    os.truncate(path, len(content) // 2)
    with pytest.raises(ArtifactError, match=r"was cut .* export it again") as caught:
        model.run(x)
    assert str(path) in str(caught.value)
    with path.open("r+b") as file:
        file.write(content)
    np.testing.assert_array_equal(model.run(x)["y"], expected)


def test_a_file_that_is_cut_in_a_run(
    streamed: dict[str, Path],
    x: dict[str, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
) -> None:
    """The run fails, and the next one is right again when the file is."""
    path = copy_of(streamed[target], tmp_path)
    content = path.read_bytes()
    model = tvm_edge.load(path)
    expected = model.run(x)["y"]
    # Not while a kernel reads what is mapped: then it is SIGBUS, as for all mapped weights.
    copies = target == "cuda" or (
        target == "opencl" and opencl.borrow(tvm.runtime.empty((64,))) is None
    )
    name = "upload_part" if copies else "next_part"
    original, calls = getattr(WeightStream, name), []

    def cut_at_third(self: WeightStream, *arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            os.truncate(path, 1 << 20)
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(WeightStream, name, cut_at_third)
        with pytest.raises(ArtifactError, match="was cut"):
            model.run(x)
    assert 3 <= len(calls) <= 5  # a GPU has one part by then, and is getting another
    with path.open("r+b") as file:
        file.write(content)
    for _ in range(2):
        np.testing.assert_array_equal(model.run(x)["y"], expected)


@pytest.mark.usefixtures("own_memory")
def test_a_part_that_could_not_be_read_ahead_is_read_again(
    streamed: dict[str, Path], x: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tvm_edge.load(streamed["opencl"])
    expected = model.run(x)["y"]
    original, calls = MappedFile.read_into, []

    def failing(self: MappedFile, into: np.ndarray, address: int) -> None:
        calls.append(address)
        if len(calls) % 3 == 0:
            raise ArtifactError("the disk is away for a moment")
        original(self, into, address)

    monkeypatch.setattr(MappedFile, "read_into", failing)
    for _ in range(2):
        np.testing.assert_array_equal(model.run(x)["y"], expected)
    assert len(calls) > 3 * 8 * LAYERS * 2 / 4


def test_a_file_that_is_gone(
    streamed: dict[str, Path], x: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """Its pages stay as long as somebody has it open."""
    path = copy_of(streamed["llvm"], tmp_path)
    model = tvm_edge.load(path)
    path.unlink()
    np.testing.assert_array_equal(model.run(x)["y"], tvm_edge.load(streamed["llvm"]).run(x)["y"])


def test_mapped_weights_of_a_file_that_is_cut(
    artifact: Path, image: np.ndarray, tmp_path: Path
) -> None:
    """Also those that are not streamed."""
    path = copy_of(artifact, tmp_path)
    model = tvm_edge.load(path)
    model.run({"data": image})
    os.truncate(path, 4096)
    with pytest.raises(ArtifactError, match="was cut"):
        model.run({"data": image})


def test_threads(streamed: dict[str, Path], target: str) -> None:
    """Two models of one file, and two threads on each."""
    models = [tvm_edge.load(streamed[target], num_threads=1) for _ in range(2)]
    random = np.random.default_rng(5)
    inputs = [random.standard_normal((1, WIDTH)).astype("float32") for _ in range(4)]
    expected = [models[0].run({"x": each})["y"] for each in inputs]

    def runs(index: int) -> bool:
        model = models[index % 2]
        found = [model.run({"x": inputs[index]})["y"] for _ in range(4)]
        return all(np.array_equal(each, expected[index]) for each in found)

    assert all(at_once(*(lambda i=i: runs(i) for i in range(len(inputs)))))


def test_frames_of_a_stream(streamed: dict[str, Path], target: str) -> None:
    model = tvm_edge.load(streamed[target], num_threads=1)
    random = np.random.default_rng(6)
    frames = [{"x": random.standard_normal((1, WIDTH)).astype("float32")} for _ in range(4)]
    with model.stream(frames, depth=3) as stream:
        found = [each["y"] for each in stream]
    for frame, each in zip(frames, found, strict=True):
        np.testing.assert_array_equal(each, model.run(frame)["y"])


def test_one_thread_at_a_time_has_the_windows() -> None:
    """Runs and stages of the GPU; stages of the CPU go on beside them."""
    stream = WeightStream([], 1, tvm.cpu())
    inside: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with stream.running(on_gpu=True):
            entered.set()
            leave.wait(20)
            inside.append("first")

    def second() -> None:
        with stream.running(on_gpu=True):
            inside.append("second")

    threads = [threading.Thread(target=run) for run in (first, second)]
    threads[0].start()
    assert entered.wait(20)
    threads[1].start()
    with stream.running(on_gpu=False):
        inside.append("beside")
    threads[1].join(0.05)
    leave.set()
    for thread in threads:
        thread.join(20)
    assert inside == ["beside", "first", "second"]


def test_a_loaded_model_exports_again(streamed: dict[str, Path], tmp_path: Path) -> None:
    for path in streamed.values():
        again = tvm_edge.load(path).export(tmp_path / "again.tvme")
        assert again.read_bytes() == path.read_bytes()


def test_profile(streamed: dict[str, Path]) -> None:
    """Each part is a launch."""
    for path in streamed.values():
        model = tvm_edge.load(path)
        assert [row.name for row in model.profile(repeat=1).kernels] == [
            kernel.name for kernel in model.report.kernels
        ]


def test_ctrl_c_waits_for_the_end_of_a_run(
    streamed: dict[str, Path], x: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two parts Python runs inside of TVM, which no exception of Ctrl-C may unwind."""
    model = tvm_edge.load(streamed["llvm"])
    expected = model.run(x)["y"]
    original, calls = WeightStream.next_part, []

    def interrupted(self: WeightStream, *arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(WeightStream, "next_part", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.run(x)
    assert len(calls) == 8 * LAYERS
    np.testing.assert_array_equal(model.run(x)["y"], expected)
