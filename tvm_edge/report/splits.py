"""Layers that are computed in parts, with weights that are read from the artifact in every run."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SplitInfo"]


@dataclass(frozen=True)
class SplitInfo:
    """A dense layer in parts.

    Attributes
    ----------
    operator : str
        Of the user's model.
    device : str
    along : {"output", "reduction"}
        What it is cut along.
    parts : int
    part_bytes, weight_bytes : int
        Weights of the largest part, and of all.
    """

    operator: str
    device: str
    along: str
    parts: int
    part_bytes: int
    weight_bytes: int

    @property
    def window(self) -> int:
        """Bytes of the part in use and of the one that is read meanwhile."""
        return 2 * self.part_bytes

    def line(self) -> str:
        """As ``fc1 on llvm: 784.0 MiB in 8 parts along its output, 196.0 MiB at a time``."""
        return (
            f"{self.operator} on {self.device}: {self.weight_bytes / 2**20:.1f} MiB in "
            f"{self.parts} parts along its {self.along}, {self.window / 2**20:.1f} MiB at a time"
        )
