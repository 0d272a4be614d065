"""Workspace between the launches of one kernel: the caller's memory, not the kernel's.

A kernel that allocates cannot be recorded with those around it. The memory planner, which would
share the workspace between kernels, does not see it.
"""

from __future__ import annotations

from tvm import s_tir, tirx

from tvm_edge.schedules.base import WORKSPACE, workspace_of

__all__ = ["workspace_outside"]


def workspace_outside(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make a scheduled kernel's global buffers parameters after its results.

    Softmax has three, between its maxima, exponentials, sums and quotients.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    root = func.body.block
    own = [buffer for buffer in root.alloc_buffers if _is_workspace(buffer)]
    if not own:
        return func
    kept = [buffer for buffer in root.alloc_buffers if not _is_workspace(buffer)]
    block = s_tir.SBlock(
        [], [], [], root.name_hint, root.body, alloc_buffers=kept, annotations=root.annotations
    )
    made = tirx.PrimFunc([*func.params, *own], s_tir.SBlockRealize([], True, block))
    count = len(workspace_of(func)) + len(own)
    return made.with_attrs(func.attrs).with_attr(WORKSPACE, count)


def _is_workspace(buffer: tirx.Buffer) -> bool:
    return bool(buffer.scope() == "global")
