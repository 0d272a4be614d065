"""Cover of a network's convolutions by tuning records."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RecordsInfo"]


@dataclass(frozen=True)
class RecordsInfo:
    """Tuning records found for a model's convolutions.

    Attributes
    ----------
    convolutions : int
        Those on the device, of which records may say something.
    tuned : int
        Those with a record of this very device.
    transferred : int
        Those with a record of a device of its architecture, or else of its vendor.
    ignored : tuple[str, ...]
        Records that were not taken, and why.
    """

    convolutions: int
    tuned: int
    transferred: int
    ignored: tuple[str, ...] = ()

    @property
    def covered(self) -> int:
        """Convolutions with a record."""
        return self.tuned + self.transferred

    def line(self) -> str:
        """One line, as ``2 of 26 convolutions covered: 1 tuned, 1 transferred``."""
        if not self.covered:
            return f"none of {self.convolutions} convolutions covered"
        return (
            f"{self.covered} of {self.convolutions} convolutions covered: {self.tuned} tuned, "
            f"{self.transferred} transferred"
        )
