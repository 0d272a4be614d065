"""Client of TVM's RPC tracker, with a bound on each wait: TVM's own client has none."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from tvm.rpc import base

from tvm_edge.errors import DeviceUnavailableError, one_line
from tvm_edge.rpc.address import Address, written

__all__ = ["Grant", "Served", "request_board", "served_keys"]

_ANSWER_SECONDS = 5.0
_LEAST_SECONDS = 1.0  # to say something at all
_REGISTER_SECONDS = 5.0  # a server that was started again registers within
_POLL_SECONDS = 0.2
_LARGEST = 1 << 24  # bytes of an answer


@dataclass(frozen=True)
class Served:
    """Numbers of boards of one key, and of those that are free."""

    total: int
    free: int


@dataclass(frozen=True)
class Grant:
    """Board that the tracker gave to us: its address, and the key that opens it once."""

    address: Address
    match_key: str


def served_keys(tracker: Address) -> dict[str, Served]:
    """Return the keys that are served.

    Raises
    ------
    DeviceUnavailableError
        There is no tracker.
    """
    with _connection(tracker, _ANSWER_SECONDS) as line:
        return _summary(line)


def request_board(tracker: Address, key: str, seconds: float) -> Grant:
    """Ask for a board of a key, and wait until one is free.

    Raises
    ------
    DeviceUnavailableError
        There is no tracker, nobody serves the key, or no board of it becomes free in that time.
    """
    start = monotonic()
    with _connection(tracker, max(min(seconds, _ANSWER_SECONDS), _LEAST_SECONDS)) as line:
        while key not in (found := _summary(line)):
            if monotonic() - start > min(seconds, _REGISTER_SECONDS):
                raise DeviceUnavailableError(_nobody(tracker, key, found))
            sleep(_POLL_SECONDS)  # the tracker tells nobody of new servers
        line.settimeout(max(seconds - (monotonic() - start), _POLL_SECONDS))
        base.sendjson(line, [base.TrackerCode.REQUEST, key, "", 1])
        try:
            code, grant = _received(line)
            host, port, match_key = grant
        except TimeoutError:
            count = found[key].total
            boards = "the only board" if count == 1 else f"all {count} boards"
            raise DeviceUnavailableError(
                f"{boards} of the key {key!r} at the tracker {written(tracker)} stayed busy for "
                f"{seconds:g} s; wait longer (timeout=), close other sessions, or start another "
                "board with: " + _start(tracker, key)
            ) from None
    if code != base.TrackerCode.SUCCESS:
        raise DeviceUnavailableError(f"the tracker {written(tracker)} refuses the key {key!r}")
    return Grant((str(host), int(port)), str(match_key))


def _nobody(tracker: Address, key: str, found: dict[str, Served]) -> str:
    served = ", ".join(f"{name!r} ({s.total} boards, {s.free} free)" for name, s in found.items())
    return (
        f"no board serves the key {key!r} at the tracker {written(tracker)}; served: "
        f"{served or 'none'}; on the board run: {_start(tracker, key)}"
    )


def _start(tracker: Address, key: str) -> str:
    return f"tvm-edge rpc-server --tracker {written(tracker)} --key {key}"


@contextmanager
def _connection(tracker: Address, seconds: float) -> Iterator[socket.socket]:
    """Connect to the tracker; failures of the connection are errors of ours."""
    try:
        with socket.create_connection(tracker, seconds) as line:
            line.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            (magic,) = struct.unpack("<i", base.recvall(line, 4))
            if magic != base.RPC_TRACKER_MAGIC:
                raise ConnectionError("it answers, and not as a tracker does")
            yield line
    except (OSError, ValueError, TypeError, KeyError, IndexError) as err:
        raise DeviceUnavailableError(
            f"no RPC tracker at {written(tracker)} ({one_line(err)}); start one with: "
            f"python -m tvm.exec.rpc_tracker --host {tracker[0]} --port {tracker[1]} --port-end "
            f"{tracker[1] + 1}; to connect to a server without a tracker, leave out the key"
        ) from err


def _summary(line: socket.socket) -> dict[str, Served]:
    base.sendjson(line, [base.TrackerCode.SUMMARY])
    _, summary = _received(line)
    totals: dict[str, int] = {}
    for server in summary["server_info"]:
        key = str(server["key"]).removeprefix("server:")
        totals[key] = totals.get(key, 0) + 1
    queues = summary["queue_info"]
    return {
        key: Served(total, int(queues.get(key, {}).get("free", 0)))
        for key, total in sorted(totals.items())
    }


def _received(line: socket.socket) -> Any:
    (size,) = struct.unpack("<i", base.recvall(line, 4))
    if not 0 < size <= _LARGEST:
        raise ValueError(f"an answer of {size} bytes")
    return json.loads(base.recvall(line, size))
