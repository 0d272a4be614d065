"""Programs without Python: bundles, and the examples in C++ as CMake builds them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tvm_edge
from tests.native.pictures import picture_of
from tests.onnx_models import conv_relu, random_input
from tvm_edge.cli.main import cli
from tvm_edge.runtime.bundle import write_bundle

EXAMPLES = Path(__file__).parents[2] / "examples/cpp"


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tvm_edge.compile("zoo:shapes_ssd", "llvm")
    return model.export(tmp_path_factory.mktemp("bundles") / "detector.tvme")


def started(program: Path, *arguments: object) -> str:
    """Standard output of a program that knows nothing of Python."""
    words = [str(program), *map(str, arguments)]
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=100, env=environment, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_bundle_gives_the_bits_of_python_from_anywhere(artifact: Path, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    result = CliRunner().invoke(cli, ["bundle", str(artifact), "-o", str(folder)])
    assert result.exit_code == 0 and str(folder) in result.output
    moved = tmp_path / "moved"
    folder.rename(moved)
    x = random_input((1, 3, 16, 16))
    (tmp_path / "data.bin").write_bytes(x.tobytes())
    output = started(moved / "run", "--inputs", tmp_path, "--outputs", tmp_path, "--repeat", 3)
    assert "pooled: " in output and "median of 3 runs" in output
    expected = tvm_edge.load(artifact).run({"data": x})["pooled"]
    found = np.fromfile(tmp_path / "pooled.bin", expected.dtype).reshape(expected.shape)
    np.testing.assert_array_equal(found, expected)
    linked = subprocess.run(["ldd", moved / "run"], capture_output=True, text=True, check=True)
    for library in ("libtvm_edge_runtime.so.0", "libtvm_runtime.so", "libtvm_ffi.so"):
        assert f"{library} => {moved}/lib/" in linked.stdout


def test_what_no_bundle_is_made_of(artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(tvm_edge.InputError, match="is not empty"):
        write_bundle(artifact, artifact.parent)
    with pytest.raises(tvm_edge.ArtifactError, match=r"is not there; install tvm-edge"):
        write_bundle(artifact, tmp_path / "app", tmp_path)
    with pytest.raises(tvm_edge.ArtifactError, match="cannot read"):
        write_bundle(tmp_path / "none.tvme", tmp_path / "app")


def test_a_bundle_takes_libraries_of_the_artifacts_machine(tmp_path: Path) -> None:
    machine = "aarch64" if os.uname().machine == "x86_64" else "x86_64"
    model = tvm_edge.compile(conv_relu(), "arm/rk3399" if machine == "aarch64" else "llvm")
    if model._info.target["architecture"] == os.uname().machine:
        pytest.skip("no target of another machine")
    try:
        path = model.export(tmp_path / "elsewhere.tvme")
    except tvm_edge.MissingDependencyError as error:
        pytest.skip(str(error))
    with pytest.raises(tvm_edge.ArtifactError, match=f"is for {machine}, and .*--site-packages"):
        write_bundle(path, tmp_path / "app")


def test_the_examples_are_built_and_run(detector: Path, tmp_path: Path) -> None:
    """By find_package, from this installation and from a bundle."""
    if not shutil.which("cmake"):
        pytest.skip("no cmake")
    picture, inputs = picture_of(tmp_path / "shapes.ppm")
    (folder,) = CliRunner().invoke(cli, ["cmake-dir"]).output.splitlines()
    bundle = write_bundle(detector, tmp_path / "app")
    found = []
    for number, where in enumerate((folder, str(bundle / "cmake"))):
        build = tmp_path / f"build{number}"
        python = f"-DPython3_EXECUTABLE={sys.executable}"
        for command in (
            ["cmake", "-S", str(EXAMPLES), "-B", str(build), f"-Dtvm_edge_DIR={where}", python],
            # All of them where a user of a bundle builds, which has its own headers.
            ["cmake", "--build", str(build), *(["--target", "detect"] if number == 0 else [])],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in done.stdout + done.stderr
        found.append(started(build / "detect", detector, picture))
    assert found[0] == found[1]
    expected = tvm_edge.load(detector).run(inputs)
    scores = [float(word) for word in re.findall(r"score ([\d.]+)", found[0])]
    np.testing.assert_allclose(scores, expected["scores"], atol=6e-4)
    assert re.match(r"20 frames, [\d.]+ a second", started(build / "camera", detector, 20))
    refused = subprocess.run(
        [str(build / "detect"), str(picture), str(picture)], capture_output=True, text=True
    )
    assert refused.returncode == 4 and "is not a tvm-edge artifact" in refused.stderr
