"""The signature of a model: names, shapes and types of what goes in and comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["TensorSpec"]


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
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str

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
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> TensorSpec:
        """The inverse of :meth:`to_dict`."""
        return cls(fields["name"], tuple(fields["shape"]), fields["dtype"])
