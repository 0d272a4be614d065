"""Loops over the taps of a window, without those that add nothing to a register tile.

:mod:`tvm_edge.schedules.taps` says which these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import tvm_ffi
from tvm import s_tir, sym, tirx

from tvm_edge.schedules.accesses import constant, uses
from tvm_edge.schedules.cpu.retile import mapped, with_body, with_root
from tvm_edge.schedules.taps import CHANNELS, PHASES, REACH, Reach, read_reaches

__all__ = ["skip_taps"]

_LINES, _TAPS = 2, 6  # axes of a blocked convolution; columns follow
_BLOCK, _CHANNEL = -4, -1  # of the image; lines and columns may be one axis


def skip_taps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Skip taps in blocks that say so.

    Parameters
    ----------
    func : PrimFunc
        Scheduled: a loop over taps has nothing in it but the rest of a reduction.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    conditions: list[tuple[tirx.Var, tirx.Expr]] = []

    def realize(node: s_tir.SBlockRealize, loops: tuple[tirx.For, ...]) -> tirx.Stmt:
        conditions.extend(_conditions(node, loops))
        return node

    def change(loop: tirx.For) -> tirx.Stmt:
        for var, condition in conditions:
            if var.same_as(loop.loop_var):
                loop = with_body(loop, tirx.IfThenElse(condition, loop.body, None))
        return loop

    body = mapped(func.body.block.body, (), realize, change)
    if not conditions:
        return func
    return with_root(func, body)


def _conditions(
    node: s_tir.SBlockRealize, loops: Sequence[tirx.For]
) -> Iterator[tuple[tirx.Var, tirx.Expr]]:
    """Yield loops over taps, and when they have something to do."""
    annotations, kinds = node.block.annotations, [var.iter_type for var in node.block.iter_vars]
    # The rest of a function says nothing, and the initialisation has nothing to reduce.
    if tirx.IterVar.CommReduce not in kinds[_CHANNEL:]:
        return
    if any(constant(loop.extent) is None for loop in loops):
        return  # of a condition on 64-bit loops TVM narrows one side to 32 bits
    if CHANNELS in annotations:
        yield from _there(node, loops, int(annotations[CHANNELS]))
    if not (REACH in annotations or PHASES in annotations):
        return
    for axis in (0, 1):
        tap = node.iter_values[_TAPS + axis]
        around = [loop for loop in loops if uses(tap, loop.loop_var)]
        if not around:
            continue  # a single tap
        if REACH in annotations:
            inside = loops[loops.index(around[-1]) + 1 :]
            found = _reached(node, axis, read_reaches(str(annotations[REACH]))[axis], inside)
        else:
            found = _in_phase(node, axis, list(map(int, str(annotations[PHASES]).split())))
        if constant(found) != 1:
            yield around[-1].loop_var, found


def _there(
    node: s_tir.SBlockRealize, loops: Sequence[tirx.For], channels: int
) -> Iterator[tuple[tirx.Var, tirx.Expr]]:
    """Yield the innermost loop over channels of the image, and when it has some."""
    inside = node.iter_values[_CHANNEL]
    block = constant(node.block.iter_vars[_CHANNEL].dom.extent) or 1
    first = node.iter_values[_BLOCK] * block + inside
    around = [loop for loop in loops if loop.kind == tirx.ForKind.SERIAL]
    around = [loop for loop in around if uses(inside, loop.loop_var)]
    if around:
        within = loops[loops.index(around[-1]) + 1 :]
        begins = {loop.loop_var: tirx.const(0, loop.loop_var.ty.dtype) for loop in within}
        yield around[-1].loop_var, sym.Analyzer().simplify(_with(first, begins) < channels)


def _reached(
    node: s_tir.SBlockRealize, axis: int, reach: Reach, inside: Sequence[tirx.For]
) -> tirx.Expr:
    """Return whether a tap is in the image for a pixel of the tile that loops `inside` go over."""
    written = node.block.writes[0].source
    images = (r.source for r in node.block.reads if len(r.source.shape) == len(written.shape))
    image = next(each for each in images if not each.same_as(written))
    pixel, tap = node.iter_values[_LINES + axis], node.iter_values[_TAPS + axis]
    at = pixel * reach.stride + tap * reach.dilation - reach.padding
    length = image.shape[_LINES + axis] - (reach.before + reach.after)
    ends = {loop.loop_var: loop.extent - 1 for loop in inside}
    begins = {loop.loop_var: tirx.const(0, loop.loop_var.ty.dtype) for loop in inside}
    analyzer = sym.Analyzer()
    return analyzer.simplify(tirx.And(_with(at, ends) >= 0, _with(at, begins) < length))


def _in_phase(node: s_tir.SBlockRealize, axis: int, numbers: Sequence[int]) -> tirx.Expr:
    """Return whether a phase of a transposed convolution has a tap: only the first may lack."""
    number, tap = node.iter_values[0], node.iter_values[_TAPS + axis]
    phase = number if axis else tirx.floordiv(number, numbers[3])
    stride, padding, taps = numbers[3 * axis : 3 * axis + 3]
    has_all = tirx.floormod(phase + padding, stride) < (taps - 1) % stride + 1
    return sym.Analyzer().simplify(tirx.Or(tap >= 1, has_all))


def _with(expr: tirx.Expr, by: Mapping[tirx.Var, tirx.Expr]) -> tirx.Expr:
    def value(var: tirx.Var) -> tirx.Expr:
        return next((new for old, new in by.items() if var.same_as(old)), var)

    return tvm_ffi.structural_map(expr, (tirx.Var, value))
