"""Products of matrices and tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax, tirx

from tvm_edge.ops.converter import Attributes
from tvm_edge.ops.einsum import einsum
from tvm_edge.ops.flops import Formula, Operation, Shape, UnknownShape, elements, elementwise, known
from tvm_edge.ops.kernel_site import KernelSite
from tvm_edge.ops.registry import PERFORMS, PRODUCT, register, relax_names
from tvm_edge.relay_passes.ir.expressions import const, constant_of, lengths_of, static_shape
from tvm_edge.schedules.gpu.tensor_conv import (
    BLOCKS,
    TensorConv,
    dense_tensor,
    dense_workload,
    pack_stacks,
)
from tvm_edge.schedules.gpu.tensor_tile import possible_tensor_tiles

__all__ = ["gemm_flops", "matmul_flops"]


def _matmul(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes
) -> relax.Expr | None:
    """Accumulate bfloat16 in float32 and round once. The compiler sees to float16."""
    dtype = str(inputs[0].ty.dtype)
    if dtype != "bfloat16":
        return None
    a, b = (bb.emit(relax.op.astype(value, "float32")) for value in inputs[:2])
    return bb.normalize(relax.op.astype(relax.op.matmul(a, b), dtype))


# Minors of n rows have n! terms.
_LARGEST_DETERMINANT = 5


def _det(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], _attrs: Attributes) -> relax.Expr:
    """Expand by minors of the first row: exact and short enough for the matrices of geometry."""
    x, shape = inputs[0], lengths_of(inputs[0].ty)
    if shape is None or isinstance(shape[-1], tirx.Expr) or shape[-1] > _LARGEST_DETERMINANT:
        raise NotImplementedError(f"Det of matrices of more than {_LARGEST_DETERMINANT} rows")
    rank = len(shape)

    def element(row: int, column: int) -> relax.Expr:
        line = relax.op.take(x, relax.const(np.int64(row), "int64"), rank - 2, mode="clip")
        at = relax.const(np.int64(column), "int64")
        return bb.emit(relax.op.take(bb.emit(line), at, rank - 2, mode="clip"))

    def minor(row: int, columns: tuple[int, ...]) -> relax.Expr:
        if len(columns) == 1:
            return element(row, columns[0])
        total = None
        for i, column in enumerate(columns):
            rest = minor(row + 1, columns[:i] + columns[i + 1 :])
            term = bb.emit(relax.op.multiply(element(row, column), rest))
            if total is None:
                total = term
            else:
                total = bb.emit((relax.op.subtract if i % 2 else relax.op.add)(total, term))
        return total

    return minor(0, tuple(range(shape[-1])))


def gemm_flops(op: Operation) -> int:
    """Count the product of matrices either of which may be transposed."""
    depth = known(op.inputs[0])[0 if op.attributes.get("transA", 0) else 1]
    return 2 * elements(op.outputs[0]) * depth


def _lower_matmul(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower a product of float16 or tf32 with constant weights to tensor cores, if there are."""
    weights, shape = constant_of(call.args[1]), static_shape(call.args[0].ty)
    dtype = str(call.ty.dtype)
    taken = dtype == "float16" or (dtype == "float32" and site.precision == "tf32")
    cores = site.spec.tensor_cores
    if cores is None or dtype not in cores.dtypes or not taken:
        return call
    if weights is None or str(weights.dtype) != dtype:
        return call
    if shape is None or len(shape) != 2 or weights.ndim != 2:
        return call
    reduction, columns = weights.shape
    block = BLOCKS[dtype]
    if 0 in shape or reduction % block or columns % block:
        return call
    conv = TensorConv.of(dense_workload(shape[0], reduction, columns), dtype)
    if not possible_tensor_tiles(conv, site.spec):
        return call
    packed = pack_stacks(np.ascontiguousarray(weights.T)[:, :, None, None], conv)
    return site.builder.call_te(
        lambda rows, filters: dense_tensor(rows, filters, columns),
        call.args[0],
        const(packed, dtype),
        primfunc_name_hint="dense_tensor",
        primfunc_attrs={"op_pattern": 4},
    )


def matmul_flops(op: Operation) -> int:
    return 2 * elements(op.outputs[0]) * known(op.inputs[0])[-1]


def _einsum_flops(name: str) -> Formula:
    """Return a formula that finds the equation in the attribute `name`."""

    def count(op: Operation) -> int:
        equation = op.attributes[name]
        text = equation.decode() if isinstance(equation, bytes) else str(equation)
        return _einsum(text, op.inputs)

    return count


def _einsum(equation: str, shapes: Sequence[Shape | None]) -> int:
    """Count one multiplication or addition per operand and point of the space of all subscripts.

    Raises
    ------
    UnknownShape
        An ellipsis, or a shape that is not known.
    """
    terms, _, result = equation.replace(" ", "").partition("->")
    if "." in equation:
        raise UnknownShape
    extents: dict[str, int] = {}
    for term, shape in zip(terms.split(","), shapes, strict=True):
        for label, length in zip(term, known(shape), strict=True):
            extents[label] = max(length, extents.get(label, 1))
    if not equation.count("->"):
        result = "".join(label for label in extents if terms.count(label) == 1)
    operands = len(shapes)
    if operands == 1 and set(result) == set(extents):
        return 0  # a transposition
    return operands * math.prod(extents.values())


register("Det", convert=_det)
register("Einsum", convert=einsum, flops=_einsum_flops("equation"))
register("Gemm", flops=gemm_flops)
register("MatMul", convert=_matmul, flops=matmul_flops)

register("relax.einsum", gpu=PERFORMS, flops=_einsum_flops("subscripts"))
register("relax.matmul", gpu=PERFORMS, float16=PRODUCT, flops=matmul_flops, lower=_lower_matmul)
register(*relax_names("nn.attention nn.attention_bias nn.attention_var_len"), gpu=PERFORMS)
# Products without additions.
register("relax.outer", gpu=PERFORMS, flops=elementwise)
