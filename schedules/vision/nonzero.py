"""Positions of nonzero elements: their number first, then an index on every axis.

Between the two kernels the host allocates a result of exactly that size.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, each, function, hold, int64, register, spread, when
from tvm_edge.schedules.vision.compaction import Compaction

__all__ = ["count_nonzero", "nonzero_indices"]

Shape = Sequence[int | tirx.Expr]


def count_nonzero(shape: Shape, dtype: str, spec: DeviceSpec) -> Kernel:
    """Build the kernel that counts the nonzero elements, and prepares their search.

    Parameters
    ----------
    shape : sequence of int or Var
        At least one axis; constants, each at least 1, on a GPU.
    dtype : str
        Of any numbers, or "bool". NaN is not zero, -0 is.
    spec : DeviceSpec

    Returns
    -------
    Kernel
        ``(data, result_shape, found, workspace...)``: int64 ``[axes, number]``; on a GPU the flat
        positions, on a CPU the number before the part of each core.
    """
    on_gpu = spec.launches_grids
    size, parts = prod(shape), max(spec.cores, 1)
    plan = Compaction(1, int(size), spec) if on_gpu else None
    found_type = ([int(size)], "int32") if on_gpu else ([parts], "int64")

    def body(data: Any, result_shape: Any, found: Any, *space: Any) -> None:
        def total(number: tirx.Expr) -> None:
            result_shape[0] = tirx.const(len(shape), "int64")
            result_shape[1] = number.astype("int64")

        if plan is not None:

            def keep(_: tirx.Expr, at: tirx.Expr, slot: tirx.Expr) -> None:
                found[slot] = at.astype("int32")

            plan.write(
                lambda _, at: _is_nonzero(data[at], dtype),
                keep,
                None,
                lambda _, number: total(number),
                space,
            )
            return

        def count(part: tirx.Expr) -> None:
            first, last = _part(part, parts, size)
            number = register(tirx.const(0, "int64"))
            with T.serial(0, last - first) as i:
                number[0] = number[0] + _is_nonzero(data[first + i], dtype).astype("int64")
            found[part] = number[0]

        spread(tirx.const(parts, "int32"), int64(size), count)
        before = register(tirx.const(0, "int64"))
        with T.serial(0, parts) as part:
            own = hold(found[part])
            found[part] = before[0]
            before[0] = before[0] + own
        total(before[0])

    outputs = [([2], "int64"), found_type]
    return function([(shape, dtype)], [*outputs, *(plan.workspace if plan else [])], body)


def nonzero_indices(shape: Shape, dtype: str, spec: DeviceSpec) -> Kernel:
    """Build the kernel of the index on every axis of each nonzero element, in memory order.

    Parameters as of :func:`count_nonzero`.

    Returns
    -------
    Kernel
        ``(data, found, result)``, int64 ``(axes, number)``. As many work-items as there are
        elements: a launch cannot be as long as what is found, which may be nothing.
    """
    size, parts = prod(shape), max(spec.cores, 1)
    number = tirx.Var("number", "int64")
    on_gpu = spec.launches_grids

    def body(data: Any, found: Any, result: Any) -> None:
        def write(slot: tirx.Expr, position: tirx.Expr) -> None:
            rest = position.astype("int64")
            for axis in range(len(shape) - 1, 0, -1):
                length = int64(shape[axis])
                result[axis, slot] = tirx.floormod(rest, length)
                rest = hold(tirx.floordiv(rest, length))
            result[0, slot] = rest

        if on_gpu:

            def one(slot: tirx.Expr) -> None:
                with when(slot < number):
                    write(slot, hold(found[slot]))

            each(spec, int(size), one)
            return

        def part_of(part: tirx.Expr) -> None:
            first, last = _part(part, parts, size)
            slot = register(found[part])
            with T.serial(0, last - first) as i, when(_is_nonzero(data[first + i], dtype)):
                write(hold(slot[0]), first + i)
                slot[0] = slot[0] + 1

        spread(tirx.const(parts, "int32"), int64(size), part_of)

    found_type = ([int(size)], "int32") if on_gpu else ([parts], "int64")
    return function([(shape, dtype), found_type], [([len(shape), number], "int64")], body)


def _is_nonzero(value: tirx.Expr, dtype: str) -> tirx.Expr:
    if dtype == "bool":
        return value
    differs = value != tirx.const(0, dtype)
    # LLVM's comparison is the ordered one, by which NaN differs from nothing.
    return tirx.any(differs, tirx.isnan(value)) if dtype.startswith("float") else differs


def _part(part: tirx.Expr, parts: int, size: Any) -> tuple[tirx.Expr, tirx.Expr]:
    """Return the bounds of one of several equal parts."""
    wide, whole = part.astype("int64"), int64(size)
    return (
        hold(tirx.floordiv(whole * wide, parts)),
        hold(tirx.floordiv(whole * (wide + 1), parts)),
    )
