"""Lengths that have to be equal, and that nobody can tell are: the host checks them in the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import relax, tirx

from tvm_edge.ops.elements import ensure, plain
from tvm_edge.relay_passes.ir.expressions import lengths_of

__all__ = ["BROADCAST", "joined", "with_common_lengths"]

BROADCAST = frozenset(
    """
    Add And BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max
    Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor
    """.split()
)
"""ONNX's operators whose operands broadcast to each other."""


def with_common_lengths(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr]) -> list[relax.Expr]:
    """Return operands that broadcast to each other, with equal expressions for equal lengths.

    Two lengths of the run are taken to be the same, none of them for a 1 that is repeated.
    """
    return _aligned(bb, inputs, None)


def joined(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], axis: int) -> list[relax.Expr]:
    """Return operands of a concatenation, with equal expressions for lengths of other axes."""
    return _aligned(bb, inputs, axis)


def _aligned(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], joint: int | None
) -> list[relax.Expr]:
    shapes = [lengths_of(value.ty) for value in inputs]
    if None in shapes or not any(isinstance(d, tirx.Expr) for shape in shapes for d in shape or ()):
        return list(inputs)
    made = [list(shape or ()) for shape in shapes]
    rank = max(map(len, made))
    for axis in range(rank):
        places = [(shape, axis - rank + len(shape)) for shape in made]
        if joint is not None and axis == joint % rank:
            continue
        found = [(s, i) for s, i in places if i >= 0 and not _is_one(s[i])]
        numbers = [s[i] for s, i in found if isinstance(s[i], int)]
        if joint is not None:
            found = [(s, i) for s, i in places if i >= 0]
        chosen = numbers[0] if numbers else (found[0][0][found[0][1]] if found else 1)
        for shape, i in found:
            if not _are_equal(shape[i], chosen):
                ensure(bb, tirx.EQ(_int64(shape[i]), _int64(chosen)))
            shape[i] = chosen
    return [
        value
        if all(_is_the_same(a, b) for a, b in zip(old or (), new, strict=True))
        else bb.emit(relax.op.reshape(value, new))
        for value, old, new in zip(inputs, shapes, made, strict=True)
    ]


def _is_one(length: Any) -> bool:
    return isinstance(length, int) and length == 1


def _are_equal(a: Any, b: Any) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return a is b or plain(tirx.EQ(_int64(a), _int64(b))) is True


def _int64(value: Any) -> tirx.Expr:
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def _is_the_same(a: Any, b: Any) -> bool:
    """Return whether two lengths are written alike, which needs no reshape to say so."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return bool(tvm_ffi.structural_equal(a, b))
