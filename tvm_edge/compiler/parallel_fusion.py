"""``parallel_fusion=``: independent kernels as one, and what the report says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import tvm

from tvm_edge.compiler.convolutions import TuningLogs
from tvm_edge.hardware import ResolvedTarget
from tvm_edge.records import SHIPPED, RecordDevice, RecordLibrary, stores_below, user_folder
from tvm_edge.relay_passes.fuse.parallel_fusion import Measured, ParallelFusion, fuse_parallel
from tvm_edge.report import KernelInfo
from tvm_edge.schedules.parallel_policy import UNKNOWN, Group, fuses_by_itself
from tvm_edge.schedules.parallel_records import OPERATOR, gain, group_workload

__all__ = ["describe_groups", "group_records", "merge_kernels", "merged_info"]

# Where a merged kernel's schedule came from: as the least certain of its members'.
_ORIGINS = ("fallback", "heuristic", "transferred", "tuned")

_NOTHING = "no two kernels of this model are independent of each other"


def merge_kernels(
    mod: tvm.IRModule,
    resolved: ResolvedTarget,
    parallel_fusion: str | bool,
    tuning_logs: TuningLogs = False,
) -> ParallelFusion:
    """Merge independent kernels, as far as `parallel_fusion` and the policy say so.

    Parameters
    ----------
    mod : IRModule
        Scheduled kernels.
    resolved : ResolvedTarget
    parallel_fusion : {"auto", True, False}
    tuning_logs : path, False or None
        Where ``"auto"`` looks for groups that were measured, as in ``compile``.
    """
    spec = resolved.spec
    if parallel_fusion is True:
        return fuse_parallel(mod, spec, resolved.target, every=True)
    if parallel_fusion == "auto":
        with group_records(resolved, tuning_logs) as measured:
            if measured is not None:
                found = fuse_parallel(mod, spec, resolved.target, measured=measured)
                # Of a device of which little is known only what was measured is of interest.
                told = [group for group in found.groups if group.reason != UNKNOWN]
                return replace(found, groups=told)
            if fuses_by_itself(spec):
                return fuse_parallel(mod, spec, resolved.target)
    return ParallelFusion(mod)


@contextmanager
def group_records(resolved: ResolvedTarget, tuning_logs: TuningLogs) -> Iterator[Measured | None]:
    """Yield a lookup of the records of kernels in one launch; ``None`` where there are none."""
    device = RecordDevice.of(resolved.spec)
    folder = None if isinstance(tuning_logs, bool) else user_folder(tuning_logs)
    if folder is None or not any(stores_below(f, device.vendor) for f in (folder, SHIPPED)):
        yield None
        return
    spec = resolved.spec
    with RecordLibrary(device, folder) as library:
        if not (library.may_have(OPERATOR) or fuses_by_itself(spec)):
            yield None  # or hundreds of groups would be looked up one by one
            return
        yield lambda members: gain(library.of_device(group_workload(members), resolved.kind), spec)


def merged_info(name: str, members: Sequence[KernelInfo]) -> KernelInfo:
    """Describe the kernel that `members` are merged to."""
    rules = ", ".join(member.rule for member in members)
    return KernelInfo(
        name,
        tuple(dict.fromkeys(operator for member in members for operator in member.operators)),
        members[0].device,
        min((member.origin for member in members), key=_ORIGINS.index),
        f"parallel: {rules}",
        sum(member.flops for member in members),
        sum(member.bytes for member in members),
        sum(member.weights for member in members),
        sum(member.results for member in members),
        sum(member.workspace for member in members),
        sum(member.streamed for member in members),
    )


def describe_groups(
    kernels: Mapping[int, KernelInfo], groups: Sequence[Group], parallel_fusion: str | bool
) -> tuple[dict[str, Any], ...]:
    """Describe each group that was considered, for the report.

    Parameters
    ----------
    kernels : mapping of int to KernelInfo
        Kernels that are not merged, by number.
    groups : sequence of Group
    parallel_fusion : {"auto", True, False}
    """
    if parallel_fusion is True and not groups:
        return (_entry((), Group((), False, _NOTHING, None, None)),)
    return tuple(_entry([kernels[member] for member in group.members], group) for group in groups)


def _entry(members: Sequence[KernelInfo], group: Group) -> dict[str, Any]:
    return {
        "operators": [operator for member in members for operator in member.operators],
        "kernels": [member.name for member in members],
        "taken": group.taken,
        "reason": group.reason,
        "apart_us": None if group.apart_us is None else round(group.apart_us, 3),
        "merged_us": None if group.merged_us is None else round(group.merged_us, 3),
    }
