"""``tvm-edge rpc-server`` on the board: this machine compiles, runs and tunes there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tvm_edge
from tests.board.board import Board
from tests.onnx_models import conv_relu, random_input, reference, relative_error
from tests.rpc.support import free_port, tracker
from tests.tuning.made import INPUTS, network
from tvm_edge.hardware import resolve_target
from tvm_edge.records import Database, stores_below
from tvm_edge.workflow import compare

pytestmark = pytest.mark.board

CPU = {
    "kind": "llvm",
    "mtriple": "aarch64-linux-gnu",
    "mcpu": "cortex-a72",
    "mattr": ["+neon"],
    "num-cores": 2,
}
KEY = "emulated"


@pytest.fixture(scope="module")
def place(board: Board) -> Iterator[str]:
    """A tracker of this machine, at which the board has registered."""
    port, own = free_port(), free_port()
    at = f"127.0.0.1:{port}"
    command = ["python3", "-m", "tvm_edge", "rpc-server", "--json", "--tracker", at, "--key", KEY]
    process = board.start([*command, "--port", own, "--port-end", own + 1])
    with tracker(port):
        assert process.stdout is not None
        offer = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        assert offer["architecture"] == "aarch64"
        yield at
    board.stop(process)


@pytest.mark.parametrize("kind", ["llvm", "opencl"])
def test_a_model_runs_there(place: str, tmp_path: Path, kind: str) -> None:
    model, image = conv_relu(), random_input((1, 3, 16, 16))
    target, host = (CPU, None) if kind == "llvm" else ("mali-t860", CPU)
    path = tvm_edge.compile(model, target, host=host).export(tmp_path / "model.tvme")
    with tvm_edge.connect(place, KEY, timeout=120) as board:
        there = tvm_edge.load(path, remote=board)
        found = there.run({"data": image})
        assert there.benchmark(warmup=1, repeat=2).repeat == 2
        devices = {device.target for device in board.devices()}
    for name, value in reference(model, {"data": image}).items():
        assert relative_error(found[name], value) < 1e-5
    assert devices == {"llvm", "opencl"}


def test_a_comparison_runs_there(place: str) -> None:
    with tvm_edge.connect(place, KEY, timeout=120) as board:
        found = compare(conv_relu(), CPU, remote=board, tuning_logs=False)
    assert found.within and found.first is None
    assert all(output.same for output in found.outputs)
    assert [node.node for node in found.nodes if node.alone is None] == []
    assert found.nodes[-1].error is not None and found.nodes[-1].error < 1e-5


def test_convolutions_are_tuned_there(place: str, tmp_path: Path) -> None:
    """And what is compiled then takes what was measured, and is right there."""
    model = network()
    given: dict[str, Any] = {"tracker": place, "key": KEY, "tuning_logs": tmp_path / "logs"}
    result = tvm_edge.tune(model, CPU, trials=10, **given)
    assert result.trials == 10 and result.failed == 0
    (store,) = stores_below(tmp_path / "logs")
    with Database(store, readonly=True) as database:
        records, _ = database.all()
    assert len(records) == 10 and records[0].device.key.startswith("aarch64/")
    compiled = tvm_edge.compile(model, CPU, tuning_logs=tmp_path / "logs")
    assert compiled.report.records is not None and compiled.report.records.tuned == 3
    path = compiled.export(tmp_path / "tuned.tvme")
    with tvm_edge.connect(place, KEY, timeout=120) as board:
        found = tvm_edge.load(path, remote=board).run(INPUTS)
    for name, value in reference(model, INPUTS).items():
        assert relative_error(found[name], value) < 1e-4


def test_an_opencl_convolution_is_tuned_there(place: str, tmp_path: Path) -> None:
    """Built for an Adreno, measured by the board's pocl: its records are not this machine's."""
    result = tvm_edge.tune(
        network(), "adreno-640", host=CPU, trials=2, tracker=place, key=KEY, tuning_logs=tmp_path
    )
    assert result.trials == 2 and result.failed == 0
    (store,) = stores_below(tmp_path)
    with Database(store, readonly=True) as database:
        assert {record.device.key for record in database.all()[0]} == {
            resolve_target("adreno-640").spec.key
        }
