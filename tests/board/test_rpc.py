"""TVM's RPC server runs on the board: code linked here is uploaded and called there."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import rpc, te
from tvm.rpc import RPCSession

from tests.board.board import Board
from tvm_edge.lowering.linker import find_linker

pytestmark = pytest.mark.board


@pytest.fixture(scope="module")
def session(board: Board) -> Iterator[RPCSession]:
    """A session of TVM's own server on the board."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ["--host", "127.0.0.1", "--port", port, "--port-end", port + 1]
    process = board.start(["python3", "-m", "tvm.exec.rpc_server", *place])
    yield connected(process, port)
    board.stop(process)


def connected(process: subprocess.Popen[str], port: int) -> RPCSession:
    """A session, once the server listens; it says that it is there before it does."""
    for _ in range(600):
        try:
            return rpc.connect("127.0.0.1", port, session_timeout=60)
        except RuntimeError:  # refused
            if process.poll() is not None:
                pytest.fail(f"the server ended: {process.communicate()[0][-2000:]}")
            time.sleep(0.1)
    pytest.fail("the server does not listen after a minute")


@pytest.mark.parametrize("kind", ["cpu", "opencl"])
def test_tensors_go_there_and_come_back(session: RPCSession, kind: str) -> None:
    device = session.device(kind, 0)
    assert device.exist
    values = np.arange(12, dtype="float32").reshape(3, 4)
    np.testing.assert_array_equal(tvm.runtime.tensor(values, device).numpy(), values)


def test_code_linked_here_runs_there(session: RPCSession, tmp_path: Path) -> None:
    a = te.placeholder((64,), name="a")
    b = te.compute((64,), lambda i: a[i] * 2 + 1, name="b")
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    built = tvm.compile(te.create_prim_func([a, b]), target=target)
    built.export_library(str(tmp_path / "double.so"), fcompile=find_linker("aarch64"))
    session.upload(str(tmp_path / "double.so"))
    device = session.cpu(0)
    values = np.arange(64, dtype="float32")
    result = tvm.runtime.tensor(np.zeros(64, "float32"), device)
    session.load_module("double.so")["main"](tvm.runtime.tensor(values, device), result)
    np.testing.assert_array_equal(result.numpy(), values * 2 + 1)
