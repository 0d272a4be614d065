"""Launches of so few work-groups that a GPU gives each core as many as any other.

An H100 hands out the groups of a launch in turns to its clusters of cores, and not all clusters
have as many: with two groups for each core or more, eight of its 132 cores get their second group
before others have their first (``%smid`` of the groups of launches of 128 to 1,400, from 264 on). A
launch of one kernel with hundreds of short groups does not mind. Where some members' groups are
long, two of them on one core take twice as long as one, and the whole launch waits. With fewer
groups they are spread evenly. So a group of a member with many of them does several, one after the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

__all__ = ["group_loops", "most_even_groups"]


def most_even_groups(cores: int) -> int:
    """Groups of a launch that are spread evenly over cores, at the most."""
    return 2 * cores - 1


def group_loops(counts: Sequence[int], cores: int) -> list[int] | None:
    """How many of its groups a group of each member is to do, so that all are spread evenly.

    Members with a group for each core at most keep theirs, as they are the long ones; the others
    have theirs reduced to the same number.

    Parameters
    ----------
    counts : sequence of int
        Groups of each member.
    cores : int

    Returns
    -------
    list of int or None
        1 for all where they are few enough; ``None`` where no group would be left for a member.
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
