"""Launches of so few work-groups that a GPU gives each core as many as any other.

An H100 hands out the work-groups of a launch in turns to its clusters of cores. Not all clusters
have as many cores. With two work-groups for each core or more, eight of its 132 cores get their
second one before others have their first (``%smid`` of launches of 128 to 1,400 work-groups, from
264 on). A launch of one kernel with hundreds of short work-groups does not mind. Where some
members' work-groups are long, two of them on one core last twice as long as one, and the whole
launch waits. Fewer work-groups are spread evenly. So a work-group of a member with many of them
does the work of several, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

__all__ = ["group_loops", "most_even_groups"]


def most_even_groups(cores: int) -> int:
    """The most work-groups of a launch that are spread evenly over cores."""
    return 2 * cores - 1


def group_loops(counts: Sequence[int], cores: int) -> list[int] | None:
    """For each member how many of its work-groups one is to do, so that all are spread evenly.

    Members with at most one work-group for each core keep theirs, as they are the long ones. The
    others have theirs reduced to the same number.

    Parameters
    ----------
    counts : sequence of int
        Work-groups of each member.
    cores : int

    Returns
    -------
    list of int or None
        1 for all where they are few enough; ``None`` where a member would keep no work-group.
    """
    left, rest = most_even_groups(cores), sorted(counts)
    if sum(counts) <= left:
        return [1] * len(counts)
    while rest and (rest[0] <= cores or rest[0] <= left // len(rest)):
        left -= rest.pop(0)
    if not rest or left < len(rest):
        return None
    level = left // len(rest)
    return [1 if count <= cores else ceil(count / level) for count in counts]
