"""The least sum of tables over discrete variables, exact where few variables meet.

Variables are eliminated one after the other: the tables that have one are added up, and what
remains is a table of the least sum for each choice of its neighbours (Bertelè and Brioschi,
"Nonserial Dynamic Programming", 1972; Dechter, "Bucket elimination", 1999). On a chain or a tree
that is dynamic programming; elsewhere the largest table decides time and memory.

Beyond a size of tables the minimum is bounded from below by mini-buckets, where a variable may take
another value in each part of its tables (Dechter and Rish, 2003), and approached from above:
where a table would be too large variables keep the value of the best choice so far, and all others
are chosen by elimination. No such step makes the choice worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log2

import numpy as np

__all__ = ["Minimum", "Table", "minimise"]

_LARGEST = 1 << 18  # entries of a table
_IDLE = 6  # rounds without gain, after which the search ends
_ROUNDS = 60
_SEED = 0  # the same choice every time


@dataclass(frozen=True)
class Table:
    """A term of the sum.

    Attributes
    ----------
    scope : tuple of int
        Different variables.
    values : np.ndarray
        By the values of `scope`, in this order; infinite where they do not go together.
    """

    scope: tuple[int, ...]
    values: np.ndarray


@dataclass(frozen=True)
class Minimum:
    """A choice, and how good it is.

    Attributes
    ----------
    choice : tuple of int
        The value of each variable.
    cost : float
        Its sum.
    bound : float
        No choice has a smaller sum.
    """

    choice: tuple[int, ...]
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """Bound of the sum's distance from the least, as a share; 0 if it is the least."""
        return (self.cost - self.bound) / self.cost if self.cost > self.bound else 0.0


def minimise(
    sizes: Sequence[int],
    tables: Sequence[Table],
    *,
    start: Sequence[int] | None = None,
    largest: int = _LARGEST,
) -> Minimum:
    """Choose a value of each variable so that the tables' sum is least.

    Parameters
    ----------
    sizes : sequence of int
        How many values each variable has.
    tables : sequence of Table
        Numbers from zero on, or infinity.
    start : sequence of int, optional
        A choice of finite cost: what the search begins with where elimination is not exact.
    largest : int
        Entries that a table may have.

    Returns
    -------
    Minimum
        With ``cost == bound`` wherever no table was too large.

    Raises
    ------
    ValueError
        No choice of finite cost exists, or none was found and none was given to begin with.
    """
    found, bound, exact = _Elimination(sizes, tables, largest).run()
    cost = _total(tables, found)
    if exact:
        if not isfinite(cost):
            raise ValueError("every choice has an infinite cost")
        return Minimum(found, cost, cost)
    if start is not None and not cost <= _total(tables, start):
        found, cost = tuple(start), _total(tables, start)
    if not isfinite(cost):
        raise ValueError("no choice of finite cost was found; give one to start with")
    random, idle = np.random.default_rng(_SEED), 0
    for _ in range(_ROUNDS):
        kept = _Elimination(sizes, tables, largest, found, random.random(len(sizes)))
        other, _, _ = kept.run()
        total = _total(tables, other)
        if total < cost:
            idle, found, cost = 0, other, total
        else:
            idle += 1
        if idle == _IDLE or cost <= bound:
            break
    return Minimum(found, cost, min(bound, cost))


def _total(tables: Sequence[Table], choice: Sequence[int]) -> float:
    return float(sum(t.values[tuple(choice[v] for v in t.scope)] for t in tables))


@dataclass(frozen=True)
class _Step:
    """Choice of an eliminated variable, once its neighbours are chosen.

    Attributes
    ----------
    variable : int
    parts : list of Table
        Sums over the variable, which is last in each scope; of a single part the best values.
    """

    variable: int
    parts: list[Table]

    def choose(self, choice: Mapping[int, int]) -> int:
        if len(self.parts) == 1:  # by its neighbours, which value is best
            (part,) = self.parts
            return int(part.values[tuple(choice[v] for v in part.scope)])
        rows = [part.values[tuple(choice[v] for v in part.scope[:-1])] for part in self.parts]
        return int(np.argmin(np.sum(rows, axis=0)))


class _Elimination:
    """One pass over all variables.

    Parameters
    ----------
    sizes, tables, largest
        As of :func:`minimise`.
    kept : sequence of int, optional
        Where a table would be too large a variable keeps this value. Without it the variable's
        tables are minimised in parts.
    whim : np.ndarray, optional
        In 0 to 1 by variable: which of them rather keep their values.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        tables: Sequence[Table],
        largest: int,
        kept: Sequence[int] | None = None,
        whim: np.ndarray | None = None,
    ) -> None:
        self._bits = [log2(max(size, 1)) for size in sizes]
        self._sizes, self._most = sizes, log2(largest)
        self._kept, self._whim = kept, whim
        self._constant = 0.0
        self._tables: dict[int, list[Table]] = {v: [] for v in range(len(sizes))}
        self._near: dict[int, set[int]] = {v: set() for v in range(len(sizes))}
        for table in tables:
            self._add(table)
        self._weight = {v: self._weigh(v) for v in self._near}

    def run(self) -> tuple[tuple[int, ...], float, bool]:
        """A choice; the sum by the tables that remained, which bounds it; whether they agree."""
        steps: list[_Step] = []
        choice: dict[int, int] = {}
        exact = True
        while self._weight:
            variable = min(self._weight, key=lambda v: (self._weight[v], v))
            if self._weight[variable] <= self._most:
                steps.append(self._eliminate(variable, [self._take(variable)]))
                continue
            exact = False
            if self._kept is None:
                steps.append(self._eliminate(variable, self._parts(self._take(variable))))
            else:
                fixed = self._widest()
                choice[fixed] = self._kept[fixed]
                self._fix(fixed, choice[fixed])
        for step in reversed(steps):
            choice[step.variable] = step.choose(choice)
        return tuple(choice[v] for v in range(len(self._sizes))), self._constant, exact

    def _add(self, table: Table) -> None:
        if not table.scope:
            self._constant += float(table.values)
            return
        for v in table.scope:
            self._tables[v].append(table)
            self._near[v].update(table.scope)
            self._near[v].discard(v)

    def _weigh(self, variable: int) -> float:
        return self._bits[variable] + sum(self._bits[v] for v in self._near[variable])

    def _take(self, variable: int) -> list[Table]:
        """The tables that have a variable, which are then of nobody."""
        taken = self._tables.pop(variable)
        for table in taken:
            for v in table.scope:
                if v != variable:
                    self._tables[v] = [other for other in self._tables[v] if other is not table]
        del self._weight[variable]
        return taken

    def _parts(self, tables: list[Table]) -> list[list[Table]]:
        """Tables together, as far as their sum is not too large; the largest first."""
        parts: list[tuple[set[int], list[Table]]] = []
        for table in sorted(tables, key=lambda t: -t.values.size):
            for scope, own in parts:
                if sum(self._bits[v] for v in scope.union(table.scope)) <= self._most:
                    scope.update(table.scope)
                    own.append(table)
                    break
            else:
                parts.append((set(table.scope), [table]))
        return [own for _, own in parts]

    def _eliminate(self, variable: int, parts: list[list[Table]]) -> _Step:
        sums = [self._sum(own, variable) for own in parts if own]
        if not sums:  # nothing depends on it
            sums = [Table((variable,), np.zeros(self._sizes[variable]))]
        near = self._near.pop(variable)
        for v in near:
            self._near[v].discard(variable)
        for total in sums:
            self._add(Table(total.scope[:-1], total.values.min(axis=-1)))
        for v in near:
            self._weight[v] = self._weigh(v)
        if len(sums) > 1:
            return _Step(variable, sums)
        best = sums[0].values.argmin(axis=-1).astype(np.min_scalar_type(self._sizes[variable]))
        return _Step(variable, [Table(sums[0].scope[:-1], best)])

    def _sum(self, tables: list[Table], variable: int) -> Table:
        """Tables added up, `variable` last."""
        others = {v: None for table in tables for v in table.scope if v != variable}
        scope = (*others, variable)
        place = {v: i for i, v in enumerate(scope)}
        total = np.zeros([self._sizes[v] for v in scope])
        for table in tables:
            order = sorted(range(len(table.scope)), key=lambda i: place[table.scope[i]])
            shape = [1] * len(scope)
            for v, size in zip(table.scope, table.values.shape, strict=True):
                shape[place[v]] = size
            total += table.values.transpose(order).reshape(shape)
        return Table(scope, total)

    def _widest(self) -> int:
        """The variable that keeps its value: one of many neighbours."""
        whim = self._whim
        return max(
            self._weight,
            key=lambda v: (len(self._near[v]) * (1.0 if whim is None else 0.5 + whim[v]), v),
        )

    def _fix(self, variable: int, value: int) -> None:
        taken = self._take(variable)
        near = self._near.pop(variable)
        for v in near:
            self._near[v].discard(variable)
        for table in taken:
            at = table.scope.index(variable)
            rest = table.scope[:at] + table.scope[at + 1 :]
            self._add(Table(rest, table.values.take(value, axis=at)))
        for v in near:
            self._weight[v] = self._weigh(v)
