"""Functions of a session on a board, for the client that opened it.

They are called through TVM's RPC under ``tvm_edge.rpc.`` and take and return a
:class:`~tvm_edge.rpc.message.Message` as bytes. What one raises is its answer: TVM's own way of
bringing errors across loses their class, and ends some sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from tvm_edge.rpc.board_info import hello
from tvm_edge.rpc.failures import failure_of
from tvm_edge.rpc.message import BoardFunction, Message
from tvm_edge.rpc.uploads import LIMIT, Uploads

__all__ = ["board_functions", "register"]

_PREFIX = "tvm_edge.rpc."

_LOG = logging.getLogger(__name__)


def board_functions(uploads: Path, upload_bytes: int = LIMIT) -> dict[str, BoardFunction]:
    """Return all functions, with the state of one session.

    Parameters
    ----------
    uploads : path
        Folder of the files that clients sent.
    upload_bytes : int
        That all of them may take.
    """
    from tvm_edge.rpc.board_candidates import BoardCandidates
    from tvm_edge.rpc.board_models import BoardModels

    files = Uploads(uploads, upload_bytes)
    return {
        "hello": lambda _: hello(),
        "describe": _describe,
        "doctor": _doctor,
        "clocks": _clocks,
        **files.functions(),
        **BoardModels(files).functions(),
        **BoardCandidates(files).functions(),
    }


def register(functions: Mapping[str, BoardFunction]) -> None:
    """Make functions known to TVM's RPC sessions of this process."""
    for name, function in functions.items():
        tvm_ffi.register_global_func(_PREFIX + name, _packed(function), override=True)


def _packed(function: BoardFunction) -> Callable[[bytes], bytes]:
    def call(request: bytes) -> bytes:
        try:
            message = Message.from_bytes(bytes(request))
            result = function(message.arrays, **message.values)
            values, arrays = (
                (result.values, result.arrays) if isinstance(result, Message) else (result, {})
            )
            return Message({"result": values}, arrays).to_bytes()
        # Whatever a request or a driver causes is the answer to that request.
        except Exception as err:
            _LOG.debug("a request failed", exc_info=True)
            return Message({"failure": failure_of(err)}).to_bytes()

    return call


def _describe(_arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    from tvm_edge.rpc.board_info import describe

    return describe().to_dict()


def _clocks(_arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    from tvm_edge.rpc.board_health import clock_checks

    return {"checks": [asdict(check) for check in clock_checks()]}


def _doctor(_arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    from tvm_edge.rpc.board_health import board_doctor

    return board_doctor().to_dict()
