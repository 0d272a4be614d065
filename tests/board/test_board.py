"""Models compiled here run on the emulated board, on TVM's runtime alone, with our results."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.board.board import BOARD, Board, assert_close
from tests.function_errors import assert_right, network, sample
from tests.onnx_models import make_model, random_input, reference, relative_error
from tvm_edge import zoo
from tvm_edge.zoo.trained import model_path

pytestmark = pytest.mark.board

# Its GPU is pocl: it takes what a Mali does.
TARGETS: dict[str, dict[str, Any]] = {
    "llvm": {"target": BOARD},
    "opencl": {"target": "mali-t860", "host": BOARD, "fallback": "none"},
}

ON_THE_BOARD = """
import json, platform, shutil, sys
import numpy as np
import tvm_edge

artifact, inputs, outputs = sys.argv[1:]
model = tvm_edge.load(artifact)
np.savez(outputs, **model.run(dict(np.load(inputs))))
import tvm
print(json.dumps({
    "machine": platform.machine(),
    "compilers": [c for c in ("cc", "gcc", "g++", "clang", "clang++") if shutil.which(c)],
    "relax": hasattr(tvm, "relax"),
    "kernels": len(model.report.kernels),
    "built": tvm_edge.opencl.program_stats()["built"],
}))
"""


@pytest.fixture(params=sorted(TARGETS))
def target(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Target and options of a compilation for the board."""
    return TARGETS[request.param]


def deploy(
    board: Board, model: Any, inputs: dict[str, np.ndarray], target: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Compile here, run there; check that it ran there, without a compiler."""
    compiled = tvm_edge.compile(model, **target)
    path = compiled.export(board.shared / "model.tvme")
    np.savez(board.shared / "inputs.npz", **inputs)
    outputs = board.shared / "outputs.npz"
    outputs.unlink(missing_ok=True)
    command = ["python3", "-c", ON_THE_BOARD, path, board.shared / "inputs.npz", outputs]
    done = board.run(command)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["machine"] == "aarch64"
    assert told["compilers"] == [] and not told["relax"]
    assert told["kernels"] == len(compiled.report.kernels)
    assert (told["built"] > 0) == (compiled.report.target.startswith("opencl"))
    return dict(np.load(outputs))


def test_a_convolution(board: Board, small_model: onnx.ModelProto, target: dict[str, Any]) -> None:
    inputs = {"data": random_input((1, 3, 16, 16))}
    found = deploy(board, small_model, inputs, target)
    assert_close(found, reference(small_model, inputs))


def test_squeezenet(board: Board, target: dict[str, Any]) -> None:
    network = zoo.build("squeezenet1_0")
    inputs = zoo.sample_input("squeezenet1_0")
    found = deploy(board, network, inputs, target)
    assert_close(found, reference(network, inputs))


def test_the_detector(board: Board, target: dict[str, Any]) -> None:
    inputs = zoo.sample_input("shapes_ssd")
    found = deploy(board, "zoo:shapes_ssd", inputs, target)
    assert len(found["scores"])
    assert_close(found, reference(onnx.load(model_path("shapes_ssd")), inputs))


def test_float16(board: Board) -> None:
    """Stored as float16, which NEON widens: all of squeezenet's convolutions."""
    network = zoo.build("squeezenet1_0")
    inputs = zoo.sample_input("squeezenet1_0")
    halved = {"target": BOARD, "precision": "float16"}
    found = deploy(board, network, inputs, halved)
    for name, expected in reference(network, inputs).items():
        assert 1e-5 < relative_error(found[name], expected) < 1e-2


def test_functions_in_vectors(board: Board) -> None:
    """Functions on NEON are right to the bounds of this machine's."""
    x = sample()
    assert_right(deploy(board, network(x.size), {"x": x}, TARGETS["llvm"]), x)


def test_kernels_with_functions(board: Board) -> None:
    """Recurrent layers and softmax: accumulators and functions in one kernel, odd lengths."""
    inputs = {"x": random_input((9, 5, 20))}
    weights = {
        **{"w": random_input((1, 60, 20), 1), "r": random_input((1, 60, 15), 2) / 4},
        **{"v": random_input((2, 39, 20), 3), "u": random_input((2, 39, 13), 4) / 4},
    }
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["lstm"], hidden_size=15),
        helper.make_node(
            "GRU", ["x", "v", "u"], ["gru"], hidden_size=13, direction="bidirectional"
        ),
        helper.make_node("Softmax", ["x"], ["rows"], axis=-1),
        helper.make_node("LogSoftmax", ["x"], ["columns"], axis=0),
    ]
    outputs = [node.output[0] for node in nodes]
    model = make_model(nodes, {"x": (9, 5, 20)}, outputs, weights)
    assert_close(deploy(board, model, inputs, TARGETS["llvm"]), reference(model, inputs))


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu"}, "is compiled for x86_64, and this"),
        ({**BOARD, "mcpu": "cortex-a76"}, "dotprod"),  # the board is an A72
    ],
)
def test_an_artifact_for_another_cpu(
    board: Board, small_model: onnx.ModelProto, target: dict[str, Any], said: str
) -> None:
    path = tvm_edge.compile(small_model, target).export(board.shared / "other.tvme")
    load = "import sys, tvm_edge; tvm_edge.load(sys.argv[1])"
    done = board.run(["python3", "-c", load, path])
    assert done.returncode == 1
    told = done.stderr.splitlines()[-1]
    assert said in told and "compile it with target='llvm'" in told


def test_what_runs_there_ends_with_the_board(board: Board) -> None:
    """The child of a killed program too."""
    marker = uuid.uuid4().hex
    code = (
        "import subprocess, sys\n"
        f"wait = 'import time; time.sleep(600)  # {marker}'\n"
        "child = subprocess.Popen([sys.executable, '-c', wait])\n"
        "print('ready')\n"
        "child.wait()"
    )
    process = board.start(["python3", "-c", code])
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    assert len(running(marker)) >= 2
    board.stop(process)
    assert running(marker) == []


def running(marker: str) -> list[str]:
    """Command lines of this machine's processes that contain `marker`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        if any(marker in word for word in words):
            found.append(" ".join(words))
    return found
