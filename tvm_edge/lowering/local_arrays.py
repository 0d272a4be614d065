"""Local memory that the members of a merged launch have in common.

A work-group is one member's: what the others would need is not needed in it. TVM allocates what
stands in different branches side by side, and fewer groups share a core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import tvm
import tvm_ffi
from tvm import ir, tirx

from tvm_edge.schedules.accesses import constant, uses

__all__ = ["common_bytes", "in_common", "is_movable"]

# GPUs access up to so many bytes at once, which have to begin at a multiple.
_ALIGNMENT = 16


def is_movable(array: tirx.Buffer, stmt: tirx.Stmt) -> bool:
    """Whether an array is of known size, and only loaded from and stored to by its name."""
    if constant(array.shape[0]) is None or len(array.shape) != 1:
        return False
    moved = _moved(_without_allocation(stmt, array), {array: (array_like(array), 0)})
    return not uses(moved, array)


def array_like(array: tirx.Buffer) -> tirx.Buffer:
    """Another array of the same kind."""
    return _array(array.name, str(array.dtype), int(array.shape[0]))


def common_bytes(members: Sequence[Sequence[tirx.Buffer]]) -> int:
    """Bytes of local memory in which each of several lists of arrays finds room."""
    return sum(count * _itemsize(dtype) for dtype, count in _counts(members).items())


def in_common(
    members: Sequence[tuple[Sequence[tirx.Buffer], tirx.Stmt]],
) -> tuple[list[tirx.Buffer], list[tirx.Stmt]]:
    """Arrays that hold those of any one member, and the members' statements with them.

    One for each type of elements: as large as the member that has most of it needs.

    Parameters
    ----------
    members : sequence of (sequence of Buffer, Stmt)
        Arrays, and the statement that uses them.
    """
    counts = _counts([arrays for arrays, _ in members])
    common = {
        dtype: _array(f"local_{dtype}", dtype, count) for dtype, count in sorted(counts.items())
    }
    stmts = []
    for arrays, stmt in members:
        places, _ = _laid_out(arrays)
        moves = {
            array: (common[str(array.dtype)], place)
            for array, place in zip(arrays, places, strict=True)
        }
        stmts.append(_moved(stmt, moves))
    return list(common.values()), stmts


def _array(name: str, dtype: str, count: int) -> tirx.Buffer:
    return tirx.decl_buffer([count], dtype, name, scope="shared", layout=None)


def _counts(members: Sequence[Sequence[tirx.Buffer]]) -> dict[str, int]:
    """Elements of each type that the greediest member needs."""
    most: dict[str, int] = {}
    for arrays in members:
        for dtype, count in _laid_out(arrays)[1].items():
            most[dtype] = max(most.get(dtype, 0), count)
    return most


def _laid_out(arrays: Sequence[tirx.Buffer]) -> tuple[list[int], dict[str, int]]:
    """Where arrays of one member begin among those of their type, and how many elements that is."""
    places: list[int] = []
    used: dict[str, int] = {}
    for array in arrays:
        dtype = str(array.dtype)
        unit = max(1, _ALIGNMENT // _itemsize(dtype))
        place = -(-used.get(dtype, 0) // unit) * unit
        places.append(place)
        used[dtype] = place + prod(int(size) for size in array.shape)
    return places, used


def _itemsize(dtype: str) -> int:
    return int(tvm.DataType(dtype).itemsize)


def _without_allocation(stmt: tirx.Stmt, array: tirx.Buffer) -> tirx.Stmt:
    nothing = tirx.Evaluate(tirx.const(0, "int32"))

    def allocate(node: tirx.AllocBuffer) -> tirx.Stmt:
        return nothing if node.buffer.same_as(array) else node

    return tvm_ffi.structural_map(stmt, (tirx.AllocBuffer, allocate))


def _moved(stmt: tirx.Stmt, moves: Mapping[tirx.Buffer, tuple[tirx.Buffer, int]]) -> tirx.Stmt:
    """A statement that finds arrays `n` elements behind the beginning of others."""

    def load(node: ir.TensorLoad) -> ir.TensorLoad:
        if node.source not in moves:
            return node
        array, place = moves[node.source]
        return tirx.BufferLoad(array, [_shifted(node.indices[0], place)])

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        if node.buffer not in moves:
            return node
        array, place = moves[node.buffer]
        return tirx.BufferStore(array, node.value, [_shifted(node.indices[0], place)])

    return tvm_ffi.structural_map(stmt, ((ir.TensorLoad, load), (tirx.BufferStore, store)))


def _shifted(index: tirx.Expr, by: int) -> tirx.Expr:
    if by == 0:
        return index
    if isinstance(index, tirx.Ramp):
        return tirx.Ramp(index.base + by, index.stride, index.lanes)
    lanes = tvm.DataType(str(index.ty.dtype)).lanes
    if lanes == 1:
        return index + by
    dtype = str(index.ty.dtype).split("x")[0]
    return index + tirx.Broadcast(tirx.const(by, dtype), lanes)
