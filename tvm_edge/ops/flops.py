"""Counts of arithmetic operations, from shapes alone.

The count is that of the literature: of the operator's definition, not of an implementation. A
multiply-add counts as two, which covers a bias: ``k`` products, ``k - 1`` additions and the bias
are ``2 k``. Products with padding count, as in published figures. An element-wise function counts
as one per element, whichever it is; a comparison counts as one; moving data counts nothing.

An operator whose work depends on data (sorting, suppression, loops) has no formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Formula",
    "Operation",
    "Shape",
    "UnknownShape",
    "convolution_flops",
    "count",
    "elements",
    "elementwise",
    "known",
    "no_flops",
    "per_element",
]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Operation:
    """Operands, results and attributes that the cost of an operator depends on.

    Attributes
    ----------
    inputs, outputs : sequence of (tuple of int or None)
        Shapes; ``None`` for one that is left out or not known before the run.
    attributes : mapping of str to value
        An ONNX node's, or those of a Relax call.
    """

    inputs: Sequence[Shape | None]
    outputs: Sequence[Shape | None]
    attributes: Any = field(default_factory=dict)


Formula = Callable[[Operation], int]
"""Count the operations of one run; raise :class:`UnknownShape` where a shape is missing."""


class UnknownShape(Exception):
    """A shape that the count needs is not known."""


def count(formula: Formula | None, operation: Operation) -> int | None:
    """Count by a formula; ``None`` without one, or where a shape that decides is not known."""
    if formula is None:
        return None
    try:
        return formula(operation)
    except UnknownShape:
        return None
    # What ONNX's checker lets pass is for the importer to refuse; here it only has no count.
    # A kernel called by the name of an operator has no attributes.
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def known(shape: Shape | None) -> Shape:
    """Return a shape that the count needs.

    Raises
    ------
    UnknownShape
    """
    if shape is None:
        raise UnknownShape
    return shape


def elements(shape: Shape | None) -> int:
    """Return how many elements a tensor has.

    Raises
    ------
    UnknownShape
    """
    return math.prod(known(shape))


def no_flops(_operation: Operation) -> int:
    """Count an operator that computes nothing: one that moves or converts elements."""
    return 0


def elementwise(operation: Operation) -> int:
    """Count one operation per element of the result."""
    return elements(operation.outputs[0])


def per_element(operations: int) -> Formula:
    """Return a formula of so many operations per element of the first input."""
    return lambda operation: operations * elements(operation.inputs[0])


def convolution_flops(weight: int) -> Formula:
    """Return a formula for weights ``[M, C/group, *k]`` at a position of the operands.

    Each element of the result sums over the weights of one of the M channels.
    """
    return lambda op: 2 * elements(op.outputs[0]) * math.prod(known(op.inputs[weight])[1:])
