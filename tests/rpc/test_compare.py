"""``compare`` with a board in place of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_edge
from tests.cli.conftest import Invoke, invoke
from tests.onnx_models import conv_relu
from tests.rpc.conftest import KEY, Fleet
from tests.workflow import faults
from tests.workflow.networks import network
from tvm_edge.errors import ArtifactError, CompilationError, DeviceLost, MissingDependencyError
from tvm_edge.runtime import CompiledModel
from tvm_edge.workflow import compare
from tvm_edge.workflow.node_errors import NodeErrors

__all__ = ["invoke"]


@pytest.fixture
def nothing_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_arguments: Any) -> None:
        raise AssertionError("a model of ours ran on this machine")

    monkeypatch.setattr(CompiledModel, "_run", run)


@pytest.mark.full  # here by tests/workflow/test_compare.py, there in the tests below
@pytest.mark.usefixtures("nothing_runs_here")
def test_names_the_kernel_that_is_wrong_there(
    board: tvm_edge.Remote, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    faults.in_kernel(monkeypatch, "window_blocked")
    how: dict[str, Any] = {"tuning_logs": False, "remote": board}
    found = compare(network(), "llvm", bisect_passes=True, dump=tmp_path, **how)
    assert found.culprit is not None and found.culprit.node == "depth/relu"
    assert found.culprit.rule == "window_blocked" and not found.within
    assert all(output.same for output in found.outputs)
    assert "BlockLayout" in [trial.name for trial in found.passes if trial.gone]
    assert all(node.alone is not None for node in found.nodes)
    assert (tmp_path / "depth_relu.onnx").exists()
    assert f"it ran on board {KEY}" in found.verdict()


@pytest.mark.usefixtures("nothing_runs_here")
def test_a_reference_for_another_machine_is_the_boards(board: tvm_edge.Remote) -> None:
    other = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
    refusals = (ArtifactError, CompilationError, MissingDependencyError)
    with pytest.raises(refusals, match=rf"board {KEY} is x86_64|g\+\+"):  # or no cross-linker
        compare(conv_relu(), "llvm", reference=other, remote=board)


def test_a_board_that_is_lost(board: tvm_edge.Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the comparison: no node is said to be the reason."""
    errors_alone = NodeErrors._errors_alone

    def lost(self: NodeErrors, *arguments: Any) -> Any:
        board.close()
        return errors_alone(self, *arguments)

    monkeypatch.setattr(NodeErrors, "_errors_alone", lost)
    with pytest.raises(DeviceLost):
        compare(conv_relu(), "llvm", remote=board)


def test_the_command(
    invoke: Invoke, fleet: Fleet, small_model: onnx.ModelProto, image: np.ndarray, tmp_path: Path
) -> None:
    path, inputs = tmp_path / "small.onnx", tmp_path / "in.npz"
    onnx.save(small_model, path)
    np.savez(inputs, data=image)
    at = ("--rpc-tracker", fleet.tracker, "--rpc-key", KEY)
    done = invoke("compare", path, "--inputs", inputs, *at, "--check")
    assert done.code == 0 and f"it ran on board {KEY}" in done.out, done.err
    foreign = invoke("compare", path, "--rpc-key", KEY)
    assert foreign.code == 4 and "add --rpc-tracker HOST:PORT" in foreign.err
