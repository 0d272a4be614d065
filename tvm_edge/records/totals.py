"""Numbers of tuning records that a store holds, and that it lost."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counts", "Pruned"]


@dataclass(frozen=True)
class Counts:
    """Numbers of records in a store, of failures among them, and of distinct workloads."""

    records: int
    failed: int
    workloads: int


@dataclass(frozen=True)
class Pruned:
    """Numbers of records that a store lost, by why, and of those left.

    Attributes
    ----------
    failed, unreadable, outdated, slower, kept : int
        Failures; what is no record of this schema; those of templates that have changed; those
        slower than the best of their workloads; those left.
    """

    failed: int
    unreadable: int
    outdated: int
    slower: int
    kept: int
