"""Four 8-bit numbers in one int32, and the sum of their products with four others.

GPUs have an instruction for that sum (:mod:`tvm_edge.schedules.gpu.dot_products`). Definitions of
kernels say :func:`dot`, and rules see a product of two words, as they see one of two floats.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import ir, tirx
from tvm.s_tir import SBlock
from tvm.s_tir.dlight.analysis.gemv import get_reduction_expr

from tvm_edge.schedules.accesses import nodes_in

__all__ = [
    "WORD",
    "as_byte",
    "column",
    "column_operands",
    "dot",
    "dot_operands",
    "factors_of",
    "loads_of",
    "packed",
    "word",
    "word_of_one",
]

WORD = 4
"""Numbers in a word."""

_DOT, _COLUMN = "tvm_edge_dot", "tvm_edge_column"
_EXTERN = ir.Op.get("tirx.call_pure_extern")


def dot(weights: tirx.Expr, data: tirx.Expr) -> tirx.Expr:
    """The sum of the products of the numbers of two words, in int32.

    `weights` are signed; what `data` are is the device's choice.
    """
    return tirx.call_pure_extern("int32", _DOT, weights, data)


def dot_operands(expr: object) -> tuple[tirx.Expr, tirx.Expr] | None:
    """Weights and data of a :func:`dot`; ``None`` of all else."""
    if not isinstance(expr, ir.Call) or not expr.op.same_as(_EXTERN):
        return None
    name, *operands = expr.args
    if not isinstance(name, ir.StringImm) or name.value != _DOT:
        return None
    weights, data = operands
    return weights, data


def factors_of(block: SBlock) -> tuple[tirx.Expr, tirx.Expr] | None:
    """The two factors whose products a block sums, words among them; ``None`` of all else."""
    term = get_reduction_expr(block)
    return (term.a, term.b) if isinstance(term, tirx.Mul) else dot_operands(term)


def column(words: Sequence[tirx.Expr], place: int) -> tirx.Expr:
    """The numbers at one place of four words, as a word: a column of four by four numbers."""
    return tirx.call_pure_extern("int32", _COLUMN, *words, place)


def column_operands(expr: object) -> tuple[list[tirx.Expr], int] | None:
    """Words and place of a :func:`column`; ``None`` of all else."""
    if not isinstance(expr, ir.Call) or not expr.op.same_as(_EXTERN):
        return None
    name, *words, place = expr.args
    if not isinstance(name, ir.StringImm) or name.value != _COLUMN:
        return None
    return words, int(place)


def word(numbers: Sequence[tirx.Expr]) -> tirx.Expr:
    """Four 8-bit numbers as a word, the first in its lowest bits."""
    parts = [tirx.Cast("int32", number) for number in numbers]
    first, *rest = (part & 255 for part in parts[:-1])
    shifted = [part << (8 * (i + 1)) for i, part in enumerate(rest)]
    whole = first
    for part in (*shifted, parts[-1] << 24):
        whole = whole | part
    return whole


def loads_of(value: tirx.Expr) -> list[ir.TensorLoad] | None:
    """The loads of 8-bit numbers that a :func:`word` is made of; ``None`` of all else."""
    found = nodes_in(value, ir.TensorLoad)
    are_bytes = all(str(load.ty.dtype) in ("int8", "uint8") for load in found)
    return found if len(found) == WORD and are_bytes else None


def word_of_one(number: int) -> tirx.IntImm:
    """The word whose numbers are all the same."""
    return tirx.const(int(np.full(WORD, number & 255, "uint8").view("int32")[0]), "int32")


def packed(numbers: np.ndarray) -> np.ndarray:
    """Neighbours on axis 1 as words, filled up with zeros.

    Parameters
    ----------
    numbers : np.ndarray
        Of int8; axis 1 is a quarter as long in the result, which is of int32.
    """
    last = np.moveaxis(numbers, 1, -1)
    fill = -last.shape[-1] % WORD
    whole = np.pad(last, [(0, 0)] * (last.ndim - 1) + [(0, fill)])
    words = np.ascontiguousarray(whole).view("<i4").astype("int32")
    return np.ascontiguousarray(np.moveaxis(words, -1, 1))


def as_byte(value: tirx.Expr) -> tirx.Expr | None:
    """The 8-bit number that an int32 is; ``None`` where it is something else."""
    if not isinstance(value, tirx.Cast) or str(value.value.ty.dtype) not in ("int8", "uint8"):
        return None
    return value.value
