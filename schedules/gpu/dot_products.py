"""Instructions of GPUs that add four products of 8-bit numbers to an int32.

CUDA has ``__dp4a`` (compute capability 6.1). OpenCL has extensions: Khronos'
``cl_khr_integer_dot_product``, Arm's ``cl_arm_integer_dot_product_accumulate_int8``, and
Qualcomm's ``cl_qcom_dot_product8``, whose data are unsigned. NVIDIA's OpenCL has none, and gets
the instruction as PTX. A device without one gets shifts and multiplications.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.accesses import nodes_in
from tvm_edge.schedules.words import WORD, column_operands, dot_operands

__all__ = [
    "GPU_DOT_PRODUCTS",
    "PTX_DP4A",
    "GpuDot",
    "dot_product_of",
    "has_dot_products",
    "with_dot_products",
]

PTX_DP4A = "tvm_edge_dp4a"
"""Name of the function of OpenCL sources that is NVIDIA's instruction."""


@dataclass(frozen=True)
class GpuDot:
    """Dot-product instruction of a device.

    Attributes
    ----------
    image : {"int8", "uint8"}
        Type of what is multiplied by the signed weights.
    added : callable
        ``added(weights, data, total)``, both words and an int32.
    in_vectors : bool
        Whether vectors of words are multiplied as they are: it is made of operators.
    permutes : bool
        Whether CUDA's ``__byte_perm`` picks any four bytes of two words.
    """

    image: str
    added: Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tirx.Expr]
    in_vectors: bool = False
    permutes: bool = False


def _int(function: str, *operands: Any) -> tirx.Expr:
    return tirx.call_pure_extern("int32", function, *operands)


def _numbers(value: tirx.Expr) -> tirx.Expr:
    return tirx.call_pure_extern("int8x4", "as_char4", value)


def _multiplied(weights: tirx.Expr, data: tirx.Expr, total: tirx.Expr) -> tirx.Expr:
    for i in range(WORD):
        left = 8 * (WORD - 1 - i)
        total = total + ((weights << left) >> 24) * _number(data, i)
    return total


def _number(word: tirx.Expr, place: int) -> tirx.Expr:
    """Extract a number of a word.

    The word may be a constant: a tap may read nothing but padding. TVM folds constants that are
    shifted to the left without dropping the bits beyond 32.
    """
    if place == WORD - 1:
        return word >> 24
    return (((word >> (8 * place)) & 255) ^ 128) - 128


GPU_DOT_PRODUCTS = {
    "": GpuDot("int8", _multiplied, in_vectors=True),
    "dp4a": GpuDot("int8", lambda w, x, total: _int("__dp4a", w, x, total), permutes=True),
    "ptx_dp4a": GpuDot("int8", lambda w, x, total: _int(PTX_DP4A, w, x, total)),
    "khr_dot": GpuDot("int8", lambda w, x, total: total + _int("dot_4x8packed_ss_int", w, x)),
    "arm_dot": GpuDot(
        "int8", lambda w, x, total: _int("arm_dot_acc", _numbers(w), _numbers(x), total)
    ),
    "qcom_dot": GpuDot("uint8", lambda w, x, total: _int("qcom_dot8_acc", w, x, total)),
}
"""Instructions by the names of :class:`~tvm_edge.DeviceSpec`."""


def dot_product_of(spec: DeviceSpec) -> GpuDot:
    """Return the instruction by which a GPU multiplies 8-bit numbers."""
    return GPU_DOT_PRODUCTS[spec.dot_product]


def _permuted(words: Sequence[tirx.Expr], place: int) -> tirx.Expr:
    """Build a column by ``__byte_perm``: 8 in all for four, as pairs share their first two."""
    a, b, c, d = words
    pair = 0x5140 if place < 2 else 0x7362
    halves = _int("__byte_perm", a, b, pair), _int("__byte_perm", c, d, pair)
    return _int("__byte_perm", *halves, 0x7632 if place % 2 else 0x5410)


def _shifted(words: Sequence[tirx.Expr], place: int) -> tirx.Expr:
    whole = tirx.const(0, "int32")
    for i, each in enumerate(words):
        whole = whole | (((each >> (8 * place)) & 255) << (8 * i))
    return whole


def has_dot_products(func: tirx.PrimFunc) -> bool:
    """Return whether a kernel multiplies words."""
    return any(dot_operands(call) is not None for call in nodes_in(func.body, ir.Call))


def with_dot_products(func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc:
    """Replace the products of words in a kernel by the device's instruction.

    In a kernel made of blocks the instruction adds to zero: TVM divides a reduction among
    work-items only where it is a plain addition.
    """
    instruction = dot_product_of(spec)
    added = instruction.added
    is_written = func.attrs is not None and func.attrs.get("tirx.is_scheduled", False)

    def add(node: tirx.Add) -> tirx.Expr:
        operands = dot_operands(node.b)
        return node if operands is None else added(*operands, node.a)

    def alone(call: ir.Call) -> tirx.Expr:
        operands, column = dot_operands(call), column_operands(call)
        if column is not None:
            return (_permuted if instruction.permutes else _shifted)(*column)
        return call if operands is None else added(*operands, tirx.const(0, "int32"))

    body = tvm_ffi.structural_map(func.body, (tirx.Add, add)) if is_written else func.body
    return func.with_body(tvm_ffi.structural_map(body, (ir.Call, alone)))
