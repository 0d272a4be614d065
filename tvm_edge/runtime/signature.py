"""Signature of a model as C++ checks inputs against it (``native/csrc/binding.cc``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tvm

from tvm_edge.native import native_errors, native_function
from tvm_edge.runtime.info import ModelInfo

__all__ = ["Signature", "signature_json"]


def signature_json(info: ModelInfo) -> str:
    """Return what of a manifest says how a model is run."""
    return json.dumps(info.signature())


class Signature:
    """Names, shapes and types that a model takes; each method raises InputError for others.

    Parameters
    ----------
    info : ModelInfo
    """

    def __init__(self, info: ModelInfo) -> None:
        self._functions = native_function("runtime.signature")(signature_json(info))

    def choose(self, models: Sequence[str]) -> tuple[int, ...]:
        """Return models that run by themselves, by number; none if all run together."""
        return tuple(int(number) for number in self._call("choose", list(models)))

    def bind(self, models: Sequence[str] | None, inputs: Sequence[tvm.runtime.Tensor]) -> None:
        """Check inputs, in order."""
        self._call("bind", _names(models), list(inputs))

    def check(self, position: int, dtype: str, shape: Sequence[int]) -> None:
        """Check type and shape of one input, whatever others are."""
        self._call("check", position, dtype, list(shape))

    def refuse_names(self, models: Sequence[str] | None, given: Sequence[str]) -> None:
        """Say which names are unknown or missing."""
        self._call("refuse_names", _names(models), list(given))

    def refuse_output(self, models: Sequence[str] | None, name: str) -> None:
        """Say that there is no such output."""
        self._call("refuse_output", _names(models), name)

    def _call(self, name: str, *arguments: Any) -> Any:
        with native_errors():
            return self._functions[name](*arguments)


def _names(models: Sequence[str] | None) -> list[str] | None:
    return None if models is None else list(models)
