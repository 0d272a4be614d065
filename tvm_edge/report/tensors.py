"""The signature of a model: names, shapes and types of what goes in and comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_edge.report.dims import Dim

__all__ = ["ModelPart", "TensorSpec", "offsets_problem", "shape_text"]


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and type of one input or output.

    Attributes
    ----------
    name : str
        The name in the model, as the user wrote it.
    shape : tuple[int or str, ...]
        A string stands for a length that the run tells: of an input, the name of one of its
        `dims`; of an output, such as the number of detections.
    dtype : str
        A NumPy type name.
    offsets_into : int or None
        For an input that says where segments begin: the length of the tensor that it cuts up. Its
        values must lie in it and not decrease.
    stored_as : str or None
        The type that the code has the tensor in, where it is not `dtype` but has as many bytes.
    dims : tuple[Dim, ...]
        Open dimensions of an input, in the order of their axes.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    offsets_into: int | None = None
    stored_as: str | None = None
    dims: tuple[Dim, ...] = ()

    @property
    def typical_shape(self) -> tuple[int, ...]:
        """The shape of an input, open dimensions as long as they typically are.

        Raises
        ------
        KeyError
            A length is only known after the run.
        """
        typical = {dim.name: dim.typical or dim.min for dim in self.dims}
        return tuple(d if isinstance(d, int) else typical[d] for d in self.shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(str(d) for d in self.shape)}]"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible dictionary."""
        fields: dict[str, Any] = {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}
        if self.offsets_into is not None:
            fields["offsets_into"] = self.offsets_into
        if self.stored_as is not None:
            fields["stored_as"] = self.stored_as
        if self.dims:
            fields["dims"] = [dim.to_dict() for dim in self.dims]
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
            tuple(Dim.from_dict(dim) for dim in fields.get("dims", ())),
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


def shape_text(dims: Sequence[int | str]) -> str:
    """Write a shape as Python would, names of open dimensions without quotation marks."""
    return "(" + ", ".join(str(d) for d in dims) + ("," if len(dims) == 1 else "") + ")"
