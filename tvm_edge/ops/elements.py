"""Elements of tensors that are known before the kernels run: shapes, axes, sizes, counts.

They are what an operator's form or the shape of its result depends on: numbers, or expressions of
lengths that only the run tells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, sym, te, tirx

from tvm_edge.ops.converter import Attributes, operand
from tvm_edge.relay_passes.ir.expressions import constant_of, is_call, static_shape

__all__ = [
    "OPAQUE",
    "Elements",
    "constants_in",
    "ensure",
    "integers",
    "length_tensor",
    "plain",
    "read_by_host",
]


OPAQUE = 8
"""Relax's OpPatternKind of kernels that are not fused with any."""


@dataclass(frozen=True)
class Elements:
    """Elements of a tensor that are known before its kernels run.

    Attributes
    ----------
    values : numpy.ndarray of object
        In the tensor's shape: Python numbers, or ``tirx`` expressions of lengths.
    dtype : str
        The tensor's type.
    """

    values: np.ndarray
    dtype: str

    @classmethod
    def of(cls, values: Any, dtype: str) -> Elements:
        """Make elements of lists or an array; expressions that are numbers become numbers."""
        array = np.empty(np.shape(np.asarray(values, dtype=object)), dtype=object)
        for index, value in np.ndenumerate(np.asarray(values, dtype=object)):
            array[index] = plain(value)
        return cls(array, dtype)

    @property
    def numbers(self) -> np.ndarray | None:
        """The values as an array of their type; ``None`` if one depends on the run."""
        if any(isinstance(value, tirx.Expr) for value in self.values.flat):
            return None
        return self.values.astype(self.dtype)


def plain(value: Any) -> Any:
    """Turn a constant expression into a Python number, and simplify others."""
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, tirx.Expr):
        return value
    value = sym.Analyzer().simplify(value)
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return bool(value.value) if str(value.ty.dtype) == "bool" else value.value
    return value


def integers(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes, index: int
) -> list[Any] | None:
    """Return the integers of an operand, in order: numbers, or expressions.

    What a kernel calculates is read by the host in the run, and is an expression of its own.

    Parameters
    ----------
    bb : relax.BlockBuilder
    inputs : sequence of relax.Expr
        Operands of a node.
    attrs : mapping
        Its attributes; ``elements`` has what is known of the operands.
    index : int
        Which operand.

    Returns
    -------
    list of (int or tirx.Expr) or None
        ``None`` where the operand is left out.

    Raises
    ------
    NotImplementedError
        Not even how many they are is known.
    """
    value = operand(inputs, index)
    if value is None:
        return None
    known = attrs["elements"][index] if index < len(attrs.get("elements", ())) else None
    if known is not None:
        return list(known.values.flat)
    constant = constant_of(value)
    if constant is not None:
        return [int(number) for number in constant.reshape(-1)]
    shape = static_shape(value.ty)
    if shape is None or len(shape) > 1:
        raise NotImplementedError("a shape of a rank that only the run tells")
    if str(value.ty.dtype) != "int64":
        value = bb.emit(relax.op.astype(value, "int64"))
    if not shape:
        value = bb.emit(relax.op.reshape(value, (1,)))
    constants = constants_in(bb, inputs, attrs, index)
    read = read_by_host(bb, value)
    return [var if number is None else number for var, number in zip(read, constants, strict=True)]


def constants_in(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes, index: int
) -> list[Any]:
    """Return the numbers of a vector, and ``None`` for each of its elements that is none.

    A vector that kernels calculate is often joined to constants: batch and channels of a size.

    Parameters
    ----------
    bb : relax.BlockBuilder
    inputs, attrs, index
        As for :func:`integers`; the operand has a known number of elements.
    """
    known = attrs["elements"][index] if index < len(attrs.get("elements", ())) else None
    if known is not None:
        return [None if isinstance(value, tirx.Expr) else value for value in known.values.flat]
    return _constants_of(bb, inputs[index])


def _constants_of(bb: relax.BlockBuilder, value: relax.Expr) -> list[Any]:
    constant = constant_of(value)
    if constant is not None:
        return list(constant.reshape(-1).tolist())
    bound = bb.lookup_binding(value) if isinstance(value, relax.Var) else None
    if is_call(bound, "relax.concat") and isinstance(bound.args[0], relax.Tuple):
        return [number for part in bound.args[0].fields for number in _constants_of(bb, part)]
    if is_call(bound, "relax.astype") and "int" in str(bound.ty.dtype):
        numbers = _constants_of(bb, bound.args[0])
        return [None if number is None else int(number) for number in numbers]
    return [None] * math.prod(static_shape(value.ty) or ())


def read_by_host(bb: relax.BlockBuilder, values: relax.Expr) -> list[tirx.Var]:
    """Make expressions of an int64 vector that kernels calculate: its elements in this run."""
    (count,) = static_shape(values.ty) or (0,)
    read = bb.emit(relax.op.tensor_to_shape(values))
    made = [tirx.Var(f"length{i}", "int64") for i in range(count)]
    bb.match_cast(read, relax.ShapeType(made))
    return made


def ensure(bb: relax.BlockBuilder, condition: Any) -> None:
    """End a run in which lengths do not fit each other, before a kernel leaves its tensors.

    Parameters
    ----------
    bb : relax.BlockBuilder
    condition : bool or tirx.Expr
        Of lengths; the host evaluates it.

    Raises
    ------
    ValueError
        It is known to be false.
    """
    condition = plain(condition)
    if isinstance(condition, tirx.Expr):
        holds = tirx.Select(condition, tirx.IntImm("int64", 1), tirx.IntImm("int64", 0))
        # Of a shape that is read: TVM's VMShapeLower takes no expression in a match_cast.
        read = bb.emit(relax.op.tensor_to_shape(length_tensor(bb, [holds], (1,), "int64")))
        bb.match_cast(read, relax.ShapeType([tirx.IntImm("int64", 1)]))
    elif not condition:
        raise ValueError("lengths do not fit each other")


def length_tensor(
    bb: relax.BlockBuilder, values: Sequence[Any], shape: Sequence[int], dtype: str
) -> relax.Expr:
    """Make a tensor of expressions: a kernel writes what the host has calculated.

    ``relax.op.shape_to_tensor`` would make it in the host's memory, wherever it is read.
    """

    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]

    def lengths(numbers: Sequence[tirx.Expr]) -> te.Tensor:
        def write(*index: Any) -> tirx.Expr:
            flat = sum(i * step for i, step in zip(index, steps, strict=True))
            made = numbers[-1]
            for i, number in reversed(list(enumerate(numbers[:-1]))):
                made = tirx.Select(flat == i, number, made)
            return made.astype(dtype)

        return te.compute(tuple(shape), write, name="lengths")

    # As arguments: a kernel knows no variables of the graph but those it is given. By itself:
    # FuseTIR takes no kernel that other kernels' lengths are arguments of.
    return bb.emit_te(
        lengths, [_int64(value) for value in values], primfunc_attrs={"op_pattern": OPAQUE}
    )


def _int64(value: Any) -> Any:
    if not isinstance(value, tirx.Expr):
        return tirx.IntImm("int64", int(value))
    return value if str(value.ty.dtype) == "int64" else value.astype("int64")
