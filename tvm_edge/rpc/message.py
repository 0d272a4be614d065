"""Messages between a board and here: JSON values and arrays, as bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_edge.runtime.artifact import tensor_dtype
from tvm_edge.schema import check_types

__all__ = ["BoardFunction", "Message"]

_LENGTH = 8  # bytes before the JSON that hold its length


@dataclass(frozen=True)
class Message:
    """Arguments of a board's function, or its result.

    Attributes
    ----------
    values : dict
        JSON-compatible.
    arrays : mapping of str to np.ndarray
    """

    values: dict[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Write the values and a table of the arrays as JSON, then the arrays' elements."""
        table = {name: [a.dtype.name, list(a.shape)] for name, a in self.arrays.items()}
        head = json.dumps({"values": self.values, "arrays": table}).encode()
        # As bytes first: bfloat16 is no type of Python's buffers.
        parts = [
            np.ascontiguousarray(a).reshape(-1).view(np.uint8).data for a in self.arrays.values()
        ]
        return b"".join([len(head).to_bytes(_LENGTH, "little"), head, *parts])

    @classmethod
    def from_bytes(cls, content: bytes) -> Message:
        """Read what :meth:`to_bytes` returns; arrays are views of `content`.

        Raises
        ------
        ValueError
            No message.
        """
        start = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
        try:
            head = json.loads(content[_LENGTH:start])
            values, table = head["values"], head["arrays"]
            check_types(values, dict[str, Any], "values")
            arrays = {}
            for name, (type_name, shape) in table.items():
                check_types(shape, list[int], "a shape")
                dtype = tensor_dtype(type_name)
                count = math.prod(shape)
                elements = np.frombuffer(content, np.uint8, count * dtype.itemsize, start)
                arrays[name] = elements.view(dtype).reshape(shape)
                start += elements.nbytes
        except (KeyError, TypeError, AttributeError, RecursionError) as err:
            raise ValueError(f"no message: {type(err).__name__}: {err}") from err
        return cls(values, arrays)


BoardFunction = Callable[..., Message | dict[str, Any]]
"""Function of a board: takes arrays, and values by name; returns values, or a message."""
