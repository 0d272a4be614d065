"""Runs of the tuner on boards: what they leave, what interrupts them, what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnx
import pytest

import tvm_edge
from tests.onnx_models import random_input
from tests.rpc.conftest import KEY
from tests.rpc.conftest import Fleet as Boards
from tests.rpc.support import Board, Proxy, free_port, silent, tracker
from tests.tuning.int8_networks import PLAIN_MODEL
from tests.tuning.made import network, records_of
from tvm_edge.errors import ArtifactError, DeviceLost, DeviceUnavailableError, InputError
from tvm_edge.hardware import resolve_target
from tvm_edge.tuning import board_sessions, measurer


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Board, str]]:
    """A board without a tracker."""
    port = free_port()
    with Board.serving(tmp_path_factory.mktemp("single"), "--port", port) as board:
        board.offer()
        yield board, f"127.0.0.1:{port}"


# ------------------------------------------------------------------------------- whole runs


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of two trials for each board, built by one process, which takes a second to start."""
    monkeypatch.setattr(measurer, "_PER_BOARD", 2)
    monkeypatch.setattr(measurer, "_PER_WORKER", 1)
    monkeypatch.setattr(measurer, "_MOST_WORKERS", 1)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return network()


@pytest.mark.full  # the run that is cut off is on two boards as well
def test_a_run_on_two_boards(fleet: Boards, model: onnx.ModelProto, tmp_path: Path) -> None:
    result = tvm_edge.tune(
        model, "llvm", trials=8, tracker=fleet.tracker, key=KEY, tuning_logs=tmp_path
    )
    assert result.trials == 8 and result.failed == 0
    assert len(records_of(tmp_path)) == 8
    compiled = tvm_edge.compile(model, "llvm", tuning_logs=tmp_path)
    assert compiled.report.records is not None and compiled.report.records.tuned == 3
    compiled.run({"x": random_input((1, 16, 12, 12))})


@pytest.mark.full
@pytest.mark.skipif(
    not resolve_target("llvm").spec.dot_product, reason="this CPU has no dot products of 8 bits"
)
def test_convolutions_of_bytes(single: tuple[Board, str], tmp_path: Path) -> None:
    """Results are compared on the board, whole numbers as float32's are."""
    result = tvm_edge.tune(PLAIN_MODEL, "llvm", trials=4, tracker=single[1], tuning_logs=tmp_path)
    assert result.trials == 4 and result.failed == 0
    assert {record.template for record in records_of(tmp_path)} == {"conv2d_int8.cpu"}


def test_cut_off_nothing_is_lost_and_the_run_goes_on(
    single: tuple[Board, str],
    model: onnx.ModelProto,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board_sessions, "_WAIT_SECONDS", 2.0)
    _, address = single
    line = Proxy(int(address.rpartition(":")[2]))
    given: dict[str, Any] = {"trials": 3, "tuning_logs": tmp_path}
    with pytest.raises(DeviceLost, match="is left to measure on"):
        tvm_edge.tune(
            model, "llvm", tracker=line.address, callbacks=[lambda _: line.cut()], **given
        )
    assert len(records_of(tmp_path)) == 2
    rest = tvm_edge.tune(model, "llvm", tracker=address, resume=True, **given)
    assert rest.trials == 1 and len(records_of(tmp_path)) == 3


def test_a_tracker_that_is_gone(
    model: onnx.ModelProto, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Sessions go on without it."""
    port = free_port()
    place = f"127.0.0.1:{port}"
    options = ("--tracker", place, "--key", "single", "--port", free_port())
    with (
        Board.serving(tmp_path_factory.mktemp("board"), *options) as board,
        ExitStack() as trackers,
    ):
        trackers.enter_context(tracker(port))
        board.offer()
        result = tvm_edge.tune(
            model,
            "llvm",
            trials=3,
            tracker=place,
            key="single",
            tuning_logs=tmp_path,
            callbacks=[lambda _: trackers.close()],
        )
        assert result.trials == 3 and result.failed == 0


# ---------------------------------------------------------------------------------- bad input


def test_boards_of_another_architecture(
    fleet: Boards, model: onnx.ModelProto, tmp_path: Path
) -> None:
    arm = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
    with pytest.raises(ArtifactError, match=r"for aarch64, and board twin at .* is x86_64"):
        tvm_edge.tune(model, arm, tracker=fleet.tracker, key=KEY, tuning_logs=tmp_path)


def test_a_key_that_nobody_serves(
    fleet: Boards, model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_sessions, "_WAIT_SECONDS", 0.3)
    with pytest.raises(DeviceUnavailableError, match=f"served: '{KEY}'"):
        tvm_edge.tune(model, "llvm", tracker=fleet.tracker, key="none", tuning_logs=tmp_path)


def test_no_tracker_and_one_that_says_nothing(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_edge.rpc.tracker._ANSWER_SECONDS", 0.3)
    given: dict[str, Any] = {"key": "some", "tuning_logs": tmp_path}
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(DeviceUnavailableError, match="rpc_tracker"):
        tvm_edge.tune(model, "llvm", tracker=nobody, **given)
    with silent() as port, pytest.raises(DeviceUnavailableError, match="tracker"):
        tvm_edge.tune(model, "llvm", tracker=f"127.0.0.1:{port}", **given)


def test_a_key_without_a_tracker(model: onnx.ModelProto) -> None:
    with pytest.raises(InputError, match="without a tracker"):
        tvm_edge.tune(model, "llvm", key="some")
    with pytest.raises(InputError, match="HOST:PORT"):
        tvm_edge.tune(model, "llvm", tracker="nowhere")
