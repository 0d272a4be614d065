"""Whatever Python's load and run refuse, C refuses in the same words, with a code."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_int32, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper

import tvm_edge
from tests.native.c_api import CModel, Failed, Library, Tensor, tensor_of
from tests.onnx_models import conv_relu, make_model, random_input
from tests.runtime.support import rewrite_artifact, run_python
from tvm_edge.host import CODEGEN_FEATURES, host_features, machine

INPUT, ARTIFACT, DEVICE, MEMORY, HANDLE = 1, 2, 3, 4, 5
SMALL = (1, 3, 16, 16)
_ERRORS: dict[int, type[Exception]] = {
    INPUT: tvm_edge.InputError,
    ARTIFACT: tvm_edge.ArtifactError,
    DEVICE: tvm_edge.DeviceUnavailableError,
}


def same(status: int, python: Callable[[], Any], c: Callable[[], Any], words: str) -> None:
    """Both refuse; the words, the parts of an InputError and the code agree."""
    with pytest.raises(_ERRORS[status], match=words) as expected:
        python()
    with pytest.raises(Failed) as found:
        c()
    assert str(found.value) == str(expected.value)
    assert found.value.status == status
    for part in ("name", "expected", "got"):
        if status == INPUT and getattr(expected.value, part) is not None:
            assert getattr(found.value, part) == getattr(expected.value, part)


# ------------------------------------------------------------------------------------- loading


def _lacking() -> str:
    return sorted(CODEGEN_FEATURES - (host_features() or frozenset()))[0]


EDITS: dict[str, tuple[int, Callable[[dict[str, Any]], Any], str]] = {
    "format": (ARTIFACT, lambda m: m.update(format_version=2), "has format 2"),
    "tvm": (ARTIFACT, lambda m: m["versions"].update(tvm="0.25.0"), "apache-tvm==0.25.0"),
    "machine": (
        ARTIFACT,
        lambda m: m["target"].update(architecture="mips"),
        f"is compiled for mips, and this machine is {machine()}",
    ),
    "feature": (DEVICE, lambda m: m["target"]["features"].append(_lacking()), "lacks"),
    "weight": (ARTIFACT, lambda m: m["weights"][0].update(offset=1 << 40), "outside weights.bin"),
    "input": (ARTIFACT, lambda m: m["inputs"][0].update(shape=[2**40, 2**40]), "damaged"),
    "target": (ARTIFACT, lambda m: m["target"].update(kind="hexagon"), "hexagon"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_artifact_of_something_else(artifact: Path, tmp_path: Path, name: str) -> None:
    status, edit, words = EDITS[name]
    path = rewrite_artifact(artifact, tmp_path / "other.tvme", edit)
    same(status, lambda: tvm_edge.load(path), lambda: CModel(path), words)


def test_no_artifact(artifact: Path, tmp_path: Path) -> None:
    content = artifact.read_bytes()
    altered = bytearray(content)
    altered[content.index(b"\x7fELF") + 2000] ^= 1
    files = {
        "empty": (b"", "is empty"),
        "text": (b"model: mobilenet", "is not a tvm-edge artifact"),
        "cut": (content[: len(content) // 2], "truncated or damaged"),
        "altered": (bytes(altered), "was altered: the checksum of library.so does not match"),
    }
    for name, (made, words) in files.items():
        path = tmp_path / f"{name}.tvme"
        path.write_bytes(made)
        same(ARTIFACT, lambda p=path: tvm_edge.load(p), lambda p=path: CModel(p), words)
        if made:  # ctypes' empty bytes are a null pointer's
            same(ARTIFACT, lambda m=made: tvm_edge.load(m), lambda m=made: CModel(m), "'memory'")
    for path, words in ((tmp_path / "none.tvme", "No such file"), (tmp_path, "Is a directory")):
        same(ARTIFACT, lambda p=path: tvm_edge.load(p), lambda p=path: CModel(p), words)


def test_a_descriptor_of_no_file(artifact: Path) -> None:
    read, write = os.pipe()
    closed = os.dup(read)
    os.close(closed)
    for descriptor, words in ((read, "Illegal seek"), (closed, "Bad file descriptor")):
        with pytest.raises(Failed, match=words) as found:
            CModel(descriptor)
        assert found.value.status == ARTIFACT
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    "device, status, words",
    [
        ("gpu", INPUT, "is not the name of a device"),
        ("opencl:x", INPUT, "is not the name of a device"),
        ("opencl", DEVICE, "compiled for llvm and cannot run on 'opencl'"),
        ("cpu:1", DEVICE, "there is no device 'cpu:1'"),
    ],
)
def test_another_device(artifact: Path, device: str, status: int, words: str) -> None:
    same(
        status,
        lambda: tvm_edge.load(artifact, device=device),
        lambda: CModel(artifact, device=device.encode()),
        words,
    )


def test_threads_and_cpus_that_are_not_there(artifact: Path) -> None:
    same(
        INPUT,
        lambda: tvm_edge.load(artifact, num_threads=-1),
        lambda: CModel(artifact, num_threads=-1),
        "num_threads",
    )
    for given in ([4000], [4001, 0, 4000]):
        cpus = (c_int32 * len(given))(*given)
        same(
            INPUT,
            lambda given=given: tvm_edge.load(artifact, cpus=given),
            lambda cpus=cpus: CModel(artifact, cpus=cpus, num_cpus=len(cpus)),
            "4000",
        )


@pytest.fixture(scope="module")
def on_gpu(on_opencl: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tvm_edge.compile(conv_relu(), "opencl")
    return model.export(tmp_path_factory.mktemp("refusals") / "on_gpu.tvme")


def test_a_device_that_is_missing(on_gpu: Path) -> None:
    same(
        DEVICE,
        lambda: tvm_edge.load(on_gpu, device="opencl:99"),
        lambda: CModel(on_gpu, device=b"opencl:99"),
        "TVM finds no device opencl:99 on this machine .* run: tvm-edge doctor",
    )


_NO_DRIVER = """
import sys
from pathlib import Path
import tvm_edge
from tests.native.c_api import CModel, Failed

try:
    tvm_edge.load(sys.argv[1])
except tvm_edge.DeviceUnavailableError as error:
    print(error)
try:
    CModel(Path(sys.argv[1]))
except Failed as error:
    print(error)
    print(error.status)
"""


@pytest.mark.full
def test_a_machine_without_a_driver(on_gpu: Path) -> None:
    environment: dict[str, str | None] = {"TVM_EDGE_OPENCL_LIBRARY": "/nonexistent/libOpenCL.so"}
    python, c, status = run_python(_NO_DRIVER, on_gpu, environment=environment).splitlines()
    assert "TVM finds no device opencl:0" in python
    assert c == python and int(status) == DEVICE


_LIMITED = """
import resource, sys
from pathlib import Path
from tests.native.c_api import CModel, Failed, Library

path = Path(sys.argv[1])
library = Library()
CModel(path, library).free()
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
said = set()
for mib in (0, 1, 2, 4, 6, 8):
    resource.setrlimit(resource.RLIMIT_AS, (now + (mib << 20), resource.RLIM_INFINITY))
    try:
        CModel(path, library, copy=1).free()
    except Failed as error:
        said.add((error.status, str(error)))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
CModel(path, library, copy=1).free()
for status, message in said:
    print(status, message)
"""


def test_memory_that_is_not_there(tmp_path: Path) -> None:
    """Weights of 16 MiB are copied where there is none for them."""
    add = helper.make_node("Add", ["data", "weight"], ["sum"])
    weights = {"weight": np.ones((1, 1 << 22), "float32")}
    model = make_model([add], {"data": (1, 1 << 22)}, ["sum"], weights)
    path = tvm_edge.compile(model, "llvm", num_threads=1).export(tmp_path / "wide.tvme")
    said = run_python(_LIMITED, path).splitlines()
    assert f"{MEMORY} there is no memory for the artifact '{path}'" in said
    assert {line.split()[0] for line in said} <= {str(ARTIFACT), str(MEMORY)}, said


# ------------------------------------------------------------------------------------- running


_ALONE = """
import sys
from pathlib import Path
import numpy as np
from tests.native.c_api import CModel, Failed

model = CModel(Path(sys.argv[1]))
try:
    model.run({"data": np.zeros((1, 3, 16, 16), "float32")}, ["pooled"])
except Failed as error:
    print(error.status, error)
assert "tvm" not in sys.modules
"""


def test_code_that_takes_other_weights(artifact: Path, tmp_path: Path) -> None:
    """A kernel says so, also where nobody but the library has opened TVM's."""

    def edit(manifest: dict[str, Any]) -> None:
        manifest["weights"][1]["shape"].insert(0, 1)

    path = rewrite_artifact(artifact, tmp_path / "other.tvme", edit)
    folders = [Path(str(module.__file__)).parent / "lib" for module in (tvm, tvm_ffi)]
    found: dict[str, str | None] = {"LD_LIBRARY_PATH": ":".join(map(str, folders))}
    said = run_python(_ALONE, path, environment=found)
    assert said.startswith(f"{ARTIFACT} the code of this model takes other inputs or weights than")


def test_open_dimensions(tmp_path: Path) -> None:
    shape = (1, 3, tvm_edge.Dim("h", min=8, max=32, multiple=4), "w")
    model = tvm_edge.compile(conv_relu(), "llvm", input_shapes={"data": shape})
    path = model.export(tmp_path / "open.tvme")
    python, c = tvm_edge.load(path), CModel(path)
    for given, words in (((1, 3, 10, 8), "'h' takes"), ((1, 4, 8, 8), "the model takes")):
        x = {"data": np.zeros(given, "float32")}
        same(INPUT, lambda x=x: python.run(x), lambda x=x: c.run(x, ["pooled"]), words)


def test_names_of_models_and_outputs(tmp_path: Path) -> None:
    models = {"a": conv_relu(), "b": conv_relu()}
    path = tvm_edge.compile(models, "llvm").export(tmp_path / "both.tvme")
    python, c = tvm_edge.load(path), CModel(path)
    x = {"a/data": random_input(SMALL), "b/data": random_input(SMALL)}
    calls: list[tuple[str, list[str], str]] = [
        ("c", ["a/pooled"], "has no model 'c'"),
        ("b", ["a/pooled"], "which does not run; add 'a' to models"),
        ("b", ["b/poled"], "has no output 'b/poled'"),
    ]
    for model, outputs, words in calls:
        same(
            INPUT,
            lambda m=model, o=outputs: python.run(x, models=[m], outputs=o),
            lambda m=model, o=outputs: c.run(x, o, [m]),
            words,
        )


def test_values_that_give_no_shape(tmp_path: Path) -> None:
    """A kernel finds them out while it runs."""
    reshape = helper.make_node("Reshape", ["data", "shape"], ["y"])
    model = make_model(
        [reshape],
        {"data": (2, 6), "shape": (2,)},
        ["y"],
        dtypes={"shape": TensorProto.INT64},
    )
    path = tvm_edge.compile(model, "llvm").export(tmp_path / "reshape.tvme")
    python, c = tvm_edge.load(path), CModel(path)
    x = {"data": random_input((2, 6)), "shape": np.array([5, 3])}
    same(INPUT, lambda: python.run(x), lambda: c.run(x, ["y"]), "check the values")
    x["shape"] = np.array([3, 4])
    np.testing.assert_array_equal(c.run(x, ["y"])["y"], python.run(x)["y"])


def test_a_file_that_is_cut_or_written(artifact: Path, tmp_path: Path) -> None:
    x = {"data": random_input(SMALL)}
    changes: dict[str, Callable[[Path], Any]] = {
        "was cut": lambda path: os.truncate(path, 4096),
        "was written to": lambda path: path.open("r+b").write(b"PK"),
    }
    for words, change in changes.items():
        path = tmp_path / "file.tvme"
        path.write_bytes(artifact.read_bytes())
        python, c = tvm_edge.load(path), CModel(path)
        c.run(x, ["pooled"])
        change(path)
        same(ARTIFACT, lambda p=python: p.run(x), lambda m=c: m.run(x, ["pooled"]), words)
        path.unlink()


_FORKED = """
import os, sys
from pathlib import Path
import numpy as np
import tvm_edge
from tests.native.c_api import CModel, Failed

x = {"data": np.zeros((1, 3, 16, 16), "float32")}
python, c = tvm_edge.load(sys.argv[1]), CModel(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    try:
        python.run(x)
    except tvm_edge.DeviceUnavailableError as error:
        print(error, flush=True)
    try:
        c.run(x, ["pooled"])
    except Failed as error:
        print(error)
        print(error.status, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.full
def test_a_fork_of_a_process_with_a_gpu(on_gpu: Path) -> None:
    python, c, status = run_python(_FORKED, on_gpu).splitlines()
    assert "before the process forked" in python
    assert c == python and int(status) == DEVICE


# ------------------------------------------------------------------------------------- handles


def test_a_model_that_is_freed_while_threads_run_it(artifact: Path) -> None:
    """Each run is right, or is refused because the handle is none any more."""
    x = random_input(SMALL)
    expected = tvm_edge.load(artifact).run({"data": x})["pooled"]
    model = CModel(artifact)
    begun = threading.Barrier(5)

    def runs() -> set[int]:
        statuses = set()
        begun.wait()
        for _ in range(400):
            try:
                found = model.run({"data": x}, ["pooled"])["pooled"]
                np.testing.assert_array_equal(found, expected)
            except Failed as error:
                statuses.add(error.status)
                assert "is no handle, or was freed" in str(error)
        return statuses

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(runs) for _ in range(4)]
        begun.wait()
        model.free()
        statuses = set().union(*(each.result() for each in done))
    assert statuses == {HANDLE}


def test_errors_are_the_threads_own(artifact: Path) -> None:
    library, model = Library(), CModel(artifact)
    functions = library.functions
    functions.tvm_edge_last_error.restype = ctypes.c_char_p
    with pytest.raises(Failed):
        model.run({}, ["pooled"])
    mine = functions.tvm_edge_last_error()
    assert b"missing" in mine

    def other() -> bytes:
        with pytest.raises(Failed):
            CModel(Path("/nonexistent.tvme"))
        return bytes(functions.tvm_edge_last_error())

    with ThreadPoolExecutor(1) as pool:
        assert b"/nonexistent.tvme" in pool.submit(other).result()
    assert functions.tvm_edge_last_error() == mine


@pytest.mark.parametrize("wrong", [{"nbytes": 31}, {"data": None, "nbytes": 7}])
def test_an_output_that_is_refused_is_left_as_it_was(
    artifact: Path, wrong: Mapping[str, Any]
) -> None:
    """Memory that is too small is not written to; without memory nbytes is not looked at."""
    library, model = Library(), CModel(artifact)
    room = np.full((1, 8, 1, 1), 7, "float32")
    output, given = tensor_of("pooled", room), tensor_of("data", random_input(SMALL))
    for name, value in wrong.items():
        setattr(output, name, value)
    one = c_size_t(1)
    call = ("run", model.handle, None, byref(given), one, byref(output), one)
    if output.data is None:
        library.call(*call)
        assert output.nbytes == 32 and output.owner
        library.functions.tvm_edge_release(byref(output))
    else:
        with pytest.raises(Failed, match="has 32 bytes, and the memory for it 31") as caught:
            library.call(*call)
        assert caught.value.status == INPUT
    np.testing.assert_array_equal(room, 7)


def test_waiting_twice(artifact: Path) -> None:
    library, model = Library(), CModel(artifact)
    handle, output, one = c_void_p(), Tensor(name=b"pooled"), c_size_t(1)
    given = tensor_of("data", random_input(SMALL))
    library.call(
        *("run_async", model.handle, None, byref(given), one, byref(output), one),
        *(c_size_t(1), byref(handle)),
    )
    library.call("wait", handle)
    with pytest.raises(Failed, match="pending is no handle") as caught:
        library.call("wait", handle)
    assert caught.value.status == HANDLE
    library.functions.tvm_edge_release(byref(output))
