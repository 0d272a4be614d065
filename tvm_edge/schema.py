"""Check that values read from a file have the types that their dataclass declares.

Dataclasses take whatever they are given, and JSON gives whatever it holds: without this a damaged
artifact or record fails far from where it was read.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any

__all__ = ["check_types"]

_LARGEST = 1 << 63  # no count, size or offset exceeds it, and C++ takes no more
_DEEPEST = 32  # far below Python's limit of recursion, for whoever walks the value next


def check_types(value: Any, annotation: Any, where: str) -> None:
    """Compare a value with a type, to the bottom.

    Parameters
    ----------
    value : object
    annotation : type
        A dataclass, ``str``, ``int``, ``float``, ``bool``, ``None``, ``tuple[...]``,
        ``list[...]``, ``dict[str, ...]``, a ``Literal`` of strings, a union of these, or ``Any``,
        which is whatever JSON can hold.
    where : str
        What the value is, for the message.

    Raises
    ------
    ValueError
        Another type, a number that is not finite or needs more than 64 bits, text that is no
        Unicode.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        _check_json(value, where)
    elif isinstance(annotation, type) and is_dataclass(annotation):
        _expect(isinstance(value, annotation), value, where)
        hints = _hints(annotation)
        for field in fields(annotation):
            check_types(getattr(value, field.name), hints[field.name], f"{where}.{field.name}")
    elif origin is typing.Literal:
        _expect(isinstance(value, str) and value in arguments, value, where)
    elif origin in (typing.Union, types.UnionType):
        _check_union(value, arguments, where)
    elif origin is tuple and arguments[-1] is not Ellipsis:
        _expect(isinstance(value, tuple) and len(value) == len(arguments), value, where)
        for i, (item, wanted) in enumerate(zip(value, arguments, strict=True)):
            check_types(item, wanted, f"{where}[{i}]")
    elif origin in (tuple, list):
        _expect(isinstance(value, origin), value, where)
        for i, item in enumerate(value):
            check_types(item, arguments[0], f"{where}[{i}]")
    elif origin is dict:
        _expect(isinstance(value, dict), value, where)
        for key, item in value.items():
            check_types(key, arguments[0], f"a key of {where}")
            check_types(item, arguments[1], f"{where}[{key!r}]")
    else:
        _check_leaf(value, annotation, where)


@functools.cache
def _hints(annotation: Any) -> dict[str, Any]:
    return typing.get_type_hints(annotation)


def _check_union(value: Any, arguments: tuple[Any, ...], where: str) -> None:
    for argument in arguments:
        try:
            return check_types(value, argument, where)
        except ValueError:
            continue
    _expect(False, value, where)


def _check_leaf(value: Any, annotation: Any, where: str) -> None:
    if annotation in (None, type(None)):
        _expect(value is None, value, where)
    elif annotation is float:
        _expect(type(value) in (int, float) and abs(value) < math.inf, value, where)
        _expect(type(value) is not int or abs(value) < _LARGEST, value, where)
    elif annotation is int:
        _expect(type(value) is int and abs(value) < _LARGEST, value, where)
    elif annotation is str:
        # A lone surrogate is text that cannot be printed.
        _expect(_encodes(value), value, where)
    else:
        _expect(isinstance(value, annotation), value, where)


def _check_json(value: Any, where: str, depth: int = 0) -> None:
    _expect(depth < _DEEPEST, "nested too deeply", where)
    if isinstance(value, dict):
        for key, item in value.items():
            _check_leaf(key, str, f"a key of {where}")
            _check_json(item, where, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_json(item, where, depth + 1)
    elif value is not None and not isinstance(value, bool):
        _expect(type(value) in (int, float, str), value, where)
        _check_leaf(value, type(value), where)


def _encodes(value: Any) -> bool:
    try:
        return bool(isinstance(value, str) and value.encode() is not None)
    except UnicodeEncodeError:
        return False


def _expect(holds: bool, value: Any, where: str) -> None:
    if not holds:
        text = ascii(value)
        raise ValueError(f"{where} is {text if len(text) < 80 else text[:79] + '…'}")
