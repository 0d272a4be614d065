"""Local memory that the members of a merged launch have in common.

A work-group is one member's: what the others would need is not needed in it. TVM allocates what
stands in different branches side by side, and fewer groups share a core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
import tvm_ffi
from tvm import ir, tirx

from tvm_edge.schedules.accesses import constant
from tvm_edge.schedules.grid import sequence

__all__ = ["common_bytes", "in_common", "is_movable"]

# GPUs access up to so many bytes at once, which have to begin at a multiple.
_ALIGNMENT = 16


def is_movable(array: tirx.Buffer, stmt: tirx.Stmt) -> bool:
    """Return whether an array has a known size, and is only loaded from and stored to by name."""
    if len(array.shape) != 1 or constant(array.shape[0]) is None:
        return False
    others = 0  # mentions that are no accesses
    of_vectors = False

    def access(buffer: tirx.Buffer, index: tirx.Expr) -> None:
        nonlocal others, of_vectors
        if buffer.same_as(array):
            others -= 1
            of_vectors |= _lanes(index.ty.dtype) > 1

    def load(node: ir.TensorLoad) -> None:
        access(node.source, node.indices[0])

    def store(node: tirx.BufferStore) -> None:
        access(node.buffer, node.indices[0])

    def mention(node: tirx.Var) -> None:
        nonlocal others
        others += node.same_as(array)

    tvm_ffi.structural_walk(
        stmt, ((ir.TensorLoad, load), (tirx.BufferStore, store), (tirx.Var, mention))
    )
    # It is allocated once; a vector of vectors has no index among their elements.
    return others == 1 and not (of_vectors and _lanes(array.dtype) > 1)


def common_bytes(members: Sequence[Sequence[tirx.Buffer]]) -> int:
    """Return the bytes of local memory that hold any one of several lists of arrays."""
    return max(_laid_out(arrays)[1] for arrays in members)


def in_common(
    members: Sequence[tuple[Sequence[tirx.Buffer], tirx.Stmt]],
) -> tuple[tirx.Stmt | None, list[tirx.Stmt]]:
    """An array that holds those of any one member, and the members' statements with it.

    It is as large as the member needs that needs most, and of the type that most of that memory is
    used as; it has a name for each of the others. Arrays of vectors, which TVM makes of those that
    are accessed by vectors alone, are arrays of their elements again.

    Parameters
    ----------
    members : sequence of (sequence of Buffer, Stmt)
        Arrays, and the statement that uses them.

    Returns
    -------
    Stmt or None
        What allocates the array; ``None`` where no member has any.
    """
    used: dict[str, int] = {}
    for arrays, _ in members:
        for array in arrays:
            used[_element(array)] = used.get(_element(array), 0) + _nbytes(array)
    if not used:
        return None, [stmt for _, stmt in members]
    nbytes = common_bytes([arrays for arrays, _ in members])
    names = {
        dtype: tirx.decl_buffer(
            [-(-nbytes // _itemsize(dtype))], dtype, f"local_{dtype}", scope="shared", layout=None
        )
        for dtype in sorted(used)
    }
    main = names[max(sorted(used), key=lambda dtype: used[dtype])]
    stmts = []
    for arrays, stmt in members:
        moves = {
            array: (names[_element(array)], place // _itemsize(_element(array)))
            for array, place in zip(arrays, _laid_out(arrays)[0], strict=True)
        }
        others = [
            tirx.DeclBuffer(name, data=main.data)
            for dtype, name in names.items()
            if name is not main and dtype in map(_element, arrays)
        ]
        stmts.append(sequence([*others, _moved(stmt, moves)]))
    return tirx.AllocBuffer(main), stmts


def _laid_out(arrays: Sequence[tirx.Buffer]) -> tuple[list[int], int]:
    """The byte that each array of a member begins at, and where the last one ends."""
    places: list[int] = []
    end = 0
    for array in arrays:
        places.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = places[-1] + _nbytes(array)
    return places, end


def _nbytes(array: tirx.Buffer) -> int:
    return int(array.shape[0]) * _lanes(array.dtype) * _itemsize(_element(array))


def _element(array: tirx.Buffer) -> str:
    return str(array.dtype).split("x")[0]


def _lanes(dtype: object) -> int:
    return int(tvm.DataType(str(dtype)).lanes)


def _itemsize(dtype: str) -> int:
    return int(tvm.DataType(dtype).itemsize)


def _moved(stmt: tirx.Stmt, moves: Mapping[tirx.Buffer, tuple[tirx.Buffer, int]]) -> tirx.Stmt:
    """Return a statement that finds arrays `n` elements after the beginning of others."""

    def load(node: ir.TensorLoad) -> ir.TensorLoad:
        if node.source not in moves:
            return node
        array, place = moves[node.source]
        return tirx.BufferLoad(array, [_moved_index(node.indices[0], node.source, place)])

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        if node.buffer not in moves:
            return node
        array, place = moves[node.buffer]
        index = _moved_index(node.indices[0], node.buffer, place)
        return tirx.BufferStore(array, node.value, [index])

    return tvm_ffi.structural_map(stmt, ((ir.TensorLoad, load), (tirx.BufferStore, store)))


def _moved_index(index: tirx.Expr, array: tirx.Buffer, place: int) -> tirx.Expr:
    """Find the element, or the vector, `index` of an array in the common one."""
    width = _lanes(array.dtype)
    if width > 1:
        return tirx.Ramp(index * width + place, tirx.const(1, str(index.ty.dtype)), width)
    if isinstance(index, tirx.Ramp):
        return tirx.Ramp(index.base + place, index.stride, index.lanes)
    lanes = _lanes(index.ty.dtype)
    if lanes == 1:
        return index + place
    element = str(index.ty.dtype).split("x")[0]
    return index + tirx.Broadcast(tirx.const(place, element), lanes)
