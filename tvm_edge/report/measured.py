"""Protocols of the profile that a report reads; :class:`tvm_edge.runtime.Profile` fits.

The runtime imports the report, not the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Measured", "MeasuredKernel"]


class MeasuredKernel(Protocol):
    """One launch: start and latency in microseconds, and its rates."""

    @property
    def name(self) -> str: ...
    @property
    def start_us(self) -> float: ...
    @property
    def time_us(self) -> float: ...
    @property
    def share(self) -> float: ...
    @property
    def gflops(self) -> float: ...
    @property
    def gbs(self) -> float: ...


class Measured(Protocol):
    """The launches of one run, in the order of the report's kernels."""

    @property
    def kernels(self) -> Sequence[MeasuredKernel]: ...
    @property
    def total_us(self) -> float: ...
