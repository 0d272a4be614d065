"""The emulated board, once for all of its tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.board.board import Board
from tests.board.root import CannotBuild


@pytest.fixture(scope="session")
def board() -> Iterator[Board]:
    """The board; what runs on it is killed at the end. Skips with the reason where it is not."""
    with tempfile.TemporaryDirectory(prefix="tvm-edge-board-", dir="/tmp") as shared:
        try:
            board = Board(Path(shared))
        except CannotBuild as err:
            pytest.skip(f"no emulated board: {err}")
        with board:
            yield board
