"""A file of weights that somebody cuts while a kernel reads it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model, reference, relative_error
from tests.runtime.support import run_child
from tvm_edge import ArtifactError
from tvm_edge.compiler.driver import compile_with
from tvm_edge.runtime.mapped_file import MappedFile

WIDTH = 1024
SIZE = 1 << 20  # of a file without a model

# A file of ours is mapped, one of somebody else's is cut and read.
NOT_OURS = """
import faulthandler, mmap, os, sys
from pathlib import Path
if sys.argv[2] == "handler":
    faulthandler.enable()
from tvm_edge.runtime.mapped_file import MappedFile
path = Path(sys.argv[1])
path.write_bytes(b"1" * 65536)
with path.open("rb") as file:
    ours = MappedFile(file, str(path))
other = path.with_suffix(".other")
other.write_bytes(b"1" * 65536)
with other.open("rb") as file:
    view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
os.truncate(other, 0)
print("read", flush=True)
view[0]
"""


# Somebody takes the signal after us, as LLVM does while a driver compiles with it.
TAKEN = """
import ctypes, os, signal, sys
from pathlib import Path
from tvm_edge.runtime.mapped_file import MappedFile
path = Path(sys.argv[1])
path.write_bytes(b"1" * 65536)
with path.open("rb") as file:
    ours = MappedFile(file, str(path))
ctypes.CDLL(None).signal(signal.SIGBUS, ctypes.c_void_p(0))  # SIG_DFL
ours.check()
os.truncate(path, 0)
print(ours[0])
"""


def mapped(path: Path) -> MappedFile:
    path.write_bytes(b"\x01" * SIZE)
    with path.open("rb") as file:
        return MappedFile(file, str(path))


def test_what_is_cut_away_reads_as_zeros(tmp_path: Path) -> None:
    file = mapped(tmp_path / "pages")
    view = np.frombuffer(file, np.uint8)
    os.truncate(tmp_path / "pages", SIZE // 2)
    with pytest.raises(ArtifactError, match=f"was cut from {SIZE} to {SIZE // 2} bytes"):
        file.check()
    assert view[: SIZE // 2].all()
    assert not view[SIZE // 2 :].any()
    assert view[: SIZE // 2].all()  # what is there still was not replaced


def write_back(path: Path, times: os.stat_result) -> None:
    """As a copy that keeps the time of writing does, which is no sign of a change then."""
    path.write_bytes(b"\x01" * SIZE)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_what_was_read_as_zeros_is_not_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    file, other = mapped(path), mapped(tmp_path / "other")
    view = np.frombuffer(file, np.uint8)
    times = path.stat()
    os.truncate(path, 0)
    write_back(path, times)
    file.check()  # nobody has read it meanwhile
    assert view.all()
    os.truncate(path, 0)
    assert not view[-1]
    write_back(path, times)
    with pytest.raises(ArtifactError, match="as long as it was again; load it anew"):
        file.check()
    other.check()
    # Nor does it cling to whatever is mapped there next.
    del view, file
    for number in range(4):
        mapped(tmp_path / f"new{number}").check()


@pytest.mark.parametrize("before", ["handler", "nothing"])
def test_the_files_of_others_are_not_guarded(tmp_path: Path, before: str) -> None:
    done = run_child(["-c", NOT_OURS, str(tmp_path / "ours"), before])
    assert done.stdout == "read\n", done.stderr
    assert done.returncode == -signal.SIGBUS
    assert ("Bus error" in done.stderr) == (before == "handler")


def test_the_signal_is_taken_back(tmp_path: Path) -> None:
    """At the latest when a run begins."""
    done = run_child(["-c", TAKEN, str(tmp_path / "ours")])
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.fixture(scope="module")
def dense() -> onnx.ModelProto:
    """Two dense layers with 4 MiB of weights each."""
    random = np.random.default_rng(0)
    weights = {f"w{i}": random.standard_normal((WIDTH, WIDTH), np.float32) for i in range(2)}
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["t"]),
        helper.make_node("MatMul", ["t", "w1"], ["y"]),
    ]
    return make_model(nodes, {"x": (1, WIDTH)}, ["y"], weights)


@pytest.mark.parametrize("weights", ["whole", "in parts"])
@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_a_file_that_is_cut_under_a_kernel(
    dense: onnx.ModelProto,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    weights: str,
) -> None:
    """That run fails, and so does every other of this model; one that is loaded anew is right."""
    window = {"weight_window": 1 << 20} if weights == "in parts" else {}
    path = tmp_path / "model.tvme"
    compile_with(dense, target, {}, fallback="none", num_threads=1, **window).export(path)
    content = path.read_bytes()
    x = {"x": np.random.default_rng(3).standard_normal((1, WIDTH)).astype("float32")}
    model = tvm_edge.load(path)
    assert bool(model.report.splits) == (weights == "in parts")
    expected = model.run(x)["y"]

    # The last thing that happens to a file before kernels read it.
    name = "is_in_memory" if weights == "in parts" else "check"
    original, calls = getattr(MappedFile, name), []

    def and_cut(self: MappedFile, *arguments: Any) -> Any:
        result = original(self, *arguments)
        calls.append(result)
        if len(calls) == 1:
            os.truncate(path, 1 << 16)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(MappedFile, name, and_cut)
        with pytest.raises(ArtifactError, match="was cut from"):
            model.run(x)
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="load it anew"):
        model.run(x)
    again = tvm_edge.load(path).run(x)["y"]
    np.testing.assert_array_equal(again, expected)
    assert relative_error(again, reference(dense, x)["y"]) < 1e-4


def test_a_run_that_returned_has_read_its_weights(dense: onnx.ModelProto, tmp_path: Path) -> None:
    """Also on a device whose kernels run on, as what they make of zeros nobody would notice."""
    path = tmp_path / "model.tvme"
    tvm_edge.compile(dense, "opencl", fallback="none", num_threads=1).export(path)
    content = path.read_bytes()
    x = {"x": np.random.default_rng(3).standard_normal((1, WIDTH)).astype("float32")}
    for _ in range(3):
        path.write_bytes(content)
        model = tvm_edge.load(path)
        expected = model.run(x)["y"]
        tensor = model.run(x, device_outputs=True)["y"]
        os.truncate(path, 1 << 16)
        np.testing.assert_array_equal(tensor.numpy(), expected)
