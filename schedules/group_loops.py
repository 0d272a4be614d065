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


def group_loops(counts: Sequence[int], most: int) -> list[int]:
    """How many of its groups a group of each member is to do, for `most` in all at the most.

    Members with the most groups have them reduced, to the same number.

    Parameters
    ----------
    counts : sequence of int
        Groups of each member.
    most : int

    Returns
    -------
    list of int
        1 for all where they are few enough, and where each could not have one.
    """
    if sum(counts) <= most or most < len(counts):
        return [1] * len(counts)
    left, level = most, 0
    for number, count in enumerate(sorted(counts)):
        level = left // (len(counts) - number)
        if count > level:
            break
        left -= count
    return [ceil(count / level) if count > level else 1 for count in counts]
