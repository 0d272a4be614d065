"""Layers with weights that are read from the artifact in every run."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SplitInfo"]


@dataclass(frozen=True)
class SplitInfo:
    """A layer whose weights are streamed: whole, or as parts that are computed one by one.

    Attributes
    ----------
    operator : str
        Operator of the user's model.
    device : str
    along : {"output", "reduction", ""}
        Axis that it is cut along; empty for a layer in one piece.
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
        """Return one line.

        Such as ``fc1 on llvm: 784.0 MiB in 8 parts along its output, 196.0 MiB at a time``.
        """
        how = f"{self.parts} parts along its {self.along}" if self.along else "one piece"
        return (
            f"{self.operator} on {self.device}: {self.weight_bytes / 2**20:.1f} MiB in {how}, "
            f"{self.window / 2**20:.1f} MiB at a time"
        )
