"""Whatever happens to a board, whoever uses it gets an error in time, and the next one a board."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import psutil
import pytest
from tvm.rpc import base

import tvm_edge
from tests.rpc.support import (
    Board,
    Proxy,
    descendants,
    endless,
    free_port,
    process,
    silent,
    tracker,
    until,
)
from tests.runtime.support import BLOCK_IMPORTS
from tvm_edge.errors import DeviceLost, MeasureTimeout
from tvm_edge.rpc import agent as agents
from tvm_edge.rpc.agent import Agent, Call, open_session
from tvm_edge.rpc.tracker import served_keys

KEY = "fragile"
WITHOUT_ONNX = f"BLOCKED = ('onnx', 'onnx_ir', 'onnxscript')\n{BLOCK_IMPORTS}"


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[str, int]]:
    """The tracker's address, and its port."""
    port = free_port()
    yield f"127.0.0.1:{port}", port


@pytest.fixture(scope="module")
def one(
    place: tuple[str, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Board, ExitStack]]:
    """A board of its key, and the tracker in a stack that a test may close and fill again."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("board")
        options = ("--tracker", place[0], "--key", KEY, "--port", free_port())
        board = stack.enter_context(Board.serving(folder, *options))
        trackers = stack.enter_context(ExitStack())
        trackers.enter_context(tracker(place[1]))
        board.offer()
        yield place[0], board, trackers


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """The bound that is stated; a busy machine is given some more."""
    start = monotonic()
    yield
    assert monotonic() - start < seconds + 15


def measuring(agent: Agent, board: Board, artifact: Path) -> psutil.Process:
    """Let it run a model for minutes; the process that does, when it does."""
    request, session = endless(agent, artifact), board.session()
    before = session.cpu_times().user
    agent.ask(request, 60)
    until(lambda: session.cpu_times().user > before + 0.2)
    return session


def works(address: str, artifact: Path, key: str | None = KEY) -> None:
    """The board runs a model, as at home."""
    image = np.ones((1, 3, 16, 16), "float32")
    with tvm_edge.connect(address, key) as board:
        found = tvm_edge.load(artifact, remote=board).run({"data": image})
    expected = tvm_edge.load(artifact).run({"data": image})
    np.testing.assert_array_equal(found["pooled"], expected["pooled"])


@pytest.mark.parametrize("victim", ["session", "listener"])
def test_a_process_of_the_board_is_killed(
    one: tuple[str, Board, ExitStack], artifact: Path, victim: str
) -> None:
    """The server is started again, on its port; no process of the old one is left."""
    address, board, _ = one
    agent = open_session(address, KEY, seconds=30)
    session, listener = measuring(agent, board, artifact), board.listener
    {"session": session, "listener": listener}[victim].kill()
    with within(5), pytest.raises(DeviceLost, match=f"board {KEY}: .* is gone"):
        agent.answer()
    assert agent.is_lost
    with pytest.raises(DeviceLost, match="connect again"):
        agent.ask(Call("hello"), 1)
    works(address, artifact)
    assert board.listener.pid != listener.pid
    assert not psutil.wait_procs([session, listener], timeout=10)[1]


def test_a_run_that_takes_too_long(one: tuple[str, Board, ExitStack], artifact: Path) -> None:
    """The session is ended on the board too, though its kernels run on; the server is the same."""
    address, board, _ = one
    agent = open_session(address, KEY, seconds=30)
    session, listener = measuring(agent, board, artifact), board.listener
    agent.ask(Call("hello"), 0.5)
    with within(0.5), pytest.raises(MeasureTimeout, match=r"hello took more than 0\.5 s"):
        agent.answer()
    works(address, artifact)
    assert board.listener.pid == listener.pid
    assert not psutil.wait_procs([session], timeout=10)[1]


def test_the_tracker_is_started_again(
    one: tuple[str, Board, ExitStack], place: tuple[str, int], artifact: Path
) -> None:
    address, board, trackers = one
    listener = board.listener
    trackers.close()
    trackers.enter_context(tracker(place[1]))
    # It registers again within seconds, of which `connect` waits five for a key nobody serves.
    until(lambda: served_keys(("127.0.0.1", place[1])))
    works(address, artifact)
    assert board.listener.pid == listener.pid


def test_ctrl_c_in_a_run(one: tuple[str, Board, ExitStack], artifact: Path) -> None:
    """The session is over, as its answer is still to come, and the board is free."""
    address, board, _ = one
    agent = open_session(address, KEY, seconds=30)
    request, session = endless(agent, artifact), board.session()
    before = session.cpu_times().user

    def interrupt() -> None:
        until(lambda: session.cpu_times().user > before + 0.2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        agent.call(request, 60)
    thread.join()
    assert agent.is_lost
    works(address, artifact)


def test_the_process_that_holds_the_session_is_killed(one: tuple[str, Board, ExitStack]) -> None:
    agent = open_session(one[0], KEY, seconds=30)
    agent.ask(Call("describe"), 30)
    agent._child.process.kill()
    with within(5), pytest.raises(DeviceLost, match="connect again"):
        agent.answer()


PARENT = """
import sys
from tests.rpc.support import endless
from tvm_edge.rpc.agent import open_session
agent = open_session(sys.argv[1], sys.argv[2], seconds=30)
agent.ask(endless(agent, sys.argv[3]), 600)
print(agent._child.process.pid, flush=True)
agent.answer()
"""


def test_a_killed_user_leaves_no_process(one: tuple[str, Board, ExitStack], artifact: Path) -> None:
    """Nor one that waits for the board, nor on the board one that computes."""
    address, board, _ = one
    with process("-c", PARENT, address, KEY, artifact) as user:
        assert user.stdout is not None
        agent = psutil.Process(int(user.stdout.readline()))
        session = board.session()
        user.kill()
        assert not psutil.wait_procs([agent, session], timeout=15)[1]


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Board, int]]:
    """A server without a tracker, on a board without onnx."""
    folder = tmp_path_factory.mktemp("direct")
    with Board.serving(folder, "--port", free_port(), prelude=WITHOUT_ONNX) as board:
        yield board, int(board.offer()["address"].rpartition(":")[2])


def test_a_server_without_tracker_onnx_and_compiler(
    direct: tuple[Board, int], artifact: Path
) -> None:
    board, port = direct
    for pid in (board.process.pid, board.listener.pid):
        environment = psutil.Process(pid).environ()
        assert environment["TVM_USE_RUNTIME_LIB"] == "1"
        maps = {Path(m.path).name for m in psutil.Process(pid).memory_maps()}
        assert not any("libtvm_compiler" in name or name == "libtvm.so" for name in maps), maps
    works(f"127.0.0.1:{port}", artifact, None)


def test_the_connection_is_cut(direct: tuple[Board, int], artifact: Path) -> None:
    """The board notices, and serves the next."""
    board, port = direct
    proxy = Proxy(port)
    agent = open_session(proxy.address, None, seconds=30)
    session = measuring(agent, board, artifact)
    proxy.cut()
    with within(5), pytest.raises(DeviceLost, match="connection was cut"):
        agent.answer()
    assert not psutil.wait_procs([session], timeout=20)[1]
    works(f"127.0.0.1:{port}", artifact, None)


def test_one_who_connects_and_says_nothing(direct: tuple[Board, int], artifact: Path) -> None:
    """TVM's server waits for what the first to connect says, but not for ever."""
    _, port = direct
    with socket.create_connection(("127.0.0.1", port)):
        works(f"127.0.0.1:{port}", artifact, None)


def agents_bounded(address: str, key: str | None = None, seconds: float = 1) -> Any:
    """Open a session with little patience for the server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agents, "_OPEN_SECONDS", 1.0)
        return open_session(address, key, seconds=seconds)


def test_a_board_that_never_answers() -> None:
    with silent() as port, within(2), pytest.raises(DeviceLost, match="did not answer within 1 s"):
        agents_bounded(f"127.0.0.1:{port}")


def test_a_registered_board_that_never_answers(
    one: tuple[str, Board, ExitStack], place: tuple[str, int]
) -> None:
    with silent() as port, socket.create_connection(("127.0.0.1", place[1]), 10) as line:
        line.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
        base.recvall(line, 4)
        info = {"key": "server:mute", "addr": ["127.0.0.1", port]}
        put = [base.TrackerCode.PUT, "mute", (port, "mute:0.5"), "127.0.0.1"]
        for message in ([base.TrackerCode.UPDATE_INFO, info], put):
            base.sendjson(line, message)
            assert base.recvjson(line) == base.TrackerCode.SUCCESS
        with within(3), pytest.raises(DeviceLost, match=f":{port} takes connections"):
            agents_bounded(place[0], "mute", 0.1)


def test_the_server_is_told_to_end(tmp_path: Path, artifact: Path) -> None:
    """In the middle of a session: exit status 0, and no process left."""
    with Board.serving(tmp_path, "--port", free_port()) as board:
        agent = open_session(board.offer()["address"], None, seconds=30)
        try:
            measuring(agent, board, artifact)
            processes = descendants(board.process.pid)
            assert len(processes) >= 2
            board.process.terminate()
            assert board.process.wait(20) == 0
            assert not psutil.wait_procs(processes, timeout=10)[1]
            with pytest.raises(DeviceLost):
                agent.answer()
        finally:
            agent.close()


def test_the_server_is_killed(tmp_path: Path) -> None:
    with Board.serving(tmp_path, "--port", free_port()) as board:
        agent = open_session(board.offer()["address"], None, seconds=30)
        processes = descendants(board.process.pid)
        assert len(processes) >= 2
        board.process.kill()
        assert not psutil.wait_procs(processes, timeout=10)[1]
        with pytest.raises(DeviceLost):
            agent.call(Call("hello"), 20)
