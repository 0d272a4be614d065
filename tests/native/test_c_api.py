"""The C API: the results of Python, and its refusals in the same words."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

import tvm_edge
from tests.native.alterations import altered, run_altered
from tests.native.c_api import CModel, Failed, Library, Tensor, array_of, tensor_of
from tests.onnx_models import conv_relu, random_input
from tvm_edge import zoo
from tvm_edge.errors import TvmEdgeError

INPUT, ARTIFACT, DEVICE, HANDLE = 1, 2, 3, 5
SMALL = (1, 3, 16, 16)


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tvm_edge.compile("zoo:shapes_ssd", "llvm")
    return model.export(tmp_path_factory.mktemp("c_api") / "detector.tvme")


def detector_input() -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in zoo.sample_input("shapes_ssd").items()}


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)


def test_the_bits_of_python_from_path_descriptor_and_memory(detector: Path) -> None:
    """The number of detections is known after the run."""
    x = detector_input()
    expected = tvm_edge.load(detector).run(x)
    assert len(expected["scores"])
    for source in (detector, detector.read_bytes()):
        model = CModel(source)
        same(model.run(x, list(expected)), expected)
        model.free()
    descriptor = os.open(detector, os.O_RDONLY)
    model = CModel(descriptor)
    os.close(descriptor)
    same(model.run(x, list(expected)), expected)


def test_the_bits_of_python_on_opencl(on_opencl: None, tmp_path: Path) -> None:
    compiled = tvm_edge.compile("zoo:shapes_ssd", "opencl")
    path = compiled.export(tmp_path / "detector.tvme")
    x = detector_input()
    expected = tvm_edge.load(path).run(x)
    same(CModel(path).run(x, list(expected)), expected)


@pytest.mark.full
@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_the_bits_of_python_of_a_classifier(on_opencl: None, target: str, tmp_path: Path) -> None:
    path = tvm_edge.compile("zoo:mobilenet_v2", target).export(tmp_path / "model.tvme")
    x = zoo.sample_input("mobilenet_v2")
    expected = tvm_edge.load(path).run(x)
    same(CModel(path).run(x, list(expected)), expected)


def test_open_dimensions_and_several_models(tmp_path: Path) -> None:
    models = {"a": conv_relu(SMALL), "b": conv_relu(SMALL)}
    path = tvm_edge.compile(models, "llvm").export(tmp_path / "both.tvme")
    x = {name: random_input(SMALL, seed) for seed, name in enumerate(("a/data", "b/data"))}
    python = tvm_edge.load(path)
    names = [spec.name for spec in python.outputs]
    model = CModel(path)
    same(model.run(x, names), python.run(x))
    (of_b,) = (name for name in names if name.startswith("b/"))
    same(model.run({"b/data": x["b/data"]}, [of_b], ["b"]), python.run(x, models=["b"]))
    with pytest.raises(Failed, match="which does not run; add 'a' to models"):
        model.run(x, [names[0]], ["b"])
    with pytest.raises(Failed, match="the artifact has no model 'c'"):
        model.run(x, [], ["c"])
    shapes = {"data": (1, 3, "h", "w")}
    open_path = tvm_edge.compile(conv_relu(SMALL), "llvm", input_shapes=shapes).export(
        tmp_path / "open.tvme"
    )
    python, model = tvm_edge.load(open_path), CModel(open_path)
    for shape in ((1, 3, 9, 5), (1, 3, 16, 33)):
        inputs = {"data": random_input(shape)}
        expected = python.run(inputs)
        same(model.run(inputs, list(expected)), expected)


WRONG: list[dict[str, np.ndarray]] = [
    {},
    {"dta": np.zeros(SMALL, "float32")},
    {"data": np.zeros((1, 3, 16, 17), "float32")},
    {"data": np.zeros(SMALL, "float64")},
    {"data": np.zeros(SMALL, "float32"), "more": np.zeros(1, "float32")},
]


@pytest.mark.parametrize("inputs", WRONG, ids=range(len(WRONG)))
def test_inputs_are_refused_in_the_words_of_python(
    artifact: Path, inputs: dict[str, np.ndarray]
) -> None:
    with pytest.raises(tvm_edge.InputError) as expected:
        tvm_edge.load(artifact).run(inputs)
    with pytest.raises(Failed) as found:
        CModel(artifact).run(inputs, ["pooled"])
    assert found.value.status == INPUT
    assert str(found.value) == str(expected.value)
    for field in ("name", "expected", "got"):
        assert getattr(found.value, field) == getattr(expected.value, field)


def test_arguments_that_no_program_should_pass(artifact: Path) -> None:
    library, model = Library(), CModel(artifact)
    array = random_input(SMALL)
    with pytest.raises(Failed, match="no output 'pooledd'"):
        model.run({"data": array}, ["pooledd"])
    bad: list[tuple[dict[str, Any], str]] = [
        ({"nbytes": 5}, "has 5 bytes"),
        ({"data": None}, "has no data"),
        ({"ndim": 9}, "has 9 dimensions"),
        ({"ndim": -1}, "dimensions"),
        ({"device_type": 2}, "on a device of the type 2"),
        ({"name": None}, "has no input"),
    ]
    for fields, message in bad:
        tensor = tensor_of("data", array)
        for name, value in fields.items():
            setattr(tensor, name, value)
        output = Tensor(name=b"pooled")
        with pytest.raises(Failed, match=message) as caught:
            one = c_size_t(1)
            library.call("run", model.handle, None, byref(tensor), one, byref(output), one)
        assert caught.value.status == INPUT
    for call in (
        lambda: library.call("load", None, None, byref(c_void_p())),
        lambda: library.call("load", str(artifact).encode(), None, None),
        lambda: library.call("run", model.handle, None, None, c_size_t(1), None, c_size_t(0)),
        lambda: library.call("num_inputs", model.handle, None),
    ):
        with pytest.raises(Failed, match="is null"):
            call()
    with pytest.raises(Failed, match="struct_size"):
        library.call("load", str(artifact).encode(), byref(c_size_t(0)), byref(c_void_p()))


def test_handles_that_are_none(artifact: Path) -> None:
    model = CModel(artifact)
    model.free()
    for handle in (model.handle, c_void_p(12345)):
        for call in ("free", "num_inputs"):
            with pytest.raises(Failed, match="no handle, or was freed") as caught:
                arguments = () if call == "free" else (byref(c_size_t()),)
                Library().call(call, handle, *arguments)
            assert caught.value.status == HANDLE
    with pytest.raises(Failed, match="pending"):
        Library().call("wait", c_void_p(5))


def test_memory_of_the_callers(artifact: Path) -> None:
    """Too little is refused; enough is written to, and results outlive the model."""
    library, model = Library(), CModel(artifact)
    x = random_input(SMALL)
    expected = tvm_edge.load(artifact).run({"data": x})["pooled"]
    room = np.zeros_like(expected)
    given, one = tensor_of("data", x), c_size_t(1)
    output = tensor_of("pooled", room)
    library.call("run", model.handle, None, byref(given), one, byref(output), one)
    np.testing.assert_array_equal(room, expected)
    output.nbytes -= 1
    with pytest.raises(Failed, match="the memory for it"):
        library.call("run", model.handle, None, byref(given), one, byref(output), one)
    owned = Tensor(name=b"pooled")
    for _ in range(2):  # the memory of the first run is released by the second
        library.call("run", model.handle, None, byref(given), one, byref(owned), one)
    model.free()
    np.testing.assert_array_equal(array_of(owned), expected)
    library.functions.tvm_edge_release(byref(owned))
    assert owned.data is None


def test_runs_in_the_background_and_from_threads(artifact: Path) -> None:
    library, model = Library(), CModel(artifact)
    inputs = [random_input(SMALL, seed) for seed in range(6)]
    python = tvm_edge.load(artifact)
    expected = [python.run({"data": x})["pooled"] for x in inputs]
    pending, outputs, one = [], [], c_size_t(1)
    for x in inputs:
        handle, output = c_void_p(), Tensor(name=b"pooled")
        copy = x.copy()
        library.call(
            *("run_async", model.handle, None, byref(tensor_of("data", copy)), one),
            *(byref(output), one, c_size_t(2), byref(handle)),
        )
        copy[:] = np.nan  # the memory is the caller's again
        pending.append(handle)
        outputs.append(output)
    model.free()
    for handle, output, wanted in zip(pending, outputs, expected, strict=True):
        library.call("wait", handle)
        np.testing.assert_array_equal(array_of(output), wanted)
    model = CModel(artifact)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: model.run({"data": x}, ["pooled"])["pooled"], inputs * 4))
    for value, wanted in zip(found, expected * 4, strict=True):
        np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.full)])
def test_altered_artifacts_crash_nothing(artifact: Path, tmp_path: Path, count: int) -> None:
    """Each is refused with a message, or is as good as the original."""
    assert run_altered(artifact, tmp_path, range(count)) > count / 3


@pytest.mark.full
def test_altered_artifacts_under_address_sanitizer(artifact: Path, tmp_path: Path) -> None:
    """And UndefinedBehaviorSanitizer, in a process that has no TVM in Python."""
    build = tmp_path / "build"
    flags = ["-DTVM_EDGE_SANITIZE=address", f"-DPython3_EXECUTABLE={sys.executable}"]
    root = Path(__file__).parents[2]
    subprocess.run(["cmake", "-S", str(root), "-B", str(build), *flags], check=True)
    subprocess.run(["cmake", "--build", str(build), "-j2"], check=True)
    # libstdc++ early, or AddressSanitizer finds no __cxa_throw to intercept.
    preloaded = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so.6")
    ]
    libraries = [str(Path(str(module.__file__)).parent / "lib") for module in (tvm, tvm_ffi)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.native.alterations", str(artifact), str(tmp_path), "5000"],
        env={
            **os.environ,
            "TVM_EDGE_RUNTIME": str(build / "libtvm_edge_runtime.so.0"),
            "LD_PRELOAD": " ".join(preloaded),
            "LD_LIBRARY_PATH": ":".join(libraries),
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        },
        capture_output=True,
        text=True,
        cwd=root,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_python_refuses_what_c_does(artifact: Path, tmp_path: Path) -> None:
    for seed in range(60):
        path = altered(artifact, tmp_path, seed)
        try:
            CModel(path)
        except Failed as error:
            with pytest.raises(TvmEdgeError) as caught:
                tvm_edge.load(path)
            assert str(caught.value) == str(error)


def test_the_header_is_c_and_the_library_hides_the_rest(tmp_path: Path) -> None:
    from tvm_edge.library_path import library_path

    include = Path(tvm_edge.__file__).parent / "native/include"
    source = tmp_path / "main.c"
    source.write_text("#include <tvm_edge/tvm_edge.h>\nint main(void) { return 0; }\n")
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{include}"]
    subprocess.run(["gcc", *flags, "-fsyntax-only", str(source)], check=True)
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(library_path())],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    shown = {line.split()[-1] for line in symbols if line.split()[1] == "T"}
    assert all(name.startswith(("tvm_edge_", "TvmEdge")) for name in shown)
    header = (include / "tvm_edge/tvm_edge.h").read_text()
    assert {name for name in shown if name.startswith("tvm_edge_")} == {
        word for word in shown if f"{word}(" in header
    }
    assert ctypes.CDLL(str(library_path())).tvm_edge_abi_version() == 0


def test_bytes_and_files_in_python(artifact: Path, compiled_small: tvm_edge.CompiledModel) -> None:
    x = {"data": random_input(SMALL)}
    expected = tvm_edge.load(artifact).run(x)["pooled"]
    with artifact.open("rb") as file:
        from_file = tvm_edge.load(file)
    content = compiled_small.to_bytes()
    assert content == artifact.read_bytes()
    for model in (from_file, tvm_edge.load(content), tvm_edge.load(bytearray(content))):
        np.testing.assert_array_equal(model.run(x)["pooled"], expected)
        assert model.to_bytes() == content
    with pytest.raises(tvm_edge.InputError, match="pass a path, bytes, or a binary file"):
        tvm_edge.load(5)  # type: ignore[arg-type]
    with pytest.raises(tvm_edge.ArtifactError, match="empty"):
        tvm_edge.load(b"")
    assert zipfile.is_zipfile(artifact)
