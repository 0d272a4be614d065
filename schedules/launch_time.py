"""Latency estimates of launches on a device, alone and merged into one, without measurement.

A core's work-groups share its arithmetic units, and wait for memory beside each other. So the
latency of a launch is the longest of three times: the arithmetic of the busiest core, the rounds
of work-groups that wait one after the other, and its bytes over the bandwidth.
:mod:`.gpu.product_tile` counts the same for one tile. A kernel that leaves cores or their registers
empty leaves them to another one: that is what merging gains, beside the launch ("theoretical
occupancy of the mobile GPU", EMDL'21 §7).

Merging has a cost. All work-groups of a merged launch have the registers and the local memory of
the member that wants most, so that fewer of them run on a core at the same time. They have its
work-items, too. In work-groups whose work-items share local memory some do nothing. Work-items of
other members are dealt to work-groups of that size (:func:`_dealt`).

The cores they run on change as well. A kernel with a work-group for each core has a core for each
work-group. With hundreds of others in the same launch some cores have two of them, which share its
units (:func:`_stacked_us`). Loops over several of the short work-groups prevent that
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

# Of a launch's cost, for each member beside the first: which member a work-group is of, arguments.
_OF_MEMBER = 0.3

# Of a work-group that does several, how many steps longer each lasts than its own: it begins when
# the one before has ended.
_TURN = 1

# Of a work-group's arithmetic, how much longer each further one of its kind on the core makes it:
# one by itself reaches a part of what the units can do. Fitted to 59 merged launches on an H100
# (benchmarks/fusion/policy.py), as are the cost of a member and the next.
_SHARED = 0.3

# Of a work-group's arithmetic, for each work-item how much longer one that does nothing makes it:
# it has registers that another work-group could have, and comes to every barrier.
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
    """For each stage of merged kernels the cores to spread the launch's work-groups over.

    Returns
    -------
    list of int
        0: it has as many work-groups as its members, wherever these run.
    """
    return [spec.cores if _in_one(launches, spec)[1] else 0 for launches in _stages(kernels)]


def can_be_even(kernels: Sequence[Sequence[Launch]], spec: DeviceSpec) -> list[bool]:
    """For each stage of merged kernels whether its work-groups could be spread evenly, and are not.

    Such a launch would wait for cores with two work-groups, and could have so few that they are
    spread evenly. It need not be faster then.
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

    Of kernels in one launch, those with the longest work-groups should begin first: what a core has
    to do at the end should be short. A work-group that waits leaves the core to others.
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
        limits.append(3 * spec.local_memory // local)  # of a core's, one may use a third or so
    return max(min(limits), 1)


def _together_us(launches: Sequence[Launch], spec: DeviceSpec) -> float:
    """Microseconds of one launch with the work-groups of all."""
    return _in_one(launches, spec)[0]


def _in_one(launches: Sequence[Launch], spec: DeviceSpec) -> tuple[float, bool]:
    """Microseconds of one launch, and whether to reduce its work-groups to spread them evenly."""
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
    """Microseconds of launches whose work-groups are spread evenly over the cores."""
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
    """Time until the last of some work-groups ends; the longest begin first.

    Short ones fill what the long ones leave.

    Parameters
    ----------
    counts : sequence of int
        Work-groups of each member.
    times : sequence of float
        Time of one of each.
    places : int
        Where one runs at a time.
    """
    longest, count = max(zip(times, counts, strict=True))
    total = sum(time * count for time, count in zip(times, counts, strict=True))
    return max(longest * ceil(count / places), total / places)


def _stacked_us(launches: Sequence[Launch], spec: DeviceSpec) -> float:
    """Microseconds of a core whose work-groups are all of the member that calculates most.

    As many as run there at the same time. 0 for launches that have them spread over the cores:
    those of one member, of few work-groups, and a CPU's, whose cores take one when they are free.
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
    """Launches with work-groups of the size that they have in one launch.

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
    """Launches of so few work-groups that they are spread evenly; ``None`` where impossible."""
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
    """Microseconds for which a work-group occupies a core's units."""
    cycles = launch.flops / (2 * _lanes(spec) * _SHARE)
    if not spec.has_cpu_cores:
        waves = _whole_waves(launch.items, spec) / max(spec.wave, 1)
        cycles += launch.steps * STEP + waves * launch.loads * LOAD
    return cycles / _clock_ghz(spec) / 1e3


def _waits_us(launch: Launch, spec: DeviceSpec) -> float:
    """Microseconds from a work-group's begin to its end if nothing else runs on the core."""
    if spec.has_cpu_cores:
        return 0.0
    cycles = PROLOGUE + launch.steps * LATENCY + launch.loads * LATENCY_OF_LOAD
    return cycles / _clock_ghz(spec) / 1e3
