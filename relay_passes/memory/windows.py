"""Windows that weights are streamed through, and layers that they are too small for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from tvm import relax

from tvm_edge.errors import InputError

__all__ = ["refuse_window"]


def refuse_window(
    option: str,
    window: int,
    least: int,
    parts: str,
    result: relax.Var,
    node: int | None,
    names: Mapping[int, str],
) -> NoReturn:
    """Refuse a window that a layer cannot be cut for.

    Parameters
    ----------
    option : str
        The option that named it.
    window, least : int
        Bytes of it, and of the smallest one that would do.
    parts : str
        The parts that a layer is cut into, in words.
    result : Var
        Of the layer.
    node : int or None
        Of the user's model.
    names : mapping of int to str
        How the user calls a node.

    Raises
    ------
    InputError
    """
    layer = names.get(-1 if node is None else node, result.name)
    raise InputError(
        f"{option}={window} is too small for the layer {layer!r}, which is cut into {parts}; "
        f"use at least {least}",
        name=option,
        expected=f"at least {least}",
        got=str(window),
    )
