"""Attributes that are made at their first use, by one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["once"]

_Value = TypeVar("_Value")


class once(Generic[_Value]):
    """A cached property that is calculated a single time, whatever threads ask for it.

    Python's own has had no lock since 3.12: two threads would each make a value, and one of them
    would go on with another than all the rest. Before, all objects of a class shared one.
    """

    def __init__(self, make: Callable[[Any], _Value]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> once[_Value]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any]) -> _Value: ...
    def __get__(self, instance: object, owner: type[Any]) -> once[_Value] | _Value:
        if instance is None:
            return self
        # The next use finds the value there, and does not come here.
        values = instance.__dict__
        with values.setdefault(f"making {self._name}", threading.RLock()):
            if self._name not in values:
                values[self._name] = self._make(instance)
        value: _Value = values[self._name]
        return value
