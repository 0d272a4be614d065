"""Kernels that do not depend on each other as one: *members* of a composed kernel.

What a composed kernel does is what its members do, one after the other. It is marked so that the
passes :mod:`tvm_edge.lowering.merge_launches` (GPUs) and :mod:`tvm_edge.lowering.merge_loops`
(CPUs) can have them run at the same time: "ParallelFusion: Towards Maximum Utilization of Mobile
GPU for DNN Inference" (EMDL'21, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_edge.schedules.accesses import constant, nodes_in
from tvm_edge.schedules.base import WORKSPACE, workspace_of
from tvm_edge.schedules.gpu.subgroup_calls import PIN
from tvm_edge.schedules.grid import GRID

__all__ = [
    "MEMBER",
    "MOST_ARGUMENTS",
    "PARALLEL",
    "can_compose",
    "compose",
    "is_pin",
    "pinned_sub_groups",
]

PARALLEL = "tvm_edge.parallel"
"""Attribute of a composed kernel: for each member the stages of its launches, see `compose`."""

MEMBER = "tvm_edge.member"
"""Key of the attribute statement around what a member does; its value is the member's number."""

MOST_ARGUMENTS = 128
"""Tensors that a launch may name: OpenCL promises 1024 bytes of arguments, CUDA 4096."""

# Relax's OpPatternKind: not to be fused with anything.
_OPAQUE = 8

# What is said of one kernel and not of several.
_OWN = ("global_symbol", "op_pattern", WORKSPACE)


def compose(
    members: Sequence[tirx.PrimFunc],
    stages: Sequence[Sequence[int]] | None = None,
    *,
    outputs: Sequence[int] | None = None,
    results: Sequence[int] | None = None,
) -> tirx.PrimFunc:
    """One kernel that does what all of `members` do.

    Parameters
    ----------
    members : sequence of PrimFunc
        Scheduled kernels that do not read or write what another one writes; one may be there more
        than once. After ``LaunchGrids``: loops that become launches are grids already.
    stages : sequence of sequence of int, optional
        For each member the stage of each of its launches, ascending: those of a stage are merged.
        By default, and where there are more launches than stages, one after the other from 0 on.
    outputs : sequence of int, optional
        How many of each member's last parameters it writes. By default its result and its
        workspace.
    results : sequence of int, optional
        For each output of each member, in order, which result of the kernel it is: from 0 on, and
        the same for those that are parts of one tensor. By default each is one by itself.

    Returns
    -------
    PrimFunc
        Its parameters are the inputs of member 0, those of member 1 and so on, then its results: by
        default the outputs of member 0 (with its workspace, which is an output that nobody reads),
        those of member 1 and so on.

    Raises
    ------
    ValueError
        :func:`can_compose` has a reason against it, there are not as many `stages` or `outputs`
        as members, or not as many `results` as outputs.
    """
    if reason := can_compose(members):
        raise ValueError(f"kernels cannot be composed: {reason}")
    order = [[] for _ in members] if stages is None else [list(own) for own in stages]
    counts = _results(members) if outputs is None else list(outputs)
    if len(order) != len(members) or len(counts) != len(members):
        raise ValueError(
            f"{len(members)} members with {len(order)} stages and {len(counts)} outputs; "
            "give one of each for every member"
        )
    for own in order:
        if any(after <= before for before, after in zip([-1, *own], own, strict=False)):
            raise ValueError(f"stages {own} do not ascend from 0; a launch follows those before it")
    places = list(range(sum(counts))) if results is None else list(results)
    if len(places) != sum(counts):
        raise ValueError(
            f"{len(places)} results of members with {sum(counts)} outputs; give the place of each"
        )
    inputs: list[tirx.Var] = []
    written: dict[int, tirx.Var] = {}
    parts: list[tirx.Stmt] = []
    outputs_left = iter(places)
    for number, (func, count) in enumerate(zip(_apart(members), counts, strict=True)):
        own = [tirx.Var(f"{param.name}_{number}", param.ty) for param in func.params]
        read = len(own) - count
        inputs += own[:read]
        for i in range(read, len(own)):
            own[i] = written.setdefault(next(outputs_left), own[i])
        parts.append(_part(number, func, own))
    root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt(parts))
    params = [*inputs, *(written[place] for place in sorted(written))]
    made = tirx.PrimFunc(params, s_tir.SBlockRealize([], True, root))
    attrs = {
        **_common_attributes(members),
        "tirx.is_scheduled": True,
        "op_pattern": _OPAQUE,
        PARALLEL: order,
    }
    if any(func.attrs.get(GRID, False) for func in members if func.attrs is not None):
        attrs[GRID] = True
    return made.with_attrs(attrs)


def can_compose(members: Sequence[tirx.PrimFunc]) -> str:
    """Say why kernels cannot be members of one; empty if they can.

    That they can says nothing of whether it pays. Launches that would exceed a limit of the device
    together are not merged.
    """
    if len(members) < 2:
        return "there are fewer than two"
    for number, func in enumerate(members):
        if func.attrs is not None and PARALLEL in func.attrs:
            return f"kernel {number} is composed already"
        for param in func.params:
            if not isinstance(param.ty, tirx.BufferType):
                return f"parameter {param.name} of kernel {number} is no tensor"
            if any(constant(dim) is None for dim in param.shape):
                return f"parameter {param.name} of kernel {number} has a symbolic shape"
            if param.scope() != "global":
                return f"parameter {param.name} of kernel {number} is in {param.scope()} memory"
    if len({_target(func) for func in members}) > 1:
        return "they are for different devices"
    sizes = set().union(*(pinned_sub_groups(func.body) for func in members))
    if len(sizes) > 1:
        return f"they require sub-groups of {' and of '.join(map(str, sorted(sizes)))}"
    count = sum(len(func.params) for func in members)
    if count > MOST_ARGUMENTS:
        return f"together they have {count} tensors, and a launch takes {MOST_ARGUMENTS}"
    return ""


def pinned_sub_groups(stmt: tirx.Stmt) -> set[int]:
    """The sizes of sub-groups that a statement requires."""
    return {int(node.value.args[1]) for node in nodes_in(stmt, tirx.Evaluate) if is_pin(node)}


def is_pin(node: tirx.Evaluate) -> bool:
    """Return whether a statement is a ``pin`` of :mod:`tvm_edge.schedules.gpu.subgroup_calls`."""
    call = node.value
    if not isinstance(call, ir.Call) or not call.args:
        return False
    return isinstance(call.args[0], ir.StringImm) and call.args[0].value == PIN


def _results(members: Sequence[tirx.PrimFunc]) -> list[int]:
    return [1 + len(workspace_of(func)) for func in members]


def _target(func: tirx.PrimFunc) -> str:
    target = None if func.attrs is None else func.attrs.get("target")
    return "" if target is None else str(target)


def _apart(members: Sequence[tirx.PrimFunc]) -> list[tirx.PrimFunc]:
    """Members that have no variable in common: of those that are there again, copies."""
    found: set[tirx.PrimFunc] = set()
    made = []
    for func in members:
        made.append(s_tir.renew_defs(func) if func in found else func)
        found.add(func)
    return made


def _part(number: int, func: tirx.PrimFunc, given: Sequence[tirx.Var]) -> tirx.Stmt:
    """Return the body of a member on the parameters that it is given.

    Its own are names for them. Its body is what it was: nothing is copied, however many kernels it
    is a member of.
    """
    names = [
        tirx.DeclBuffer(param, data=var.data) for param, var in zip(func.params, given, strict=True)
    ]
    body = tirx.SeqStmt([*names, func.body])
    return tirx.AttrStmt(tirx.IntImm("int32", 0), MEMBER, tirx.IntImm("int32", number), body)


def _common_attributes(members: Sequence[tirx.PrimFunc]) -> dict[str, object]:
    """Attributes in which all members agree."""
    kept = {}
    for key, value in members[0].attrs.items():
        others = [func.attrs.get(key) for func in members[1:]]
        if key not in _OWN and all(tvm_ffi.structural_equal(value, other) for other in others):
            kept[str(key)] = value
    return kept
