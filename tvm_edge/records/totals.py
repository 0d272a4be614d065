"""How much a store of records holds, and what it lost."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counts", "Pruned"]


@dataclass(frozen=True)
class Counts:
    """How much a store holds: records, failures among them, distinct workloads."""

    records: int
    failed: int
    workloads: int


@dataclass(frozen=True)
class Pruned:
    """How many records a store lost, by why, and how many are left.

    Attributes
    ----------
    failed, unreadable, outdated, slower, kept : int
        Failures; what is no record of this schema; those of templates that have changed; those
        behind the best of their workloads; those left.
    """

    failed: int
    unreadable: int
    outdated: int
    slower: int
    kept: int
