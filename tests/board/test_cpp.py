"""Programs without Python on the emulated board: a bundle, and the examples, cross-compiled."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import tvm_edge
from tests.board.board import BOARD, Board, assert_close
from tests.board.root import PACKAGES, TRIPLE
from tests.native.pictures import picture_of
from tests.onnx_models import conv_relu, random_input, reference
from tvm_edge.runtime.bundle import write_bundle

pytestmark = pytest.mark.board

EXAMPLES = Path(__file__).parents[2] / "examples/cpp"


def bundled(board: Board, name: str, model: object) -> Path:
    """A folder for the board, with the libraries that are installed there."""
    artifact = tvm_edge.compile(model, BOARD).export(board.shared / f"{name}.tvme")
    return write_bundle(artifact, board.shared / name, board.root / PACKAGES)


def test_a_bundle_runs(board: Board) -> None:
    folder = bundled(board, "app", conv_relu())
    x = {"data": random_input((1, 3, 16, 16))}
    (board.shared / "data.bin").write_bytes(x["data"].tobytes())
    where = ["--inputs", board.shared, "--outputs", board.shared]
    done = board.run([folder / "run", *where])
    assert done.returncode == 0, done.stderr[-3000:]
    found = np.fromfile(board.shared / "pooled.bin", "float32").reshape(1, 8, 1, 1)
    assert_close({"pooled": found}, reference(conv_relu(), x))


def test_the_examples_are_cross_compiled_and_run(board: Board) -> None:
    """By find_package of a bundle; what is found is what this machine finds."""
    folder = bundled(board, "detector", "zoo:shapes_ssd")
    build = board.shared / "build"
    cross = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
    cross.append(f"-DCMAKE_CXX_COMPILER={TRIPLE}-g++")
    for command in (
        ["cmake", "-S", EXAMPLES, "-B", build, f"-Dtvm_edge_DIR={folder / 'cmake'}", *cross],
        ["cmake", "--build", build],
    ):
        subprocess.run(command, check=True, capture_output=True)
    picture, inputs = picture_of(board.shared / "shapes.ppm")
    done = board.run([build / "detect", folder / "model.tvme", picture])
    assert done.returncode == 0, done.stderr[-3000:]
    scores = [float(line.split("score ")[1].split(",")[0]) for line in done.stdout.splitlines()]
    expected = tvm_edge.compile("zoo:shapes_ssd", "llvm").run(inputs)["scores"]
    assert scores
    np.testing.assert_allclose(scores, expected, atol=6e-4)
    done = board.run([build / "camera", folder / "model.tvme", 3])
    assert done.returncode == 0 and done.stdout.startswith("3 frames"), done.stderr[-3000:]
