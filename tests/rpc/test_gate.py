"""Who gets through to a board: by a token, by a Unix socket, past clients that say nothing."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from tvm.rpc import base

import tvm_edge
from tests.rpc.conftest import KEY
from tests.rpc.support import Board, descendants, free_port, process, tracker
from tests.runtime.support import until
from tvm_edge.errors import DeviceLost, InputError
from tvm_edge.files import own_name
from tvm_edge.rpc.token import read_token
from tvm_edge.rpc.tracker import served_keys
from tvm_edge.rpc.uploads import Uploads


def secret(path: Path) -> Path:
    path.touch(0o600)
    path.write_text(secrets.token_hex(32) + "\n")
    return path


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return secret(tmp_path_factory.mktemp("token") / "token")


@pytest.fixture(scope="module")
def guarded(token: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """A board that asks for a token."""
    folder = tmp_path_factory.mktemp("guarded")
    with Board.serving(folder, "--port", free_port(), "--token-file", token) as board:
        board.offer()
        yield board


@pytest.fixture(scope="module")
def open_board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """A board for anybody."""
    with Board.serving(tmp_path_factory.mktemp("open"), "--port", free_port()) as board:
        board.offer()
        yield board


def runs(remote: tvm_edge.Remote, artifact: Path, image: np.ndarray) -> None:
    """The board gives what this machine gives, also of what needs more than a pipe holds."""
    expected = tvm_edge.load(artifact).run({"data": image})["pooled"]
    there = tvm_edge.load(artifact, remote=remote)
    np.testing.assert_array_equal(there.run({"data": image})["pooled"], expected)


def port_of(board: Board) -> tuple[str, int]:
    return "127.0.0.1", int(board.address.rpartition(":")[2])


def first_words(key: bytes, length: int | None = None) -> bytes:
    return struct.pack("<ii", base.RPC_MAGIC, len(key) if length is None else length) + key


HALF = [b"", first_words(b"client:")[:5], first_words(b"client:", 100), b"GET / HTTP/1.1\r\n"]


def test_clients_that_say_nothing_keep_nobody_out(
    open_board: Board, artifact: Path, image: np.ndarray
) -> None:
    """One after the other each held TVM's loop for all the time that it had."""
    with ExitStack() as stack:
        for number in range(60):
            line = stack.enter_context(socket.create_connection(port_of(open_board)))
            line.sendall(HALF[number % len(HALF)])
        with tvm_edge.connect(open_board.address) as remote:
            runs(remote, artifact, image)


@pytest.mark.parametrize(
    "words",
    [first_words(b""), first_words(b" \t"), first_words(b"\xff" * 9), first_words(b"x", -5),
     first_words(b"x", 2**31 - 1), b"GET / HTTP/1.1" * 20],
    ids=["empty", "blanks", "no text", "negative", "endless", "another protocol"],
)  # fmt: skip
def test_first_words_that_are_none_end_their_own_connection(
    open_board: Board, words: bytes
) -> None:
    """An empty key ended the loop, and the server with it."""
    listener = open_board.listener.pid
    with socket.create_connection(port_of(open_board), 10) as line, suppress(ConnectionResetError):
        line.sendall(words)
        while line.recv(64):
            pass
    tvm_edge.connect(open_board.address).close()
    assert open_board.listener.pid == listener


def command_of(process: psutil.Process) -> str:
    """Return a command line; that of a process which has ended is empty."""
    with suppress(psutil.NoSuchProcess):  # a zombie of another test is one
        return " ".join(process.cmdline())
    return ""


def test_with_the_token(
    guarded: Board, token: Path, artifact: Path, image: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tvm_edge.connect(guarded.address, token_file=token) as remote:
        runs(remote, artifact, image)
        relays = [each for each in descendants(os.getpid()) if "relay.py" in command_of(each)]
        assert len(relays) == 1
        assert not [c for c in relays[0].net_connections() if c.status == psutil.CONN_LISTEN]
    assert not psutil.wait_procs(relays, timeout=10)[1], "the relay outlives its session"
    monkeypatch.setenv("TVM_EDGE_RPC_TOKEN_FILE", str(token))
    tvm_edge.connect(guarded.address).close()


def test_without_the_token_or_with_another(
    guarded: Board, open_board: Board, token: Path, tmp_path: Path
) -> None:
    with pytest.raises(DeviceLost, match="TVM_EDGE_RPC_TOKEN_FILE"):
        tvm_edge.connect(guarded.address)
    with pytest.raises(DeviceLost, match="another token"):
        tvm_edge.connect(guarded.address, token_file=secret(tmp_path / "other"))
    with pytest.raises(DeviceLost, match=r"does not ask for a token|another token, or none"):
        tvm_edge.connect(open_board.address, token_file=token)
    tvm_edge.connect(guarded.address, token_file=token).close()


def test_a_recorded_proof_is_worth_nothing(guarded: Board, token: Path) -> None:
    """Each connection has a number of its own."""
    with socket.create_connection(port_of(guarded), 10) as line:
        greeting = base.recvall(line, 48)
    with socket.create_connection(port_of(guarded), 10) as line:
        assert base.recvall(line, 48)[16:] != greeting[16:]
        line.sendall(bytes(64) + first_words(b"client:"))
        with suppress(ConnectionResetError):
            assert line.recv(64) == b""


def test_boards_of_a_tracker_ask_for_the_token_as_well(
    token: Path, artifact: Path, image: np.ndarray, tmp_path: Path
) -> None:
    """The tracker tells everybody where they are; that is all it can tell."""
    port = free_port()
    at = f"127.0.0.1:{port}"
    options = ("--tracker", at, "--key", KEY, "--port", free_port(), "--token-file", token)
    with tracker(port), Board.serving(tmp_path, *options) as board:
        board.offer()
        until(lambda: KEY in served_keys(("127.0.0.1", port)))
        with tvm_edge.connect(at, KEY, token_file=token) as remote:
            runs(remote, artifact, image)
        with pytest.raises(DeviceLost, match="TVM_EDGE_RPC_TOKEN_FILE"):
            tvm_edge.connect(at, KEY, timeout=0.1)


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [(b"x" * 32, 0o640, "readable by others"), (b"short\n", 0o600, "less than 16"),
     (None, 0o600, "cannot be read")],
)  # fmt: skip
def test_token_files_that_are_none(
    tmp_path: Path, content: bytes | None, mode: int, words: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(InputError, match=words) as caught:
        read_token(path)
    assert str(path) in str(caught.value)
    with pytest.raises(InputError, match=words):
        tvm_edge.connect("127.0.0.1:1", token_file=path)


def test_a_unix_socket(tmp_path: Path, artifact: Path, image: np.ndarray) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))  # and nobody listens
    with Board.serving(tmp_path, "--socket", path) as board:
        assert board.offer()["address"] == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        listening = [c for c in board.listener.net_connections("inet") if not c.raddr]
        assert not listening, "a port that others can reach"
        with tvm_edge.connect(board.address) as remote:
            runs(remote, artifact, image)
        second = ("-m", "tvm_edge", "rpc-server", "--socket", path)
        with process(*second, TVM_USE_RUNTIME_LIB="1") as other:
            assert other.wait(60) == 5
        tvm_edge.connect(board.address).close()
    assert not path.exists()


def test_a_socket_does_not_take_a_files_place(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    path.write_text("something of mine")
    with process("-m", "tvm_edge", "rpc-server", "--socket", path) as server:
        assert server.wait(60) == 5
    assert path.read_text() == "something of mine"
    with pytest.raises(DeviceLost, match="no session"):
        tvm_edge.connect(f"unix:{path}")


def test_what_a_killed_server_left_is_removed_by_the_next(tmp_path: Path) -> None:
    temporary, uploads = tmp_path / "tmp", tmp_path / "cache" / "tvm-edge" / "rpc"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    arguments = ("-m", "tvm_edge", "rpc-server", "--json", "--port", free_port())
    with process(*arguments, TVM_USE_RUNTIME_LIB="1", **environment) as server:
        Board(server).offer()
        (left,) = temporary.iterdir()
        children = psutil.Process(server.pid).children(recursive=True)
        server.send_signal(signal.SIGKILL)
        server.wait()
        psutil.wait_procs(children, timeout=10)
    uploads.mkdir(parents=True)
    part = uploads / f".{own_name('upload').replace(str(os.getpid()), str(server.pid))}"
    live = uploads / f".{own_name('upload')}"
    part.write_bytes(b"half a file")
    live.write_bytes(b"of a session that goes on")
    assert left.exists()
    with process(*arguments, TVM_USE_RUNTIME_LIB="1", **environment) as server:
        Board(server).offer()
        assert not left.exists() and not part.exists() and live.exists()
        assert len(list(temporary.iterdir())) == 1
    assert not list(temporary.iterdir())


def test_uploads_are_bounded_while_they_run(tmp_path: Path) -> None:
    """A file that a client had begun to send was counted when it was whole."""
    folder = tmp_path / "uploads"
    store = Uploads(folder, limit=1000).functions()["store"]
    piece = {"content": np.zeros(400, "uint8")}

    def send(digest: str, offset: int) -> None:
        store(piece, digest=digest * 64, offset=offset, last=False)

    for digest in "abcdef":  # each takes the place of the one before, which was never finished
        send(digest, 0)
        assert sum(path.stat().st_size for path in folder.iterdir()) == 400
    send("f", 400)
    with pytest.raises(InputError, match="1000 bytes that it allows"):
        send("f", 800)
    assert not list(folder.iterdir())
    with pytest.raises(InputError, match="piece of a file is missing"):
        send("f", 800)
