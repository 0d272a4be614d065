"""Layouts for the whole of a network: what each operator's and each transform's choice costs.

The fastest kernel of each convolution wants images in blocks of its own size, and transforms
between them can cost more than they gain. The time of a run is taken as a sum: that of each
operator in the layout that it has, and of each image once in each other layout that somebody reads
it in. The least sum is found exactly by dynamic programming (ICPP'19 §3.2.3, after Liu et al.,
"Optimizing CNN model inference on CPUs", USENIX ATC'19 §3.3.2, who approximate all but chains).

A layout is the number of channels in a block, 0 for NCHW.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from tvm_edge.relay_passes.solvers.min_sum import Minimum, Table, minimise

__all__ = ["LayoutNode", "LayoutProblem", "Layouts", "Read", "Transform", "digest"]


@dataclass(frozen=True)
class Read:
    """An image that an operator reads.

    Attributes
    ----------
    source : int
        The operator whose result it is.
    layouts : tuple of int
        For each layout that the reader may have the one it reads.
    held : tuple of bool
        Whether the source itself has to have that layout: nothing is transformed, and nothing
        copied.
    """

    source: int
    layouts: tuple[int, ...]
    held: tuple[bool, ...]

    @classmethod
    def any_way(cls, source: int, layouts: tuple[int, ...]) -> Read:
        """A read of an image that may be transformed."""
        return cls(source, layouts, (False,) * len(layouts))


@dataclass(frozen=True)
class LayoutNode:
    """An operator, by what decides which layouts it may have.

    Attributes
    ----------
    what : str
        What it computes, shapes included: a part of a network's identity.
    layouts : tuple of int
        Of its result.
    reads : tuple of Read
        Of operators before it.
    shape : tuple of int
        Of its result in NCHW; empty where it is no image.
    """

    what: str
    layouts: tuple[int, ...]
    reads: tuple[Read, ...] = ()
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Transform:
    """An image that is written in another layout.

    Attributes
    ----------
    node : int
        Whose result it is.
    before, after : int
        Layouts; the same where channels from several places are gathered.
    seconds : float
    """

    node: int
    before: int
    after: int
    seconds: float


@dataclass(frozen=True)
class Layouts:
    """A choice of the layout of each operator.

    Attributes
    ----------
    layouts : tuple of int
    seconds : float
        Latency of a run by the problem.
    bound : float
        No choice has a smaller latency.
    """

    layouts: tuple[int, ...]
    seconds: float
    bound: float

    @property
    def gap(self) -> float:
        """Bound of the distance from the best, as a share; 0 if it is the best."""
        return Minimum((), self.seconds, self.bound).gap


@dataclass(frozen=True)
class LayoutProblem:
    """Operators of a network in order, and their latencies.

    Attributes
    ----------
    nodes : tuple of LayoutNode
    seconds : tuple of tuple of float
        By operator and layout, infinite for what cannot be.
    transforms : tuple of mapping
        By operator the seconds from one layout of its result to another. From a layout to itself:
        the latency of gathering its channels, where the operator only says where they are. It is 0
        if it is not there.
    """

    nodes: tuple[LayoutNode, ...]
    seconds: tuple[tuple[float, ...], ...]
    transforms: tuple[Mapping[tuple[int, int], float], ...]

    def solve(self, *, start: Sequence[int] | None = None, largest: int = 1 << 18) -> Layouts:
        """The layouts of the least time.

        Parameters
        ----------
        start : sequence of int, optional
            Layouts to begin with where the graph is too wide to be exact; by default NCHW.
        largest : int
            Entries of a table: a graph that needs larger ones is too wide.

        Raises
        ------
        ValueError
            No choice is possible.
        """
        sets = self._sets()
        sizes = [len(node.layouts) for node in self.nodes] + [len(own) for own in sets]
        tables = [Table((i,), np.array(own)) for i, own in enumerate(self.seconds)]
        count = len(self.nodes)
        for i, node in enumerate(self.nodes):
            if len(sets[i]) > 1 or sets[i][0]:
                made = [[self._made(i, x, read) for read in sets[i]] for x in node.layouts]
                tables.append(Table((i, count + i), np.array(made)))
            for read in node.reads:
                tables += self._constraints(i, read, sets[read.source])
        plain = tuple(node.layouts.index(0) if 0 in node.layouts else 0 for node in self.nodes)
        places = (
            plain
            if start is None
            else tuple(n.layouts.index(x) for n, x in zip(self.nodes, start, strict=True))
        )
        begin = [*places, *self._needed_sets(places, sets)]
        found = minimise(sizes, tables, start=begin, largest=largest)
        layouts = tuple(
            node.layouts[place]
            for node, place in zip(self.nodes, found.choice[:count], strict=True)
        )
        # A search may leave transforms in the sum that nobody reads.
        seconds = found.cost if found.cost == found.bound else self.total(layouts)
        return Layouts(layouts, seconds, found.bound)

    def total(self, layouts: Sequence[int]) -> float:
        """Seconds of a run with these layouts; infinite if they do not go together."""
        own = 0.0
        for node, seconds, layout in zip(self.nodes, self.seconds, layouts, strict=True):
            place = node.layouts.index(layout)
            own += seconds[place]
            for read in node.reads:
                if read.held[place] and layouts[read.source] != read.layouts[place]:
                    return inf
        return own + sum(transform.seconds for transform in self.needed(layouts))

    def needed(self, layouts: Sequence[int]) -> list[Transform]:
        """The transforms between these layouts, those that cost nothing left out."""
        reads: list[set[int]] = [set() for _ in self.nodes]
        for node, layout in zip(self.nodes, layouts, strict=True):
            place = node.layouts.index(layout)
            for read in node.reads:
                if not read.held[place]:
                    reads[read.source].add(read.layouts[place])
        found = [
            Transform(i, layouts[i], after, self._seconds(i, layouts[i], after))
            for i, own in enumerate(reads)
            for after in sorted(own)
        ]
        return [transform for transform in found if transform.seconds]

    def with_given(self, given: Mapping[int, int]) -> LayoutProblem:
        """The problem with the layouts of some operators given."""
        seconds = tuple(
            tuple(
                own if i not in given or layout == given[i] else inf
                for own, layout in zip(self.seconds[i], node.layouts, strict=True)
            )
            for i, node in enumerate(self.nodes)
        )
        return replace(self, seconds=seconds)

    @property
    def digest(self) -> str:
        """Names the network, whatever things cost."""
        return digest(self.nodes)

    def _seconds(self, node: int, before: int, after: int) -> float:
        if before == after:
            return self.transforms[node].get((before, after), 0.0)
        return self.transforms[node][before, after]

    def _made(self, node: int, layout: int, wanted: frozenset[int]) -> float:
        return sum(self._seconds(node, layout, after) for after in wanted)

    def _sets(self) -> list[list[frozenset[int]]]:
        """By operator the sets of layouts that its readers together may read it in.

        A variable for this set makes an image read twice in one layout transformed once, with no
        table of more than two variables.
        """
        found: list[set[frozenset[int]]] = [{frozenset()} for _ in self.nodes]
        for node in self.nodes:
            for read in node.reads:
                wanted = {_wanted(read, place) for place in range(len(node.layouts))}
                own = found[read.source]
                found[read.source] = {before | more for before in own for more in wanted}
        return [sorted(own, key=lambda s: (len(s), sorted(s))) for own in found]

    def _constraints(self, reader: int, read: Read, sets: Sequence[frozenset[int]]) -> list[Table]:
        """Tables that have an image there in the layout it is read in, and a held source in it."""
        node, source = self.nodes[reader], self.nodes[read.source]
        places = range(len(node.layouts))
        there = [[0.0 if _wanted(read, p) <= own else inf for p in places] for own in sets]
        tables = [Table((len(self.nodes) + read.source, reader), np.array(there))]
        if any(read.held):
            same = [
                [0.0 if not read.held[p] or x == read.layouts[p] else inf for p in places]
                for x in source.layouts
            ]
            tables.append(Table((read.source, reader), np.array(same)))
        return tables

    def _needed_sets(
        self, places: Sequence[int], sets: Sequence[Sequence[frozenset[int]]]
    ) -> list[int]:
        needed: list[frozenset[int]] = [frozenset()] * len(self.nodes)
        for node, place in zip(self.nodes, places, strict=True):
            for read in node.reads:
                needed[read.source] |= _wanted(read, place)
        return [own.index(want) for own, want in zip(sets, needed, strict=True)]


def _wanted(read: Read, place: int) -> frozenset[int]:
    return frozenset() if read.held[place] else frozenset((read.layouts[place],))


def digest(nodes: Sequence[LayoutNode]) -> str:
    """Names a network by its operators and how they are connected."""
    known = [
        [node.what, node.layouts, [[r.source, r.layouts, r.held] for r in node.reads]]
        for node in nodes
    ]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]
