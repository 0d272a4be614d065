"""How long launches take on a device, alone and merged into one: estimates, no measurement.

A core's work-groups share its arithmetic units, and wait for memory beside each other. So a launch
takes what the busiest core has to calculate, or the rounds of groups that wait one after the other,
or its bytes over the bandwidth, whichever is longest (as :mod:`.gpu.product_tile` counts for one
tile). A kernel that leaves cores or their registers empty has room for another one: that is what
merging gains, beside the launch ("theoretical occupancy of the mobile GPU", EMDL'21 §7).

What it costs: all groups of a merged launch have the registers and the local memory of the member
that wants most, so that fewer of them run on a core at the same time. They have its work-items,
too: some do nothing in groups whose items share local memory, and items of other members are dealt
to groups of that size (:func:`_dealt`).

And where they run. A kernel with a group for each core has a core for each group. With hundreds of
others beside them in one launch some cores have two of them, which share its units
(:func:`_stacked_us`), unless groups do several of the short ones
(:mod:`tvm_edge.schedules.group_loops`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.gpu.cycles import (
    ALUS,
    LATENCY,
    LATENCY_OF_LOAD,
    LOAD,
    PROLOGUE,
    REGISTERS,
    RESIDENT,
    STEP,
)
from tvm_edge.schedules.group_loops import group_loops, most_even_groups
from tvm_edge.schedules.launch_work import Launch

__all__ = ["apart_us", "can_be_even", "longest_us", "merged_us", "resident_groups", "spread_over"]

_CPU_LAUNCH_US = 5.0
"""To hand a parallel loop to the threads of TVM's pool and to wait for the last of them."""

# What kernels reach of a core's multiply-adds, and of its clock where nobody says it.
_SHARE = 0.5
_CLOCK_GHZ = 1.0

# Of a launch's cost, for each member beside the first: which member a group is of, arguments.
_OF_MEMBER = 0.3

# Of a group that does several, how many steps longer each takes than its own: it begins when the
# one before has ended.
_TURN = 1

# Of what a group calculates, how much longer each further one of its kind on the core makes it: one
# by itself reaches a part of what the units can do. Fitted to 59 merged launches on an H100
# (benchmarks/fusion/policy.py), as are the cost of a member and the next.
_SHARED = 0.3

# Of what a group calculates, for each work-item how much longer one that does nothing makes it: it
# has registers that another group could have, and comes to every barrier.
_IDLE = 0.15


def apart_us(kernels: Sequence[Sequence[Launch]], spec: DeviceSpec) -> float:
    """Microseconds of kernels that run one after the other.

    Parameters
    ----------
    kernels : sequence of sequence of Launch
        The launches of each.
    spec : DeviceSpec
    """
    return sum(_together_us([launch], spec) for kernel in kernels for launch in kernel)


def merged_us(kernels: Sequence[Sequence[Launch]], spec: DeviceSpec) -> float:
    """Microseconds of kernels whose first launches are one, whose second launches are one, …"""
    return sum(_together_us(launches, spec) for launches in _stages(kernels))


def spread_over(kernels: Sequence[Sequence[Launch]], spec: DeviceSpec) -> list[int]:
    """For each stage of merged kernels the cores that the launch's groups should be spread over.

    Returns
    -------
    list of int
        0: it has as many groups as its members, wherever these run.
    """
    return [spec.cores if _in_one(launches, spec)[1] else 0 for launches in _stages(kernels)]


def can_be_even(kernels: Sequence[Sequence[Launch]], spec: DeviceSpec) -> list[bool]:
    """For each stage of merged kernels whether the launch would wait for cores with two groups.

    And could have so few groups that they are spread evenly; it need not be faster then.
    """
    found = [_dealt(launches, spec) for launches in _stages(kernels)]
    return [
        _stacked_us(dealt, spec) > _spread_us(dealt, spec) and _few(dealt, spec) is not None
        for dealt in found
    ]


def _stages(kernels: Sequence[Sequence[Launch]]) -> list[list[Launch]]:
    """The first launches of kernels, their second launches, …"""
    count = max(len(kernel) for kernel in kernels)
    return [[kernel[i] for kernel in kernels if i < len(kernel)] for i in range(count)]


def longest_us(kernel: Sequence[Launch], spec: DeviceSpec) -> float:
    """Microseconds that the slowest of a kernel's work-groups calculates.

    Of kernels in one launch, those whose groups take longest should begin first: what a core has to
    do at the end should be short. A group that waits leaves the core to others.
    """
    return max((_busy_us(each, spec) for each in kernel), default=0.0)


def resident_groups(launches: Sequence[Launch], spec: DeviceSpec) -> int:
    """Work-groups that a core runs at the same time, where those of all `launches` are alike."""
    if spec.has_cpu_cores:
        return 1
    items = _whole_waves(max(launch.items for launch in launches), spec)
    registers = max(launch.registers for launch in launches)
    local = max(launch.local_bytes for launch in launches)
    limits = [(spec.registers or REGISTERS) // (items * registers), RESIDENT // items]
    if local and spec.local_memory_kind == "dedicated":
        limits.append(3 * spec.local_memory // local)  # of a core's, a group may use a third or so
    return max(min(limits), 1)


def _together_us(launches: Sequence[Launch], spec: DeviceSpec) -> float:
    """Microseconds of one launch with the groups of all."""
    return _in_one(launches, spec)[0]


def _in_one(launches: Sequence[Launch], spec: DeviceSpec) -> tuple[float, bool]:
    """Microseconds of one launch, and whether its groups should be as few as are spread evenly."""
    dealt = _dealt(launches, spec)
    launch_us = _CPU_LAUNCH_US if spec.has_cpu_cores else spec.launch_us
    overhead = launch_us * (1 + _OF_MEMBER * (len(launches) - 1))
    spread, stacked = _spread_us(dealt, spec), _stacked_us(dealt, spec)
    if stacked <= spread:
        return overhead + spread, False
    few = _few(dealt, spec)
    evenly = None if few is None else _spread_us(few, spec)
    if evenly is None or evenly >= stacked:
        return overhead + stacked, False
    return overhead + evenly, True


def _spread_us(launches: Sequence[Launch], spec: DeviceSpec) -> float:
    """Microseconds of launches whose groups are spread evenly over the cores."""
    cores = max(spec.cores, 1)
    groups = sum(launch.groups for launch in launches)
    if not groups:
        return 0.0
    busy = [_busy_us(launch, spec) for launch in launches]
    alone = [max(_waits_us(launch, spec), us) for launch, us in zip(launches, busy, strict=True)]
    counts = [launch.groups for launch in launches]
    calculated = _makespan(counts, busy, cores)
    waited = _makespan(counts, alone, cores * resident_groups(launches, spec))
    moved = sum(launch.nbytes for launch in launches)
    streamed = moved / spec.bandwidth_gbs / 1e3 if spec.bandwidth_gbs else 0.0
    return max(calculated, waited, streamed)


def _makespan(counts: Sequence[int], times: Sequence[float], places: int) -> float:
    """Until the last of some groups ends, the longest of which begin first.

    Short ones fill what the long ones leave.

    Parameters
    ----------
    counts : sequence of int
        Groups of each member.
    times : sequence of float
        How long one of each takes.
    places : int
        Where one runs at a time.
    """
    longest, count = max(zip(times, counts, strict=True))
    total = sum(time * count for time, count in zip(times, counts, strict=True))
    return max(longest * ceil(count / places), total / places)


def _stacked_us(launches: Sequence[Launch], spec: DeviceSpec) -> float:
    """Microseconds of a core whose groups are all of the member that calculates most.

    As many as run there at the same time. 0 for launches that have them spread over the cores:
    those of one member, of few groups, and a CPU's, whose cores take a group when they are free.
    """
    cores, groups = max(spec.cores, 1), sum(launch.groups for launch in launches)
    if spec.has_cpu_cores or len(launches) == 1 or groups <= most_even_groups(cores):
        return 0.0
    held = min(resident_groups(launches, spec), ceil(groups / cores))
    return max(
        _busy_us(launch, spec) * (1 + _SHARED * (min(held, launch.groups) - 1))
        for launch in launches
    )


def _dealt(launches: Sequence[Launch], spec: DeviceSpec) -> list[Launch]:
    """Launches with groups of the size that they have in one launch.

    As :mod:`tvm_edge.lowering.merge_launches` makes them: of the largest that has local memory.
    """
    bound = [launch for launch in launches if launch.local_bytes or launch.items == 1]
    if spec.has_cpu_cores or len(launches) == 1:
        return list(launches)
    size = max(launch.items for launch in bound or launches)
    found = []
    for launch in launches:
        if launch not in bound:
            groups = ceil(launch.groups * launch.items / size)
            flops = launch.flops * size / launch.items
            launch = replace(launch, groups=groups, items=size, flops=flops)
        elif launch.local_bytes:
            slower = 1 + _IDLE * (size / launch.items - 1)
            launch = replace(launch, flops=launch.flops * slower, loads=launch.loads * slower)
        found.append(launch)
    return found


def _few(launches: Sequence[Launch], spec: DeviceSpec) -> list[Launch] | None:
    """Launches of so few groups that they are spread evenly; ``None`` where they cannot be."""
    loops = group_loops([launch.groups for launch in launches], spec.cores)
    if loops is None:
        return None
    return [
        replace(
            launch,
            groups=ceil(launch.groups / count),
            flops=launch.flops * count,
            loads=launch.loads * count,
            steps=launch.steps * count + _TURN * (count - 1),
        )
        for launch, count in zip(launches, loops, strict=True)
    ]


def _whole_waves(items: int, spec: DeviceSpec) -> int:
    wave = max(spec.wave, 1)
    return -(-items // wave) * wave


def _lanes(spec: DeviceSpec) -> int:
    """Multiply-add lanes of a core."""
    if spec.has_cpu_cores:
        return 2 * spec.lanes()
    return spec.alus or ALUS


def _clock_ghz(spec: DeviceSpec) -> float:
    if not spec.peak_gflops:
        return _CLOCK_GHZ
    return spec.peak_gflops / (2 * _lanes(spec) * max(spec.cores, 1))


def _busy_us(launch: Launch, spec: DeviceSpec) -> float:
    """Microseconds of a core's units that a group takes."""
    cycles = launch.flops / (2 * _lanes(spec) * _SHARE)
    if not spec.has_cpu_cores:
        waves = _whole_waves(launch.items, spec) / max(spec.wave, 1)
        cycles += launch.steps * STEP + waves * launch.loads * LOAD
    return cycles / _clock_ghz(spec) / 1e3


def _waits_us(launch: Launch, spec: DeviceSpec) -> float:
    """Microseconds from a group's begin to its end if nothing else runs on the core."""
    if spec.has_cpu_cores:
        return 0.0
    cycles = PROLOGUE + launch.steps * LATENCY + launch.loads * LATENCY_OF_LOAD
    return cycles / _clock_ghz(spec) / 1e3
