"""Layouts that a graph tuner chose for a network, and the latency that it predicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["LayoutsInfo", "TransformInfo", "layout_name"]


@dataclass(frozen=True)
class TransformInfo:
    """An image that is written in another layout.

    Attributes
    ----------
    operator : str
        Whose result it is; empty for an input of the model.
    before, after : str
        As ``NCHW`` and ``NCHW16c``.
    seconds : float
        As predicted.
    """

    operator: str
    before: str
    after: str
    seconds: float

    def line(self) -> str:
        """Return one line: ``conv1: NCHW16c to NCHW, 3.1 µs``."""
        what = f"{self.before} to {self.after}"
        if self.before == self.after:
            what = f"{self.before}, gathered"
        return f"{self.operator or 'an input'}: {what}, {1e6 * self.seconds:.1f} µs"


@dataclass(frozen=True)
class LayoutsInfo:
    """The layouts of a network, chosen for the whole of it.

    Attributes
    ----------
    convolutions : dict of str to int
        Number of convolutions with each layout, of those that have a choice.
    transforms : tuple of TransformInfo
    predicted, bound : float
        Seconds of a run, predicted from the latency of its operators and transforms; the lower
        bound of any choice, by the same prediction.
    measured, before : float
        Seconds of a run when it was tuned, with these layouts and without.
    fixed : dict of str to int
        Number of others with each layout: int8 convolutions, around which these were chosen.
    """

    convolutions: dict[str, int]
    transforms: tuple[TransformInfo, ...]
    predicted: float
    bound: float
    measured: float
    before: float
    fixed: dict[str, int] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """Largest distance of the choice from the best, by the prediction; 0 if it is the best."""
        return max(0.0, 1 - self.bound / self.predicted)

    def line(self) -> str:
        """Return one line.

        Such as ``12 NCHW16c, 1 NCHW; 2 transforms of 31 µs; predicted 4.1 ms, measured 4.2 ms``.
        """
        counts = _counted(self.convolutions) or "no convolution"
        if self.fixed:
            counts += f" (around {_counted(self.fixed)} of bytes, which have no other)"
        cost = 1e6 * sum(transform.seconds for transform in self.transforms)
        count = len(self.transforms)
        gap = f" (at most {self.gap:.1%} above the least)" if self.gap else ""
        return (
            f"{counts}; {count} transform{'s' if count != 1 else ''} of "
            f"{cost:.0f} µs; predicted {1e3 * self.predicted:.3g} ms{gap}, measured "
            f"{1e3 * self.measured:.3g} ms, {1e3 * self.before:.3g} ms before"
        )

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> LayoutsInfo:
        """The inverse of ``asdict``."""
        return cls(
            **{**fields, "transforms": tuple(TransformInfo(**t) for t in fields["transforms"])}
        )


def _counted(layouts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in layouts.items())


def layout_name(block: int) -> str:
    """The name of a layout of `block` channels in a block, 0 for NCHW."""
    return f"NCHW{block}c" if block else "NCHW"
