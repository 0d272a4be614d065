"""Choice of a kernel's work-group by five rules, without measurement.

"Optimizing Inference on Mobile GPUs" (APSys'20, section 4.1): the work-group alone changes the time
of a kernel up to eightfold, and many sizes come close to the best; rules about cores, arithmetic
units, cache lines, padding and data accesses leave only such. Here each rule also has a penalty in
[0, 1]: the share of the device, or of the traffic, that a size wastes; it is zero for sizes that
obey the rule. The product of what the rules leave ranks the sizes: one that obeys all five is taken
before any other, and where none does, which is so for most layers, the least wasteful one is,
instead of a random one of those that the last filter left.

Kernels that are tiles in local memory are ranked together with their tile by the estimate of
:mod:`tvm_edge.schedules.gpu.product_tile`, which counts the same things in cycles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, Literal

import numpy as np
from tvm import ir, tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import coefficient, uses
from tvm_edge.schedules.analysis import divisors

__all__ = [
    "RULES",
    "WORK_GROUP",
    "Problem",
    "Read",
    "Steps",
    "WorkGroup",
    "choose_work_group",
    "group_size",
    "load_steps",
    "penalties",
    "possible_work_groups",
    "ranked_work_groups",
    "takes",
]

Space = tuple[int, int, int]
Sizes = tuple[Any, Any, Any]
Steps = tuple[tuple[int, ...], ...]
"""For each axis of a tensor, the elements from one value of each variable to the next."""

WORK_GROUP = 128
"""Work-items of a work-group along one axis at most: four warps of NVIDIA's, and small enough for
several work-groups to share a core of any GPU."""

_SMALLEST = 64

# Work-groups of up to so many work-items: several share a core, so that it is busy while one of
# them begins or ends.
_MOST_ITEMS = 256

# Work-items along each axis that CUDA and OpenCL's drivers take.
_MOST_ALONG = (1024, 1024, 64)

# Registers that a work-item may at least have on any GPU.
_FEWEST_REGISTERS = 16


@dataclass(frozen=True)
class WorkGroup:
    """Work-items of a work-group along columns (x), lines (y) and channels (z)."""

    x: int
    y: int = 1
    z: int = 1

    @property
    def items(self) -> int:
        """Work-items in all."""
        return self.x * self.y * self.z

    @property
    def sizes(self) -> Space:
        """Along x, y and z."""
        return (self.x, self.y, self.z)


@dataclass(frozen=True)
class Read:
    """Part of a tensor that a work-group reads.

    Attributes
    ----------
    axes : tuple of (tuple of (int, int), int)
        For each axis of the tensor what it depends on: ``(axis of the work-group, elements per
        work-item)``, and the elements that a single work-item spans beyond its first.
    """

    axes: tuple[tuple[tuple[tuple[int, int], ...], int], ...]

    @staticmethod
    def of(
        steps: Steps,
        extents: Sequence[int],
        items: Mapping[int, tuple[int, int]],
    ) -> Read:
        """Work it out from the steps of a load.

        Parameters
        ----------
        steps : tuple of tuple of int
            From :func:`load_steps`: the same for every tile of a work-item.
        extents : sequence of int
            Of the variables of the block that loads.
        items : mapping of int to (int, int)
            For a variable by its position: the axis of the work-group that it is spread over, and
            how many of its values a work-item handles. A work-item goes through all of the others.
        """
        axes = []
        for of_axis in steps:
            moved, span = [], 0
            for p, step in enumerate(of_axis):
                if step == 0:
                    continue
                if p in items:
                    axis, own = items[p]
                    moved.append((axis, step * own))
                else:
                    span += step * (extents[p] - 1)
            axes.append((tuple(moved), span))
        return Read(tuple(axes))

    def elements(self, sizes: Sizes) -> Any:
        """Distinct elements that a work-group of such a size reads; of arrays of sizes an array."""
        total = 1
        for moved, span in self.axes:
            first = sum(sizes[axis] * step for axis, step in moved) if moved else 1
            total = total * (span + first)
        return total


def load_steps(load: ir.TensorLoad, variables: Sequence[tirx.Var]) -> Steps:
    """Read the steps of a load off its indices; 1 where a step changes from place to place."""

    def step(index: tirx.Expr, var: tirx.Var) -> int:
        if not uses(index, var):
            return 0
        found = coefficient(index, var)
        return 1 if found is None else abs(found)

    return tuple(tuple(step(index, var) for var in variables) for index in load.indices)


@dataclass(frozen=True)
class Problem:
    """Work to be divided into work-groups.

    Attributes
    ----------
    space : (int, int, int)
        Work-items along x, y and z: the output over what one of them computes.
    form : {"conv", "depthwise", "general"}
        Of rule V: the paper's equations 6 and 7, or data accesses counted by `reads`.
    vector : int
        Elements that a work-item handles along x: the paper's :math:`d_x`.
    reads : tuple of Read
        The operands.
    registers : int
        32-bit registers of a work-item, estimated.
    element_bytes : int
    """

    space: Space
    form: Literal["conv", "depthwise", "general"] = "general"
    vector: int = 1
    reads: tuple[Read, ...] = ()
    registers: int = _FEWEST_REGISTERS
    element_bytes: int = 4


def most_items(problem: Problem, spec: DeviceSpec) -> int:
    """Work-items that a work-group may have: the device's limit, and what registers allow."""
    limit = max(spec.max_work_group_size, 1)
    if spec.registers:
        limit = min(limit, max(spec.registers // max(problem.registers, 1), 1))
    return limit


def takes(problem: Problem, group: WorkGroup, spec: DeviceSpec) -> bool:
    """Return whether a device accepts work-groups of a size."""
    within = all(size <= most for size, most in zip(group.sizes, _MOST_ALONG, strict=True))
    return within and group.items <= most_items(problem, spec)


def possible_work_groups(problem: Problem, spec: DeviceSpec) -> list[WorkGroup]:
    """All sizes that rules choose from: powers of two and divisors along each axis."""
    limit = most_items(problem, spec)
    along = [
        _sizes(extent, min(limit, most))
        for extent, most in zip(problem.space, _MOST_ALONG, strict=True)
    ]
    return [
        WorkGroup(x, y, z)
        for x in along[0]
        for y in along[1]
        if x * y <= limit
        for z in along[2]
        if x * y * z <= limit
    ]


def _sizes(extent: int, limit: int) -> list[int]:
    found, power = set(divisors(extent, limit)), 1
    while power <= limit and power < 2 * extent:
        found.add(power)
        power *= 2
    return sorted(found)


# ------------------------------------------------------------------------------------- the rules
#
# Of one size, or of arrays of them.


def _shortfall(value: Any, unit: int) -> Any:
    """The share of the last `unit` that is empty, of all units that `value` begins."""
    return 0.0 * value if unit <= 1 else 1.0 - value / (-(-value // unit) * unit)


def _cores(problem: Problem, sizes: Sizes, spec: DeviceSpec) -> Any:
    """Rule I, equation 1: cores that idle in the last round of work-groups."""
    groups = prod(-(-n // w) for n, w in zip(problem.space, sizes, strict=True))
    return _shortfall(groups, spec.cores)


def _units(problem: Problem, sizes: Sizes, spec: DeviceSpec) -> Any:
    """Rule II, equation 2: arithmetic units of a core that have no work-item."""
    return _shortfall(prod(sizes), simultaneous_items(spec))


def simultaneous_items(spec: DeviceSpec) -> int:
    """The paper's :math:`K_{ac}`: work-items that a core executes at the same time.

    Lanes of a core, in whole waves. Where work-items are executed one by one (Midgard, CPUs) their
    vectors fill the lanes.
    """
    if spec.wave > 1:
        return max(spec.alus // spec.wave, 1) * spec.wave
    if spec.on_cpu:
        return spec.lanes()
    return max(spec.alus // spec.lanes(), 1)


def _lines(problem: Problem, sizes: Sizes, spec: DeviceSpec) -> Any:
    """Rule III, equation 3: part of cache lines that a work-group reads along x without using."""
    return _shortfall(sizes[0] * problem.vector * problem.element_bytes, spec.cache_line)


def _padding(problem: Problem, sizes: Sizes, spec: DeviceSpec) -> Any:
    """Rule IV, equation 4: work-items outside of the output."""
    padded = prod(-(-n // w) * w for n, w in zip(problem.space, sizes, strict=True))
    return 1.0 - prod(problem.space) / padded


def _accesses(problem: Problem, sizes: Sizes, spec: DeviceSpec) -> Any:
    """Rule V, equations 5 to 7: data accesses beyond the fewest."""
    x, y, z = sizes
    if problem.form == "depthwise":
        return _apart(x * y, min(problem.space[0] * problem.space[1], spec.max_work_group_size))
    if problem.form == "conv":
        return _apart(x * y, 2.0 * z)
    return 1.0 - _fewest(problem, spec) / _per_item(problem, sizes) if problem.reads else 0.0 * x


def _apart(a: Any, b: Any) -> Any:
    return 1.0 - np.minimum(a, b) / np.maximum(a, b)


def _per_item(problem: Problem, sizes: Sizes) -> Any:
    """Elements that a work-group reads for each of its work-items inside the output."""
    inside = prod(np.minimum(w, n) for n, w in zip(problem.space, sizes, strict=True))
    return sum(read.elements(sizes) for read in problem.reads) / inside


@cache
def _fewest(problem: Problem, spec: DeviceSpec) -> float:
    return float(np.min(_per_item(problem, _as_arrays(possible_work_groups(problem, spec)))))


def _as_arrays(groups: Sequence[WorkGroup]) -> Sizes:
    x, y, z = np.array([group.sizes for group in groups]).T
    return x, y, z


RULES = (_cores, _units, _lines, _padding, _accesses)
"""I to V; each gives the penalty of a size in [0, 1], and zero to those that obey it."""


def penalties(problem: Problem, group: WorkGroup, spec: DeviceSpec) -> tuple[float, ...]:
    """Penalty of a size by each rule."""
    return tuple(float(rule(problem, group.sizes, spec)) for rule in RULES)


@cache
def choose_work_group(problem: Problem, spec: DeviceSpec, fewest: int = 1) -> WorkGroup:
    """The size that wastes least by rules I to V: the first of :func:`ranked_work_groups`."""
    return ranked_work_groups(problem, spec, fewest)[0]


def ranked_work_groups(problem: Problem, spec: DeviceSpec, fewest: int = 1) -> list[WorkGroup]:
    """Sizes by how little they waste by rules I to V, the best first.

    Parameters
    ----------
    problem : Problem
    spec : DeviceSpec
        Its cores, lanes, cache lines and limits.
    fewest : int
        Work-items of a work-group at least, where the device accepts so many.
    """
    groups = [g for g in possible_work_groups(problem, spec) if g.items <= _MOST_ITEMS]
    groups = [group for group in groups if group.items >= fewest] or groups
    sizes = _as_arrays(groups)
    used = prod(1.0 - rule(problem, sizes, spec) for rule in RULES)
    # Of two that are as good the one with more work-items, then the longer.
    return [groups[place] for place in np.lexsort((sizes[0], prod(sizes), used))[::-1]]


def group_size(size: int | None, spec: DeviceSpec) -> int:
    """Number of `size` work-items to put in a work-group along one axis, by the rules.

    At most :data:`WORK_GROUP`; where that is no divisor a condition guards the last work-group.
    """
    limited = replace(spec, max_work_group_size=min(WORK_GROUP, spec.max_work_group_size))
    if size is None:
        return limited.max_work_group_size
    # Small work-groups are for using all cores. With work for more, they cost what begins one.
    fewest = _SMALLEST if size >= 4 * _SMALLEST * max(spec.cores, 1) else 1
    return choose_work_group(Problem((max(size, 1), 1, 1)), limited, fewest).x
