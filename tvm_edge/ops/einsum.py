"""Einstein sums as batched matrix products.

Each pair of operands becomes one product: labels at the result's end are its columns, those before
them its rows, all others a batch that is broadcast. Then operands alone are transposed. Where a
label of the batch is in the place of the rows, the result is transposed, too.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import relax

from tvm_edge.ops.converter import Attributes, text
from tvm_edge.relay_passes.ir.expressions import lengths_of, same_length

__all__ = ["einsum"]

_FLOATS = ("float16", "float32", "float64")


@dataclass(frozen=True)
class _Term:
    """An operand and the label of each of its axes."""

    value: relax.Expr
    labels: str


def einsum(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Contract the operands from left to right.

    TVM's loops over all labels remain for integers, diagonals (a label twice in a term), lengths
    of 1 that are broadcast, products with a vector, and those along the result's last axis.
    """
    if any(str(value.ty.dtype) not in _FLOATS for value in inputs):
        return None
    ranks = [int(value.ty.ndim) for value in inputs]
    labels, result = _labels(text(attrs, "equation", "").replace(" ", ""), ranks)
    terms = [_Term(value, own) for value, own in zip(inputs, labels, strict=True)]
    lengths = _lengths(terms)
    if lengths is None or not set(result) <= set(lengths):
        return None
    plan = _pairs(labels, result)
    if not all(_sides(a, b, kept).rows for a, b, kept in plan):
        return None
    if len(terms) == 1:
        return _arranged(bb, _summed(bb, terms[0], result), result).value
    done = terms[0]
    for term, (_, _, kept) in zip(terms[1:], plan, strict=True):
        done = _product(bb, done, term, kept, lengths)
    return done.value


def _labels(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the labels of each operand and of the result, ellipses spelled out."""
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    unused = [each for each in string.ascii_letters if each not in equation]
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    spread = max((n for n, term in zip(hidden, terms, strict=True) if "..." in term), default=0)
    dots = "".join(unused[:spread])
    if not arrow:
        named = left.replace(",", "").replace(".", "")
        result = "..." + "".join(sorted(c for c in set(named) if named.count(c) == 1))
    own = [
        term.replace("...", dots[spread - n :] if n else "")
        for n, term in zip(hidden, terms, strict=True)
    ]
    return own, result.replace("...", dots)


def _lengths(terms: Sequence[_Term]) -> Mapping[str, Any] | None:
    """Return the length of each label; ``None`` unless all that share one are of one length."""
    found: dict[str, Any] = {}
    for term in terms:
        lengths = lengths_of(term.value.ty)
        if lengths is None or len(lengths) != len(set(term.labels)) or "." in term.labels:
            return None
        for label, length in zip(term.labels, lengths, strict=True):
            if not same_length(found.setdefault(label, length), length):
                return None
    return found


def _pairs(labels: Sequence[str], result: str) -> list[tuple[str, str, str]]:
    """Return the labels of both operands of each product and those of what it makes."""
    done, pairs = labels[0], []
    for i, term in enumerate(labels[1:], 2):
        later = set(result).union(*labels[i:])
        made = "".join(c for c in dict.fromkeys(done + term) if c in later)
        pairs.append((done, term, made if i < len(labels) else result))
        done = made
    return pairs


@dataclass(frozen=True)
class _Sides:
    """Labels of a product of two operands, by the part they play; `swapped`: the second is left."""

    swapped: bool
    batch: str
    rows: str
    columns: str


def _sides(a: str, b: str, kept: str) -> _Sides:
    """Return the parts of labels; there are no rows where this is no product of matrices."""
    swapped = bool(kept) and kept[-1] in a
    left, right = (b, a) if swapped else (a, b)
    columns = _end(kept, right, left)
    rest = kept[: len(kept) - len(columns)]
    rows = _end(rest, left, right) or "".join(c for c in rest if c not in right)
    batch = "".join(c for c in rest if c not in rows)
    return _Sides(swapped, batch, rows if columns else "", columns)


def _end(labels: str, having: str, lacking: str) -> str:
    """Return the end of `labels` that one operand has and the other lacks."""
    count = 0
    for label in reversed(labels):
        if label not in having or label in lacking:
            break
        count += 1
    return labels[len(labels) - count :]


def _product(
    bb: relax.BlockBuilder, a: _Term, b: _Term, kept: str, lengths: Mapping[str, Any]
) -> _Term:
    """Multiply two operands, and sum over all labels that are not `kept`."""
    sides = _sides(a.labels, b.labels, kept)
    a, b = _summed(bb, a, kept + b.labels), _summed(bb, b, kept + a.labels)
    left, right = (b, a) if sides.swapped else (a, b)
    shared = "".join(c for c in left.labels if c in right.labels and c not in kept)

    def matrices(term: _Term, first: str, second: str) -> relax.Expr:
        own = "".join(c for c in sides.batch if c in term.labels)
        value = _arranged(bb, term, own + first + second).value
        # Without a batch of its own it is one matrix for the whole batch of the other.
        outer = [lengths[c] if c in own else 1 for c in sides.batch] if own else []
        return _shaped(bb, value, [*outer, *(_length(side, lengths) for side in (first, second))])

    factors = matrices(left, sides.rows, shared), matrices(right, shared, sides.columns)
    made = bb.normalize(relax.op.matmul(*factors))
    order = sides.batch + sides.rows + sides.columns
    return _arranged(bb, _Term(_shaped(bb, made, [lengths[c] for c in order]), order), kept)


def _length(labels: str, lengths: Mapping[str, Any]) -> Any:
    return prod((lengths[c] for c in labels), start=1)


def _shaped(bb: relax.BlockBuilder, value: relax.Expr, shape: list[Any]) -> relax.Expr:
    own = lengths_of(value.ty) or ()
    if len(own) == len(shape) and all(map(same_length, own, shape)):
        return value
    return bb.normalize(relax.op.reshape(value, shape))


def _summed(bb: relax.BlockBuilder, term: _Term, used: str) -> _Term:
    """Sum over labels that nobody else uses."""
    axes = [i for i, label in enumerate(term.labels) if label not in used]
    if not axes:
        return term
    labels = "".join(label for label in term.labels if label in used)
    return _Term(bb.normalize(relax.op.sum(term.value, axes)), labels)


def _arranged(bb: relax.BlockBuilder, term: _Term, labels: str) -> _Term:
    """Transpose an operand to this order of its labels."""
    if term.labels == labels:
        return term
    axes = [term.labels.index(label) for label in labels]
    return _Term(bb.normalize(relax.op.permute_dims(term.value, axes)), labels)
