"""Each wrong address, key, artifact or version has an error of its own, with what to type next."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tvm_edge
from tests.rpc.conftest import KEY, Fleet
from tests.rpc.support import free_port, process, silent
from tests.runtime.support import rewrite_artifact, until
from tvm_edge.errors import ArtifactError, DeviceLost, DeviceUnavailableError, InputError
from tvm_edge.host import CODEGEN_FEATURES, host_features
from tvm_edge.rpc.server import BoardServer


def test_a_tracker_that_is_not_there() -> None:
    port = free_port()
    with pytest.raises(DeviceUnavailableError, match=rf"no RPC tracker.*--port {port} ") as caught:
        tvm_edge.connect(f"127.0.0.1:{port}", KEY, timeout=1)
    assert "python -m tvm.exec.rpc_tracker" in str(caught.value)


def test_a_tracker_that_says_nothing() -> None:
    with silent() as port, pytest.raises(DeviceUnavailableError, match="no RPC tracker"):
        tvm_edge.connect(f"127.0.0.1:{port}", KEY, timeout=1)


def test_something_else_in_place_of_a_tracker() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            line, _ = server.accept()
            with line:
                line.sendall(b"HTTP/1.1 400 Bad Request\r\n")
                line.recv(64)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(DeviceUnavailableError, match="not as a tracker does"):
            tvm_edge.connect(f"127.0.0.1:{port}", KEY, timeout=1)


def test_a_key_nobody_serves(fleet: Fleet) -> None:
    with pytest.raises(DeviceUnavailableError) as caught:
        tvm_edge.connect(fleet.tracker, "mali", timeout=0.5)
    message = str(caught.value)
    assert "no board serves the key 'mali'" in message and f"{KEY!r} (2 boards" in message
    assert message.endswith(f"tvm-edge rpc-server --tracker {fleet.tracker} --key mali")


def test_a_tracker_without_a_key_and_a_board_without_its_tracker(fleet: Fleet) -> None:
    with pytest.raises(DeviceLost, match="give the tracker's address and the key"):
        tvm_edge.connect(fleet.tracker)
    address = str(fleet.boards[0].listener.net_connections()[0].laddr.port)
    with pytest.raises(DeviceLost, match="give the tracker's address and the key"):
        tvm_edge.connect(f"127.0.0.1:{address}")
    with pytest.raises(DeviceUnavailableError, match="leave out the key"):
        tvm_edge.connect(f"127.0.0.1:{address}", KEY, timeout=1)


@pytest.mark.parametrize(
    ("version", "fragment"),
    [
        ((), "TVM's alone and cannot run artifacts; .* run: tvm-edge rpc-server"),
        (("",), "greets in a way that cannot be read"),
        (("0.26.0",), r"has apache-tvm 0\.26\.0, .* run: pip install apache-tvm==0\.27"),
    ],
)
def test_another_server(version: tuple[str, ...], fragment: str) -> None:
    port = free_port()
    with process("-m", "tests.rpc.other_server", port, *version, TVM_USE_RUNTIME_LIB="1") as server:
        until(lambda: server.poll() is not None or _listening(port))
        with pytest.raises(DeviceUnavailableError, match=fragment):
            tvm_edge.connect(f"127.0.0.1:{port}")
        server.kill()  # TVM's way to end, with a thread that listens


def _listening(port: int) -> bool:
    """Without connecting, which would be taken for a client."""
    local = f"0100007F:{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1] == local and line.split()[3] == "0A" for line in lines)


def test_another_architecture(
    board: tvm_edge.Remote, artifact: Path, tmp_path: Path, fleet: Fleet
) -> None:
    """Refused before it is sent."""

    def edit(manifest: dict[str, Any]) -> None:
        manifest["target"]["architecture"] = "riscv64"

    path = rewrite_artifact(artifact, tmp_path / "foreign.tvme", edit)
    there = set(fleet.uploads.iterdir()) if fleet.uploads.exists() else set()
    with pytest.raises(ArtifactError, match=f"for riscv64, and board {KEY} is .*; compile it with"):
        tvm_edge.load(path, remote=board)
    assert (set(fleet.uploads.iterdir()) if fleet.uploads.exists() else set()) == there


def test_another_cpu(board: tvm_edge.Remote, artifact: Path, tmp_path: Path) -> None:
    lacking = sorted(CODEGEN_FEATURES - (host_features() or frozenset()))[0]
    path = rewrite_artifact(
        artifact, tmp_path / "other.tvme", lambda m: m["target"]["features"].append(lacking)
    )
    with pytest.raises(DeviceUnavailableError, match=f"with {lacking}, which board {KEY} lacks"):
        tvm_edge.load(path, remote=board)


def test_no_artifact(board: tvm_edge.Remote, tmp_path: Path) -> None:
    (tmp_path / "model.tvme").write_bytes(b"PK\x05\x06")
    with pytest.raises(ArtifactError, match=r"model\.tvme"):
        tvm_edge.load(tmp_path / "model.tvme", remote=board)
    with pytest.raises(ArtifactError, match="No such file"):
        tvm_edge.load(tmp_path / "absent.tvme", remote=board)


@pytest.mark.parametrize("address", ["", "board", "board:", ":9190", "board:port", "b:99999", 9190])
def test_what_is_no_address(address: Any) -> None:
    with pytest.raises(InputError, match="HOST:PORT"):
        tvm_edge.connect(address, KEY)


@pytest.mark.parametrize("name", ["timeout", "request_timeout"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "10"])
def test_what_is_no_time(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        tvm_edge.connect("127.0.0.1:1", KEY, **{name: value})


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({"tracker": "127.0.0.1:1"}, "--tracker is given without --key"),
        ({"key": "mali"}, "--key is given without --tracker"),
        ({"tracker": "board", "key": "mali"}, "HOST:PORT"),
        ({"tracker": "127.0.0.1:1", "key": "a b"}, "blanks or colons"),
        ({"tracker": "127.0.0.1:1", "key": "a:b"}, "blanks or colons"),
        ({"port": 9090, "port_end": 9090}, "a larger --port-end"),
    ],
)
def test_options_of_a_server(options: dict[str, Any], fragment: str) -> None:
    with pytest.raises(InputError, match=fragment):
        BoardServer(**options)
