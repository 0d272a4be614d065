"""The signature of a model: names, shapes and types of what goes in and comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["ModelPart", "TensorSpec", "offsets_problem"]


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and type of one input or output.

    Attributes
    ----------
    name : str
        The name in the model, as the user wrote it.
    shape : tuple[int or str, ...]
        A string stands for a length only known after the run, such as the number of detections.
    dtype : str
        A NumPy type name.
    offsets_into : int or None
        Of an input that says where segments begin: the length of the tensor that it cuts up. Its
        values must lie in it and not decrease.
    stored_as : str or None
        The type that the code has the tensor in, where it is not `dtype` but has as many bytes.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    offsets_into: int | None = None
    stored_as: str | None = None

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape of a tensor whose lengths are all known, as those of inputs are.

        Raises
        ------
        ValueError
            A length is only known after the run.
        """
        return tuple(int(d) for d in self.shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(str(d) for d in self.shape)}]"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary."""
        fields: dict[str, Any] = {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}
        if self.offsets_into is not None:
            fields["offsets_into"] = self.offsets_into
        if self.stored_as is not None:
            fields["stored_as"] = self.stored_as
        return fields

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> TensorSpec:
        """The inverse of :meth:`to_dict`."""
        return cls(
            fields["name"],
            tuple(fields["shape"]),
            fields["dtype"],
            fields.get("offsets_into"),
            fields.get("stored_as"),
        )


@dataclass(frozen=True)
class ModelPart:
    """One of the models of an artifact that has several.

    Attributes
    ----------
    name : str
    inputs, outputs : tuple[int, ...]
        Positions of its tensors, which are called ``name/…``, among those of the artifact.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ModelPart:
        """The inverse of :func:`dataclasses.asdict`."""
        return cls(fields["name"], tuple(fields["inputs"]), tuple(fields["outputs"]))


def offsets_problem(offsets: np.ndarray, length: int) -> str:
    """Say what is wrong with offsets of segments of a tensor of `length`; empty if nothing is."""
    outside = np.flatnonzero((offsets < 0) | (offsets > length))
    if outside.size:
        at = int(outside[0])
        return f"number {at}, {offsets[at]}, lies outside of the {length} elements"
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if falls.size:
        at = int(falls[0]) + 1
        return f"number {at}, {offsets[at]}, is less than the {offsets[at - 1]} before it"
    return ""
