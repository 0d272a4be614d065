"""Plan of a model: the devices it runs on, and which of them has each input and weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["STREAMED", "DevicePlan"]

STREAMED = -1
"""In place of the device of a weight: it stays where it is mapped, and ``main`` asks for it
(``native/csrc/weight_stream.cc``)."""


@dataclass(frozen=True)
class DevicePlan:
    """Devices of a model; inputs and weights name theirs by position in `kinds`.

    Attributes
    ----------
    kinds : tuple[str, ...]
        TVM's names of the kinds of device, in the order of the code's virtual devices.
    inputs, weights : tuple[int, ...]
        A weight may be :data:`STREAMED` instead.
    """

    kinds: tuple[str, ...]
    inputs: tuple[int, ...]
    weights: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> DevicePlan:
        """The inverse of :meth:`to_dict`."""
        return cls(tuple(fields["kinds"]), tuple(fields["inputs"]), tuple(fields["weights"]))
