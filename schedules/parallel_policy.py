"""Choice of independent kernels that become one launch: the policy EMDL'21 leaves open (§7).

"We need a policy that maximizes the end-to-end throughput to group independent operators to avoid
exhaustive search." Here the predicted time of a run is made less merge by merge. Of all pairs of
independent kernels (or groups) the one that makes it least is merged first. That keeps the graph
without cycles. Pairs that are no longer independent are dropped, until no pair gains enough.

First those pairs that may run at the same time in a shortest schedule of the graph: their ranges of
levels overlap. A merge of others would keep more of the kernels between them from being merged, as
those of two chains that run beside each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.launch_time import apart_us, longest_us, merged_us
from tvm_edge.schedules.launch_work import Launch

__all__ = [
    "LEAST_GAIN",
    "MOST_MEMBERS",
    "UNKNOWN",
    "Group",
    "Problem",
    "choose_groups",
    "fuses_by_itself",
]

LEAST_GAIN = 0.04
"""Share of the kernels' latency apart that a merge has to gain by the prediction. With 3 %
one of those that were measured loses 2 % (benchmarks/fusion/policy.py)."""

MOST_MEMBERS = 8
"""Largest group: as many as EMDL'21 has measured (Figure 9)."""

UNKNOWN = "nobody measured it, and without that nothing is merged on this device"
"""Reason to leave a group apart that has no record, on a device of which little is known."""

# Levels between kernels that are looked at together.
_FAR = 16

_NAMED = 20  # groups that a report names as refused


def fuses_by_itself(spec: DeviceSpec) -> bool:
    """Return whether ``parallel_fusion="auto"`` merges on a device.

    It does on GPUs of which the number of simultaneous work-items is known: from their waves, or
    from lanes and registers. A CPU's cores are busy with one kernel. Handing its threads the next
    one has a cost that merging saves little of.
    """
    if spec.has_cpu_cores or spec.cores < 1:
        return False
    return spec.wave > 1 or bool(spec.alus and spec.registers)


@dataclass(frozen=True)
class Problem:
    """Kernels of a graph, by number in an order in which they may run.

    Attributes
    ----------
    before : sequence of collection of int
        For each kernel those that have to run before; what they wait for need not be named.
    launches : callable
        The launches of a kernel; ``None`` where nothing can be said of its time. Asked for those
        alone that might be merged.
    spec : DeviceSpec
    kinds : sequence of hashable
        Kernels of different kinds are never merged; ``None`` is of those that are never.
    refused : callable
        Why kernels cannot be merged, given their numbers in order; empty where they can.
    measured : callable
        Whether they are faster as one by a measurement, ``None`` where there is none.
    fastest : callable
        Members of a group in the order that is fastest by a measurement, ``None`` where there is
        none.
    """

    before: Sequence[Collection[int]]
    launches: Callable[[int], Sequence[Launch] | None]
    spec: DeviceSpec
    kinds: Sequence[Hashable]
    refused: Callable[[tuple[int, ...]], str] = field(default=lambda _: "")
    measured: Callable[[tuple[int, ...]], bool | None] = field(default=lambda _: None)
    fastest: Callable[[tuple[int, ...]], tuple[int, ...] | None] = field(default=lambda _: None)

    def apart_us(self, members: Sequence[int]) -> float | None:
        """Microseconds of kernels one after the other."""
        known = self._launches(members)
        return None if known is None else apart_us(known, self.spec)

    def merged_us(self, members: Sequence[int]) -> float | None:
        """Microseconds of kernels as one: those of every other group with such launches."""
        like = [self._like(member) for member in members]
        numbers = [number for number in like if number is not None]
        if len(numbers) < len(like):
            return None
        key = tuple(sorted(numbers))
        if key not in self._times:
            known = [tuple(self.launches(member) or ()) for member in members]
            # Sorted: the sum is not to depend on which of them comes first.
            self._times[key] = merged_us(sorted(known), self.spec)
        return self._times[key]

    def _like(self, member: int) -> int | None:
        """A number for all kernels with the launches of one; ``None`` where these are unknown."""
        if member not in self._kinds:
            launches = self.launches(member)
            self._kinds[member] = (
                None if launches is None else self._numbers.setdefault(tuple(launches), member)
            )
        return self._kinds[member]

    def ordered(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """Kernels in the order that they have in one launch.

        The fastest that was measured, or those with the longest groups first: the sooner they
        begin, the less is left to do when there is nothing else to run beside them.
        """
        measured = self.fastest(members)
        if measured is not None:
            return measured

        def longest(member: int) -> float:
            launches = self.launches(member)
            return 0.0 if launches is None else longest_us(launches, self.spec)

        return tuple(sorted(members, key=lambda member: (-round(longest(member), 6), member)))

    @cached_property
    def _kinds(self) -> dict[int, int | None]:
        return {}

    @cached_property
    def _numbers(self) -> dict[tuple[Launch, ...], int]:
        return {}

    @cached_property
    def _times(self) -> dict[tuple[int, ...], float]:
        return {}

    def _launches(self, members: Sequence[int]) -> list[Sequence[Launch]] | None:
        found = [self.launches(member) for member in members]
        known = [launches for launches in found if launches is not None]
        return known if len(known) == len(found) else None


@dataclass(frozen=True)
class Group:
    """Kernels that were considered as one.

    Attributes
    ----------
    members : tuple of int
        In the order of their work-groups.
    taken : bool
    reason : str
    apart_us, merged_us : float or None
        Predicted microseconds; ``None`` where nothing can be said.
    """

    members: tuple[int, ...]
    taken: bool
    reason: str
    apart_us: float | None
    merged_us: float | None


def choose_groups(problem: Problem, *, every: bool = False) -> list[Group]:
    """Groups that are merged, then the best of those that are not.

    Parameters
    ----------
    problem : Problem
    every : bool
        Merge whatever can be, not only what gains.

    Returns
    -------
    list of Group
        Those taken in the order of their first members, no two with a member in common and none
        waiting for itself through others; then of what is left pairs that were refused, the most
        promising first.
    """
    chooser = _Chooser(problem, every)
    chooser.merge(0)
    chooser.merge(_FAR)
    return [*chooser.taken(), *chooser.refused()]


class _Chooser:
    """Merges pair by pair. A node is a kernel, or those that became one."""

    def __init__(self, problem: Problem, every: bool) -> None:
        self._problem, self._every = problem, every
        count = len(problem.before)
        self._members: dict[int, tuple[int, ...]] = {node: (node,) for node in range(count)}
        self._before = {node: set(problem.before[node]) for node in range(count)}
        self._after: dict[int, set[int]] = {node: set() for node in range(count)}
        for node, before in self._before.items():
            for other in before:
                self._after[other].add(node)
        self._next = count
        self._refused: dict[tuple[int, int], tuple[float, str]] = {}
        self._known: dict[int, float | None] = {}  # microseconds of a node
        # Of each node those above it, a bit for each; the first level on which it may run, and how
        # many levels there have to be below it.
        self._above = dict.fromkeys(range(count), 0)
        self._first = dict.fromkeys(range(count), 0)
        self._below = dict.fromkeys(range(count), 0)
        self._depth = 0
        for node in range(count):  # an order in which they may run
            for other in self._before[node]:
                self._above[node] |= self._above[other] | 1 << other
                self._first[node] = max(self._first[node], self._first[other] + 1)
            self._depth = max(self._depth, self._first[node])
        for node in reversed(range(count)):
            for other in self._before[node]:
                self._below[other] = max(self._below[other], self._below[node] + 1)

    def merge(self, far: int) -> None:
        """Merge what is up to `far` levels apart while there is something to gain."""
        nodes = sorted(self._members)
        heap: list[tuple[float, int, int, int]] = []
        for i, a in enumerate(nodes):
            self._push(heap, a, nodes[i + 1 :], far)
        while heap:
            _, _, a, b = heapq.heappop(heap)
            if a not in self._members or b not in self._members:
                continue
            # Merges since then may have put one after the other, or moved them apart.
            if not self._independent(a, b) or self._distance(a, b) > far:
                continue
            members = tuple(sorted(self._members[a] + self._members[b]))
            reason = self._objection(a, b, members)
            if reason:
                self._refused[a, b] = (self._gain(a, b), reason)
                continue
            merged = self._merged(a, b, members)
            others = sorted(other for other in self._members if other != merged)
            self._push(heap, merged, others, far)

    def taken(self) -> list[Group]:
        """The groups there are."""
        found = sorted(members for members in self._members.values() if len(members) > 1)
        return [self._group(members, True, self._why(members)) for members in found]

    def refused(self) -> list[Group]:
        """The best of the pairs that are left, each kernel in one of them."""
        left = {
            pair: found
            for pair, found in self._refused.items()
            if pair[0] in self._members and pair[1] in self._members
        }
        named: set[int] = set()
        groups = []
        for (a, b), (_, reason) in sorted(left.items(), key=lambda item: (-item[1][0], item[0])):
            if a in named or b in named or not self._independent(a, b):
                continue
            named |= {a, b}
            members = tuple(sorted(self._members[a] + self._members[b]))
            groups.append(self._group(members, False, reason))
        return groups[:_NAMED]

    def _why(self, members: tuple[int, ...]) -> str:
        """Return the reason why a group was taken."""
        if self._every:
            return "asked for"
        measured = self._problem.measured(members)
        return "measured to gain" if measured else "predicted to gain"

    def _group(self, members: tuple[int, ...], taken: bool, reason: str) -> Group:
        problem = self._problem
        times = problem.apart_us(members), problem.merged_us(members)
        order = problem.ordered(members) if taken else members
        return Group(order, taken, reason, *times)

    def _objection(self, a: int, b: int, members: tuple[int, ...]) -> str:
        """Return the reason why two nodes stay apart; empty if they are merged."""
        if len(members) > MOST_MEMBERS:
            return f"a group has {MOST_MEMBERS} members at most"
        apart = self._us(a), self._us(b)
        measured = None if self._every else self._problem.measured(members)
        if measured is False:
            return "measured to be slower as one, or to fail"
        if not self._every and not measured:
            if not fuses_by_itself(self._problem.spec):
                return UNKNOWN
            if apart[0] is None or apart[1] is None:
                return "how long one of them takes depends on data"
            gain = self._gain(a, b) / (apart[0] + apart[1])
            if gain < LEAST_GAIN:
                return (
                    f"predicted to gain {max(gain, 0):.0%}, and {LEAST_GAIN:.0%} would be worth it"
                )
        return self._problem.refused(members)

    def _us(self, node: int) -> float | None:
        if node not in self._known:
            self._known[node] = self._problem.merged_us(self._members[node])
        return self._known[node]

    def _gain(self, a: int, b: int) -> float:
        """Microseconds that a merge saves; 0 where nothing is known."""
        both = self._problem.merged_us(self._members[a] + self._members[b])
        first, second = self._us(a), self._us(b)
        return 0.0 if both is None or first is None or second is None else first + second - both

    def _push(
        self, heap: list[tuple[float, int, int, int]], a: int, others: Sequence[int], far: int
    ) -> None:
        """Push the pairs of a node that may be merged: near ones that do not wait for it."""
        kinds, members = self._problem.kinds, self._members
        kind = kinds[members[a][0]]
        if kind is None:
            return
        above, first, last = self._above[a], self._first[a] - far, self._last(a) + far
        for b in others:
            if self._last(b) < first or self._first[b] > last or above >> b & 1:
                continue
            if self._above[b] >> a & 1 or kind != kinds[members[b][0]]:
                continue
            # Rounded: the order is not to depend on how a sum was rounded.
            heapq.heappush(heap, (-round(self._gain(a, b), 6), self._distance(a, b), a, b))

    def _independent(self, a: int, b: int) -> bool:
        return not (self._above[a] >> b & 1 or self._above[b] >> a & 1)

    def _distance(self, a: int, b: int) -> int:
        """Levels between the ranges in which two nodes may run."""
        return max(0, self._first[a] - self._last(b), self._first[b] - self._last(a))

    def _last(self, node: int) -> int:
        """The last level on which a node may run."""
        return self._depth - self._below[node]

    def _merged(self, a: int, b: int, members: tuple[int, ...]) -> int:
        node = self._next
        self._next += 1
        self._members[node] = members
        self._before[node] = self._before.pop(a) | self._before.pop(b)
        self._after[node] = self._after.pop(a) | self._after.pop(b)
        for others, own in ((self._after, self._before), (self._before, self._after)):
            for other in own[node]:
                others[other] -= {a, b}
                others[other].add(node)
        del self._members[a], self._members[b]
        # Whatever was above one of the two, or on a path through it, still is: nothing decreases.
        self._above[node] = self._above[a] | self._above[b]
        self._first[node] = max(self._first[a], self._first[b])
        self._below[node] = max(self._below[a], self._below[b])
        self._push_down(node)
        self._push_up(node)
        return node

    def _push_down(self, node: int) -> None:
        """Update what the successors of a node have above them, and their first levels."""
        changed = [node]
        while changed:
            one = changed.pop()
            above, first = self._above[one] | 1 << one, self._first[one] + 1
            self._depth = max(self._depth, first - 1)
            for other in self._after[one]:
                if first > self._first[other] or above | self._above[other] != self._above[other]:
                    self._first[other] = max(first, self._first[other])
                    self._above[other] |= above
                    changed.append(other)

    def _push_up(self, node: int) -> None:
        """Update how many levels are below the predecessors of a node."""
        changed = [node]
        while changed:
            one = changed.pop()
            below = self._below[one] + 1
            for other in self._before[one]:
                if below > self._below[other]:
                    self._below[other] = below
                    changed.append(other)
