"""A tracker and two boards of one key, and models for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import tvm_edge
from tests.onnx_models import conv_relu
from tests.rpc.support import Board, free_port, tracker
from tests.runtime.support import until
from tvm_edge.rpc.tracker import served_keys

KEY = "twin"


@dataclass(frozen=True)
class Fleet:
    """Two boards, the tracker's address, and where what they are sent goes."""

    tracker: str
    boards: tuple[Board, Board]
    uploads: Path


def _registered(port: int) -> int:
    keys = served_keys(("127.0.0.1", port))
    return keys[KEY].total if KEY in keys else 0


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder, port = tmp_path_factory.mktemp("boards"), free_port()
    at = f"127.0.0.1:{port}"
    with ExitStack() as stack:
        boards = [
            stack.enter_context(
                Board.serving(folder, "--tracker", at, "--key", KEY, "--port", free_port())
            )
            for _ in range(2)
        ]
        stack.enter_context(tracker(port))
        for board in boards:
            board.offer()
        # They look for the tracker once a second, each on its own.
        until(lambda: _registered(port) == 2)
        yield Fleet(at, (boards[0], boards[1]), folder / "tvm-edge" / "rpc")


@pytest.fixture
def board(fleet: Fleet) -> Iterator[tvm_edge.Remote]:
    """A session with one of them."""
    with tvm_edge.connect(fleet.tracker, KEY) as remote:
        yield remote


@pytest.fixture(scope="session")
def on_both(on_opencl: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model on OpenCL, its pool on the CPU."""
    model = tvm_edge.compile(conv_relu(), "opencl", fallback=["pool"])
    assert {str(row.device) for row in model.report.placements} == {"opencl", "llvm"}
    return model.export(tmp_path_factory.mktemp("artifact") / "on_both.tvme")
