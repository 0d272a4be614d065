"""Models of a session on a board: loaded, run and measured as on this machine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvm_edge.errors import InputError
from tvm_edge.rpc.message import BoardFunction, Message
from tvm_edge.rpc.uploads import Uploads
from tvm_edge.runtime import CompiledModel, load

__all__ = ["BoardModels"]


class BoardModels:
    """Models that one client has loaded.

    Parameters
    ----------
    uploads : Uploads
        Where their artifacts are.
    """

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads
        self._models: dict[int, CompiledModel] = {}
        self._tokens = itertools.count()

    def functions(self) -> dict[str, BoardFunction]:
        """Return the functions that clients may call."""
        return {
            "load": self._load,
            "drop": self._drop,
            "run": self._run,
            "warmup": self._warmup,
            "benchmark": self._benchmark,
            "profile": self._profile,
        }

    def _load(
        self,
        _arrays: Mapping[str, np.ndarray],
        *,
        file: str,
        name: str,
        device: str | None,
        num_threads: int | None,
        cpus: list[int] | None = None,
    ) -> dict[str, Any]:
        path = self._uploads.path(file)
        token = next(self._tokens)
        try:
            self._models[token] = load(path, device=device, num_threads=num_threads, cpus=cpus)
        except Exception as err:
            # The client's name of the file is the one that tells.
            err.args = tuple(
                a.replace(str(path), name) if isinstance(a, str) else a for a in err.args
            )
            raise
        return {"model": token}

    def _drop(self, _arrays: Mapping[str, np.ndarray], *, model: int) -> dict[str, Any]:
        self._models.pop(model, None)
        return {}

    def _model(self, token: int) -> CompiledModel:
        if token not in self._models:
            raise InputError("the model is not loaded; load it again", name="model")
        return self._models[token]

    def _run(
        self,
        arrays: Mapping[str, np.ndarray],
        *,
        model: int,
        outputs: Sequence[str],
        models: Sequence[str] | None = None,
    ) -> Message:
        return Message({}, self._model(model).run(arrays, models=models, outputs=outputs))

    def _warmup(
        self,
        _arrays: Mapping[str, np.ndarray],
        *,
        model: int,
        models: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        self._model(model).warmup(models=models)
        return {}

    def _benchmark(
        self,
        arrays: Mapping[str, np.ndarray],
        *,
        model: int,
        inputs: bool,
        warmup: int,
        repeat: int,
        models: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        values = arrays if inputs else None
        own = self._model(model)
        return own.benchmark(values, models=models, warmup=warmup, repeat=repeat).to_dict()

    def _profile(
        self,
        arrays: Mapping[str, np.ndarray],
        *,
        model: int,
        inputs: bool,
        repeat: int,
        models: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        values = arrays if inputs else None
        return self._model(model).profile(values, models=models, repeat=repeat).to_dict()
