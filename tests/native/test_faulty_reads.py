"""Reads that fail, while an artifact is loaded and while its weights are streamed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import tvm_edge.opencl
from tests.onnx_models import make_model
from tests.runtime.support import run_python
from tvm_edge.compiler.driver import compile_with

WIDTH = 512


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("reads") / "faulty_reads.so"
    source = Path(__file__).with_name("faulty_reads.c")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, source, "-o", library], check=True)
    return library


@pytest.fixture(scope="module")
def streamed(on_opencl: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three dense layers of a MiB each for OpenCL, in four parts each."""
    random = np.random.default_rng(0)
    tensors = ["x", "a", "b", "y"]
    nodes = [
        helper.make_node("MatMul", [tensors[i], f"w{i}"], [tensors[i + 1]], name=f"fc{i}")
        for i in range(3)
    ]
    weights = {f"w{i}": random.standard_normal((WIDTH, WIDTH), np.float32) for i in range(3)}
    model = make_model(nodes, {"x": (1, WIDTH)}, ["y"], weights)
    window = WIDTH * WIDTH * 2
    compiled = compile_with(
        model, "opencl", {}, fallback="none", weight_window=window, num_threads=1
    )
    assert [split.parts for split in compiled.report.splits] == [4, 4, 4]
    return compiled.export(tmp_path_factory.mktemp("streamed") / "streamed.tvme")


_BEGIN = """
import ctypes, errno, os, signal, sys, threading
from pathlib import Path
import numpy as np
import tvm
import tvm_edge
from tests.native.c_api import CModel, Failed

path = Path(sys.argv[1])
faults = ctypes.CDLL(os.environ["LD_PRELOAD"])
faults.faulty_reads.argtypes = [ctypes.c_long, ctypes.c_int]


def refused(call):
    try:
        made = call()
        if isinstance(made, CModel):
            made.free()
    except tvm_edge.ArtifactError as error:
        return str(error)
    except Failed as error:
        assert error.status == 2, error.status
        return str(error)


def descriptors():
    return len(os.listdir("/proc/self/fd"))
"""

_LOAD = f"""{_BEGIN}
x = {{"data": np.ones((1, 3, 16, 16), "float32")}}
expected = tvm_edge.load(path).run(x)["pooled"]
CModel(path).free()
before = descriptors()
count = 0
while True:  # each read of a load in turn
    said = []
    for load in (tvm_edge.load, CModel):
        faults.faulty_reads(count, errno.EIO)
        said.append(refused(lambda: load(path)))
    if not faults.was_faulty():
        break
    assert said[0] == said[1], said
    words = f"cannot read the artifact {{str(path)!r}}: Input/output error; check the path"
    assert said[0] == words, said
    count += 1
faults.sound_reads()
assert count > 4, count
import gc; gc.collect()
assert descriptors() == before, (descriptors(), before)
faults.short_reads(1000)
found = CModel(path, copy=1).run(x, ["pooled"])["pooled"]
np.testing.assert_array_equal(found, expected)
faults.short_reads(0)

# Ctrl-C within a read: C goes on, whatever the program's handler does; Python raises it at the end.
came = []
handler = signal.signal(signal.SIGINT, lambda *_: came.append(1))
for number in range(count):
    faults.faulty_reads(number, 0)
    np.testing.assert_array_equal(CModel(path).run(x, ["pooled"])["pooled"], expected)
assert sum(came) == count, (came, count)
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in range(count):
    faults.faulty_reads(number, 0)
    try:
        tvm_edge.load(path)
    except KeyboardInterrupt:
        came.append(2)
assert came.count(2) == count, (came, count)
gc.collect()
np.testing.assert_array_equal(tvm_edge.load(path).run(x)["pooled"], expected)
print("done")
"""


def test_a_load_at_each_of_its_reads(preloaded: Path, artifact: Path) -> None:
    """Errors of the disk are refused by Python and C in the same words; Ctrl-C breaks nothing."""
    assert run_python(_LOAD, artifact, environment={"LD_PRELOAD": str(preloaded)}) == "done\n"


_STREAM = f"""{_BEGIN}
from tests.global_functions import overridden

x = {{"x": np.random.default_rng(1).standard_normal((1, {WIDTH})).astype("float32")}}
with overridden("tvm_edge.opencl.borrow", lambda _: lambda *_: None):  # parts are copied
    expected = tvm_edge.load(path, copy=True).run(x)["y"]
    python, c = tvm_edge.load(path), CModel(path)
    runs = (lambda: python.run(x)["y"], lambda: c.run(x, ["y"])["y"])
    for run in runs:
        np.testing.assert_array_equal(run(), expected)
    failed = 0
    for number in range(6):
        said = []
        for run in runs:
            faults.faulty_reads(number, errno.EIO)
            said.append(refused(run))
            faults.sound_reads()
            for _ in range(2):  # the next run is right
                np.testing.assert_array_equal(run(), expected)
        for words in filter(None, said):
            assert words.startswith(f"cannot read {{str(path)!r}}: Input/output error; copy it")
            failed += 1
    # Threads take turns at the windows.
    inputs = [np.random.default_rng(seed).standard_normal((1, {WIDTH})).astype("float32")
              for seed in range(4)]
    wanted = [python.run({{"x": each}})["y"] for each in inputs]
    wrong = []

    def turns(index):
        for _ in range(5):
            found = c.run({{"x": inputs[index]}}, ["y"])["y"]
            if not np.array_equal(found, wanted[index]):
                wrong.append(index)

    threads = [threading.Thread(target=turns, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
print(failed)
"""


@pytest.mark.parametrize("memory", ["svm", pytest.param("buffer", marks=pytest.mark.full)])
def test_parts_of_streamed_weights(preloaded: Path, streamed: Path, memory: str) -> None:
    """Two windows, which another thread fills; and one, into which a run copies what is mapped."""
    if memory == "svm" and tvm_edge.opencl.device_info()["svm"] == "none":
        pytest.skip("the device has no shared virtual memory")
    environment: dict[str, str | None] = {
        "LD_PRELOAD": str(preloaded),
        "TVM_EDGE_OPENCL_MEMORY": memory,
    }
    failed = int(run_python(_STREAM, streamed, environment=environment))
    assert (failed >= 6) == (memory == "svm"), failed  # a mapping is not read
