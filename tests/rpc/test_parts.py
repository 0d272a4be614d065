"""Messages, uploads, what a board says of its clocks, addresses, one server: without a client."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.rpc.support import free_port
from tvm_edge import errors
from tvm_edge.errors import ArtifactError, DeviceUnavailableError, InputError, TvmEdgeError
from tvm_edge.rpc.address import parse_address, written
from tvm_edge.rpc.board_health import clock_checks
from tvm_edge.rpc.failures import failure_of, raised_on
from tvm_edge.rpc.message import Message
from tvm_edge.rpc.server import BoardServer
from tvm_edge.rpc.uploads import Uploads


def test_a_message_comes_back() -> None:
    arrays = {
        "a": np.arange(6, dtype="float32").reshape(2, 3)[:, ::2],
        "scalar": np.array(True),
        "empty": np.zeros((0, 4), "int64"),
        "half": np.ones(3, ml_dtypes.bfloat16),
    }
    values = {"text": "ü", "number": 0.1, "nothing": None, "list": [1, [2]]}
    back = Message.from_bytes(Message(values, arrays).to_bytes())
    assert back.values == values and list(back.arrays) == list(arrays)
    for name, array in arrays.items():
        assert back.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(back.arrays[name], array)


def test_what_is_no_message() -> None:
    whole = Message({"a": 1}, {"x": np.arange(9)}).to_bytes()
    wrong = [b"", b"\xff" * 40, whole[:-1], whole[:20], whole.replace(b"int64", b"object")]
    wrong += [whole.replace(b"[9]", b"[-9]"), whole.replace(b'"values"', b'"valves"')]
    for content in wrong:
        with pytest.raises(ValueError):
            Message.from_bytes(content)


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_cross(name: str) -> None:
    kind = getattr(errors, name)
    if not isinstance(kind, type) or not issubclass(kind, TvmEdgeError):
        return
    fields: dict[str, Any] = {
        "InputError": {"name": "data", "expected": "x", "got": "y"},
        "MemoryBudgetError": {"budget": 1, "smallest_feasible": 2},
        "UnsupportedOperatorError": {"operators": ("A", "B")},
    }.get(name, {})
    back = raised_on("mali", failure_of(kind("it happened", **fields)))
    assert type(back) is kind and str(back) == "on board mali: it happened"
    assert vars(back) == fields


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (MemoryError("x"), MemoryError),
        (KeyError("x"), RuntimeError),
        (SystemError("x"), RuntimeError),
    ],
)
def test_errors_of_python_cross(raised: Exception, kind: type[Exception]) -> None:
    back = raised_on("mali", failure_of(raised))
    assert type(back) is kind and "on board mali" in str(back) and "x" in str(back)


def store(uploads: Uploads, content: bytes, *, digest: str = "") -> str:
    """Send a file in pieces, as a client does; its digest."""
    functions, piece = uploads.functions(), 100
    digest = digest or hashlib.sha256(content).hexdigest()
    for offset in range(0, len(content), piece):
        functions["store"](
            {"content": np.frombuffer(content[offset : offset + piece], np.uint8)},
            digest=digest,
            offset=offset,
            last=offset + piece >= len(content),
        )
    return digest


def test_uploads_are_bounded(tmp_path: Path) -> None:
    """Those used longest ago go first; a file being sent does not go."""
    uploads = Uploads(tmp_path / "uploads", limit=1000)
    stored = [store(uploads, bytes([i]) * 300) for i in range(3)]
    for age, digest in ((30, stored[1]), (20, stored[2]), (10, stored[0])):
        os.utime(uploads.path(digest), (1000 - age, 1000 - age))
    assert uploads.functions()["stored"]({}, digest=stored[1]) == {"stored": True}  # used now
    last = store(uploads, b"x" * 350)
    there = {path.name for path in (tmp_path / "uploads").iterdir()}
    assert there == {stored[0], stored[1], last}, "1000 bytes: 2 of 300, 1 of 350"
    assert uploads.functions()["stored"]({}, digest=stored[2]) == {"stored": False}


def test_uploads_that_are_refused(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path / "uploads")
    with pytest.raises(ArtifactError, match="altered on its way"):
        store(uploads, b"content", digest="0" * 64)
    assert list((tmp_path / "uploads").iterdir()) == []
    (tmp_path / "secret").write_text("x")
    for name in ("../secret", "", str(tmp_path / "secret"), "0" * 64):
        with pytest.raises(InputError, match="no file"):
            uploads.path(name)
    with pytest.raises(InputError, match="SHA-256"):
        store(uploads, b"content", digest="../secret")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArtifactError, match="cannot store a file"):
        store(Uploads(tmp_path / "file" / "folder"), b"content")


def put(root: Path, **files: object) -> None:
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


CPU = "sys__devices__system__cpu__cpufreq__policy0__"
GPU = "sys__class__devfreq__gpu__"
ZONE = "sys__class__thermal__thermal_zone0__"


def test_clocks_that_vary(tmp_path: Path) -> None:
    put(tmp_path, **{f"{CPU}scaling_governor": "schedutil", f"{CPU}scaling_cur_freq": 700000})
    put(tmp_path, **{f"{CPU}cpuinfo_max_freq": 1400000, "etc__nv_tegra_release": "R36"})
    put(tmp_path, **{f"{GPU}governor": "nvhost_podgov", f"{GPU}cur_freq": 1, f"{GPU}max_freq": 4})
    put(tmp_path, **{f"{GPU}min_freq": 1, f"{ZONE}temp": 91500, f"{ZONE}type": "gpu"})
    cpu, gpu, heat = clock_checks(tmp_path)
    assert (cpu.status, cpu.found) == ("wrong", "policy0 schedutil at 50%")
    assert (gpu.status, gpu.found) == ("wrong", "gpu nvhost_podgov at 25%")
    assert cpu.command == gpu.command == "sudo jetson_clocks"
    assert (heat.status, heat.found) == ("wrong", "92 °C (gpu)") and heat.command


def test_clocks_that_stay(tmp_path: Path) -> None:
    put(tmp_path, **{f"{CPU}scaling_governor": "performance"})
    put(tmp_path, **{f"{GPU}governor": "nvhost_podgov", f"{GPU}cur_freq": 4, f"{GPU}max_freq": 4})
    put(tmp_path, **{f"{GPU}min_freq": 4, f"{ZONE}temp": 40000})
    found = list(clock_checks(tmp_path))
    assert [check.status for check in found] == ["ok"] * 3
    assert not any(check.command for check in found)


def test_clocks_that_nobody_can_read(tmp_path: Path) -> None:
    put(tmp_path, **{f"{ZONE}temp": "garbage"})
    for check in clock_checks(tmp_path):
        assert check.status == "missing" and "unknown" in check.found


def test_a_server_keeps_its_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tunnels and clients know it: one started again does not take the next that is free."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    port = free_port()
    with BoardServer(port=port, port_end=65536) as server:
        assert server.address == f"127.0.0.1:{port}"
        server._child.stop()
        with (
            socket.create_server(("127.0.0.1", port)),
            pytest.raises(DeviceUnavailableError, match=rf"no port from {port} to {port} is free"),
        ):
            server._start()
        server._start()
        assert server.address == f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("text", "address"), [("board:9190", ("board", 9190)), ("[::1]:80", ("::1", 80))]
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert written(address) == text
