"""How many arithmetic operations an ONNX operator takes, from shapes alone.

The count is that of the literature: of the operator's definition, not of an implementation. A
multiply-add counts as two, which covers a bias: ``k`` products, ``k - 1`` sums and the bias are
``2 k``. Products with padding count, as in published figures. An element-wise function counts as
one per element, whichever it is; a comparison counts as one; moving data counts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ELEMENTWISE", "Operation", "Shape", "einsum", "flops"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Operation:
    """One operator with what its cost depends on.

    Attributes
    ----------
    op_type : str
        Of the ONNX domain.
    inputs, outputs : sequence of (tuple of int or None)
        Shapes; ``None`` for one that is left out or not known before the run.
    attributes : mapping of str to value
    """

    op_type: str
    inputs: Sequence[Shape | None]
    outputs: Sequence[Shape | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def flops(operation: Operation) -> int | None:
    """Arithmetic operations of one run.

    Returns
    -------
    int or None
        ``None`` where a shape that decides is not known, where the work depends on data (sorting,
        non-maximum suppression, loops) and for operators that nobody here knows.
    """
    op_type = operation.op_type
    if op_type in _DATA_MOVEMENT:
        return 0
    try:
        if op_type in ELEMENTWISE:
            return _elements(operation.outputs[0])
        if op_type in _PER_ELEMENT:
            return _PER_ELEMENT[op_type] * _elements(operation.inputs[0])
        formula = _FORMULAS.get(op_type)
        return None if formula is None else formula(operation)
    except _Unknown:
        return None
    # What ONNX's checker lets pass is for the importer to refuse; here it only has no count.
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def einsum(equation: str, shapes: Sequence[Shape | None]) -> int:
    """One multiplication or addition per operand and point of the space of all subscripts.

    Raises
    ------
    _Unknown
        An ellipsis, or a shape that is not known.
    """
    terms, _, result = equation.replace(" ", "").partition("->")
    if "." in equation:
        raise _Unknown
    extents: dict[str, int] = {}
    for term, shape in zip(terms.split(","), shapes, strict=True):
        for label, length in zip(term, _known(shape), strict=True):
            extents[label] = max(length, extents.get(label, 1))
    if not equation.count("->"):
        result = "".join(label for label in extents if terms.count(label) == 1)
    operands = len(shapes)
    if operands == 1 and set(result) == set(extents):
        return 0  # a transposition
    return operands * math.prod(extents.values())


class _Unknown(Exception):
    """A shape that the count needs is not known."""


def _known(shape: Shape | None) -> Shape:
    if shape is None:
        raise _Unknown
    return shape


def _elements(shape: Shape | None) -> int:
    return math.prod(_known(shape))


def _convolution(weight: int) -> Callable[[Operation], int]:
    """Each output element sums over the weights of one output channel: ``[M, C/group, *k]``."""

    def count(op: Operation) -> int:
        return 2 * _elements(op.outputs[0]) * math.prod(_known(op.inputs[weight])[1:])

    return count


def _transposed_convolution(op: Operation) -> int:
    """Each input element is spread by the weights of its channel: ``[C, M/group, *k]``."""
    return 2 * _elements(op.inputs[0]) * math.prod(_known(op.inputs[1])[1:])


def _gemm(op: Operation) -> int:
    depth = _known(op.inputs[0])[0 if op.attributes.get("transA", 0) else 1]
    return 2 * _elements(op.outputs[0]) * depth


def _matmul(op: Operation) -> int:
    return 2 * _elements(op.outputs[0]) * _known(op.inputs[0])[-1]


def _einsum(op: Operation) -> int:
    equation = op.attributes["equation"]
    text = equation.decode() if isinstance(equation, bytes) else str(equation)
    return einsum(text, op.inputs)


def _recurrent(op: Operation) -> int:
    """The products with ``W [directions, gates * H, I]`` and ``R``; gates are left out."""
    sequence_and_batch = math.prod(_known(op.inputs[0])[:2])
    return 2 * sequence_and_batch * (_elements(op.inputs[1]) + _elements(op.inputs[2]))


def _pool(op: Operation) -> int:
    return _elements(op.outputs[0]) * math.prod(op.attributes["kernel_shape"])


def _variadic(extra: int) -> Callable[[Operation], int]:
    return lambda op: (len(op.inputs) - 1 + extra) * _elements(op.outputs[0])


def _lrn(op: Operation) -> int:
    """A square, the window's sum, and ``x / (bias + alpha * sum) ** beta``."""
    return (op.attributes["size"] + 4) * _elements(op.inputs[0])


def _resize(op: Operation) -> int:
    axes = sum(a != b for a, b in zip(_known(op.inputs[0]), _known(op.outputs[0]), strict=True))
    return _interpolation(op, b"nearest", axes)


def _grid_sample(op: Operation) -> int:
    return _interpolation(op, b"linear", len(_known(op.inputs[0])) - 2)


def _interpolation(op: Operation, default: bytes, axes: int) -> int:
    """The weighted sum of each element's neighbours along `axes` axes."""
    mode = op.attributes.get("mode", default).removeprefix(b"bi")
    taps = {b"nearest": 0, b"linear": 2, b"cubic": 4}.get(mode)
    if taps is None:
        raise _Unknown
    return 2 * taps**axes * _elements(op.outputs[0]) if taps and axes else 0


def _roi_align(op: Operation) -> int:
    """Four weighted neighbours and the pooling, per sample."""
    ratio = op.attributes.get("sampling_ratio", 0)
    if not ratio:  # as many samples as the box is large
        raise _Unknown
    return 9 * ratio**2 * _elements(op.outputs[0])


_DATA_MOVEMENT = frozenset(
    """
    BatchToSpace Cast CastLike Compress Concat ConcatFromSequence Constant ConstantOfShape
    DepthToSpace Dropout Expand EyeLike Flatten Gather GatherElements GatherND Identity MaxUnpool
    OneHot Optional OptionalGetElement OptionalHasElement Pad Range Reshape ReverseSequence
    ScatterElements Scatter ScatterND SequenceAt SequenceConstruct SequenceEmpty SequenceErase
    SequenceInsert SequenceLength Shape Size Slice SpaceToDepth Split SplitToSequence Squeeze Tile
    Transpose Trilu Unsqueeze Where
    """.split()
)
"""Operators that compute nothing."""

ELEMENTWISE = frozenset(
    """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
    Ceil Celu Clip Cos Cosh DequantizeLinear Div DynamicQuantizeLinear Elu Equal Erf Exp Floor Gelu
    Greater GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Mish Mod
    Mul Neg Not Or PRelu Pow QuantizeLinear Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh
    Softplus Softsign Sqrt Sub Swish Tan Tanh ThresholdedRelu Xor
    """.split()
)
"""One operation per element of the result."""

_PER_ELEMENT: Mapping[str, int] = {
    "ArgMax": 1,
    "ArgMin": 1,
    "BatchNormalization": 2,  # a scale and a shift: in inference its statistics are constants
    "CumSum": 1,
    "GlobalAveragePool": 1,
    "GlobalLpPool": 1,
    "GlobalMaxPool": 1,
    # sum; subtract, square, sum; scale, and the learned scale and shift
    "GroupNormalization": 7,
    "InstanceNormalization": 7,
    "LayerNormalization": 7,
    "Hardmax": 1,
    "LogSoftmax": 5,
    "LpNormalization": 3,
    "MeanVarianceNormalization": 5,
    "RMSNormalization": 4,
    "ReduceL1": 1,
    "ReduceL2": 2,
    "ReduceLogSum": 1,
    "ReduceLogSumExp": 2,
    "ReduceMax": 1,
    "ReduceMean": 1,
    "ReduceMin": 1,
    "ReduceProd": 1,
    "ReduceSum": 1,
    "ReduceSumSquare": 2,
    "Softmax": 5,  # largest, subtract, exponential, sum, divide
}
"""Operations per element of the first input."""

_FORMULAS: Mapping[str, Callable[[Operation], int]] = {
    "AveragePool": _pool,
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "ConvTranspose": _transposed_convolution,
    "DeformConv": _convolution(1),
    "Einsum": _einsum,
    "GRU": _recurrent,
    "Gemm": _gemm,
    "GridSample": _grid_sample,
    "LRN": _lrn,
    "LSTM": _recurrent,
    "LpPool": _pool,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "Max": _variadic(0),
    "MaxPool": _pool,
    "Mean": _variadic(1),
    "Min": _variadic(0),
    "QLinearConv": _convolution(3),
    "QLinearMatMul": _matmul,
    "RNN": _recurrent,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "Sum": _variadic(0),
    "Upsample": _resize,
}
