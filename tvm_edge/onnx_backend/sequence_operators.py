"""Operators of sequences and optionals, as :class:`Writer` writes them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from tvm_edge.errors import InputError, InvalidModelError
from tvm_edge.onnx_backend.write_out import Names, Value, Writer

__all__ = ["SEQUENCE_OPERATORS"]


def _attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


def _optional(given: Sequence[Value], index: int) -> Value:
    return given[index] if index < len(given) else None


def _place(w: Writer, node: onnx.NodeProto, position: str, count: int) -> int:
    """Return an index from the front, which must be one of `count`."""
    place = int(w.number(position, f"the position of the {node.op_type} {node.name!r}").item())
    if not -count <= place < count:
        raise InputError(
            f"the position {place} of the {node.op_type} {node.name!r} is outside its {count} "
            "places; hand in a longer sequence",
            name=node.name,
        )
    return place % count


def _construct(_w: Writer, _n: onnx.NodeProto, given: Sequence[Value], _: Names) -> list[Value]:
    return [list(given)]


def _empty(_w: Writer, _n: onnx.NodeProto, _given: Sequence[Value], _: Names) -> list[Value]:
    return [[]]


def _insert(w: Writer, node: onnx.NodeProto, given: Sequence[Value], _: Names) -> list[Value]:
    sequence, tensor = given[:2]
    position = _optional(given, 2)
    place = len(sequence)
    if position is not None:  # after the last is a place too, from the front
        what = f"the position of the SequenceInsert {node.name!r}"
        asked = int(w.number(position, what).item())
        if asked != place:
            place = _place(w, node, position, len(sequence))
    return [[*sequence[:place], tensor, *sequence[place:]]]


def _erase(w: Writer, node: onnx.NodeProto, given: Sequence[Value], _: Names) -> list[Value]:
    sequence, position = given[0], _optional(given, 1)
    place = len(sequence) - 1
    if position is not None:
        place = _place(w, node, position, len(sequence))
    return [[*sequence[:place], *sequence[place + 1 :]]]


def _at(w: Writer, node: onnx.NodeProto, given: Sequence[Value], _: Names) -> list[Value]:
    sequence, position = given
    return [sequence[_place(w, node, position, len(sequence))]]


def _length(w: Writer, _n: onnx.NodeProto, given: Sequence[Value], _: Names) -> list[Value]:
    return [w.constant(np.asarray(len(given[0]), "int64"))]


def _concat(w: Writer, node: onnx.NodeProto, given: Sequence[Value], _: Names) -> list[Value]:
    axis = _attribute(node, "axis")
    if _attribute(node, "new_axis", 0):
        return [w.stacked(given[0], axis)]
    return w.emit("Concat", given[0], axis=axis)


def _split(w: Writer, node: onnx.NodeProto, given: Sequence[Value], _: Names) -> list[Value]:
    """Split into parts of given lengths, or of one length, of which the last may be shorter."""
    x, split = given[0], _optional(given, 1)
    axis, single = _attribute(node, "axis", 0), split is None
    if split is None:
        lengths = [1] * w.length(x, axis)
    else:
        asked = w.number(split, f"the split of the SplitToSequence {node.name!r}")
        lengths = [int(length) for length in asked.reshape(-1)]
        if not asked.ndim:
            total, (part,) = w.length(x, axis), lengths
            if part < 1:
                raise InputError(f"{node.name!r} splits into parts of {part}", name=node.name)
            lengths = [min(part, total - start) for start in range(0, total, part)]
    if len(lengths) == 1 and not single:
        return [[x]]
    parts = w.split(x, lengths, axis)
    if single and not _attribute(node, "keepdims", 1):
        parts = [w.along("Squeeze", part, axis) for part in parts]
    return [parts]


def _map(w: Writer, node: onnx.NodeProto, given: Sequence[Value], names: Names) -> list[Value]:
    """Write the body out for each element; tensors are handed to all of them."""
    body = _attribute(node, "body")
    first = given[0]
    columns: list[list[Value]] = [[] for _ in body.output]
    for i in range(len(first)):
        actual = [value[i] if isinstance(value, list) else value for value in given]
        formal = [value.name for value in body.input]
        outputs = w.graph(body, {**names, **dict(zip(formal, actual, strict=True))})
        for column, value in zip(columns, outputs, strict=True):
            column.append(value)
    return list(columns)


def _make_optional(_w: Writer, _n: onnx.NodeProto, given: Sequence[Value], _: Names) -> list[Value]:
    return [_optional(given, 0)]


def _element(_w: Writer, node: onnx.NodeProto, given: Sequence[Value], _: Names) -> list[Value]:
    if given[0] is None:
        raise InvalidModelError(
            f"{node.op_type} {node.name!r} of an optional without a value; hand one in"
        )
    return [given[0]]


def _has_element(w: Writer, _n: onnx.NodeProto, given: Sequence[Value], _: Names) -> list[Value]:
    return [w.constant(np.asarray(_optional(given, 0) is not None))]


SEQUENCE_OPERATORS = {
    "ConcatFromSequence": _concat,
    "Optional": _make_optional,
    "OptionalGetElement": _element,
    "OptionalHasElement": _has_element,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SequenceMap": _map,
    "SplitToSequence": _split,
}
"""Converters by the operator's name."""
