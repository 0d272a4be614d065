"""Candidates of a tuner on a board: checked and timed as on this machine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from time import sleep
from typing import Any

import numpy as np
import tvm

from tvm_edge.errors import InputError
from tvm_edge.rpc.message import BoardFunction
from tvm_edge.rpc.uploads import Uploads
from tvm_edge.runtime import load
from tvm_edge.runtime.candidates import Candidate, Operands, kernel_candidate, model_candidate
from tvm_edge.runtime.library import load_library
from tvm_edge.runtime.threads import resolve_threads

__all__ = ["BoardCandidates"]


class BoardCandidates:
    """Candidates that one tuner has opened.

    Parameters
    ----------
    uploads : Uploads
        Where their libraries and operands are.
    """

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads
        self._open: dict[int, Candidate] = {}
        self._tokens = itertools.count()
        # Of the operands used last, filters as often as caches ask for: a hundred megabytes.
        self._shared: dict[str, tuple[Operands, list[tvm.runtime.Tensor]]] = {}

    def functions(self) -> dict[str, BoardFunction]:
        """Return the functions that clients may call."""
        return {
            "candidate_open": self._open_one,
            "candidate_time": self._time,
            "candidate_drop": self._drop,
        }

    def _open_one(
        self,
        _arrays: Mapping[str, np.ndarray],
        *,
        library: str,
        operands: str,
        shape: Sequence[int],
        num_threads: int,
    ) -> dict[str, Any]:
        """Load a candidate and run it once: the error of its result, ``None`` if not finite.

        Without a shape of a kernel's result the library is the artifact of a model.
        """
        path = self._uploads.path(library)
        if shape:
            resolve_threads(num_threads).use()
            if operands not in self._shared:
                self._shared.clear()
                given = Operands.load(self._uploads.path(operands))
                self._shared[operands] = given, given.filters_in_turn()
            code = load_library("a candidate", path.read_bytes())
            candidate = kernel_candidate(code["candidate"], *self._shared[operands], shape)
        else:
            given = Operands.load(self._uploads.path(operands))
            candidate = model_candidate(load(path), given.image, given.expected)
        error = candidate.error()
        token = next(self._tokens)
        self._open[token] = candidate
        return {"candidate": token, "error": error if np.isfinite(error) else None}

    def _time(
        self,
        _arrays: Mapping[str, np.ndarray],
        *,
        candidate: int,
        rounds: int,
        seconds: float,
        hopeless: float | None,
        cool_down: float,
    ) -> dict[str, Any]:
        """Time a candidate so many times for so long each, after a pause."""
        if candidate not in self._open:
            raise InputError("the candidate is not open; open it again", name="candidate")
        sleep(cool_down)
        limit = float("inf") if hopeless is None else hopeless
        return {"latencies": self._open[candidate].latencies(rounds, seconds, limit)}

    def _drop(self, _arrays: Mapping[str, np.ndarray], *, candidates: list[int]) -> dict[str, Any]:
        for token in candidates:
            self._open.pop(token, None)
        return {}
