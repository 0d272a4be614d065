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

from tvm_edge.schedules.accesses import constant
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
) -> tirx.PrimFunc:
    """One kernel that does what all of `members` do.

    Parameters
    ----------
    members : sequence of PrimFunc
        Scheduled kernels that do not read or write what another one writes; one may be there more
        than once. Behind ``phases.WORKSPACE``: loops that become launches are grids already.
    stages : sequence of sequence of int, optional
        For each member the stage of each of its launches, ascending: those of a stage are merged.
        By default, and where there are more launches than stages, one after the other from 0 on.
    outputs : sequence of int, optional
        How many of each member's last parameters it writes. By default its result and its
        workspace.

    Returns
    -------
    PrimFunc
        Its parameters are the inputs of member 0, those of member 1 and so on, then the outputs of
        member 0 (with its workspace, which is an output that nobody reads), those of member 1 and
        so on.

    Raises
    ------
    ValueError
        :func:`can_compose` has a reason against it, or there are not as many `stages` or `outputs`
        as members.
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
    fresh = [_renewed(func, number) for number, func in enumerate(members)]
    inputs: list[tirx.Buffer] = []
    results: list[tirx.Buffer] = []
    for func, count in zip(fresh, counts, strict=True):
        inputs += list(func.params)[: len(func.params) - count]
        results += list(func.params)[len(func.params) - count :]
    zero = tirx.IntImm("int32", 0)
    parts = [
        tirx.AttrStmt(zero, MEMBER, tirx.IntImm("int32", number), func.body)
        for number, func in enumerate(fresh)
    ]
    root = s_tir.SBlock([], [], [], "root", tirx.SeqStmt(parts))
    made = tirx.PrimFunc([*inputs, *results], s_tir.SBlockRealize([], True, root))
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
    """Why kernels cannot be members of one; empty if they can.

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
    found: set[int] = set()

    def visit(call: ir.Call) -> None:
        if is_pin(call):
            found.add(int(call.args[1]))

    tvm_ffi.structural_walk(stmt, (ir.Call, visit))
    return found


def is_pin(call: ir.Call) -> bool:
    """Whether a call is the mark of :func:`tvm_edge.schedules.gpu.subgroup_calls.pin`."""
    return bool(call.args) and isinstance(call.args[0], ir.StringImm) and call.args[0].value == PIN


def _results(members: Sequence[tirx.PrimFunc]) -> list[int]:
    return [1 + len(workspace_of(func)) for func in members]


def _target(func: tirx.PrimFunc) -> str:
    target = None if func.attrs is None else func.attrs.get("target")
    return "" if target is None else str(target)


def _renewed(func: tirx.PrimFunc, number: int) -> tirx.PrimFunc:
    """The same with variables of its own, and parameters whose names end in `number`."""
    made = s_tir.renew_defs(func)
    named = {param: tirx.Var(f"{param.name}_{number}", param.ty) for param in made.params}

    def rename(var: tirx.Var) -> tirx.Var:
        return named.get(var, var)

    body = tvm_ffi.structural_map(made.body, (tirx.Var, rename))
    return tirx.PrimFunc([named[param] for param in made.params], body)


def _common_attributes(members: Sequence[tirx.PrimFunc]) -> dict[str, object]:
    """Attributes in which all members agree."""
    kept = {}
    for key, value in members[0].attrs.items():
        others = [func.attrs.get(key) for func in members[1:]]
        if key not in _OWN and all(tvm_ffi.structural_equal(value, other) for other in others):
            kept[str(key)] = value
    return kept
