"""Products with weights of 2 to 8 bits in blocks, as ``matmul_nbits_quantizer`` writes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from tvm_edge.ops.converter import Attributes, operand
from tvm_edge.ops.flops import Operation, elements
from tvm_edge.ops.onnxruntime.standard import standard
from tvm_edge.ops.registry import register
from tvm_edge.relay_passes.ir.expressions import constant_of

__all__: list[str] = []

_BITS = (2, 4, 8)


def _matmul_n_bits(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Multiply by the dequantised weights, whatever accuracy the node permits.

    The weights become float32: 32 bits of memory for each of ``bits`` in the file.
    """
    bits, depth, width = (int(attrs.get(name, 4)) for name in ("bits", "K", "N"))
    packed, scales = constant_of(inputs[1]), constant_of(inputs[2])
    starts = operand(inputs, 3)
    zeros = None if starts is None else constant_of(starts)
    if packed is None or scales is None or (starts is not None and zeros is None):
        raise NotImplementedError("MatMulNBits with weights that are not constant")
    if bits not in _BITS or operand(inputs, 4) is not None or attrs.get("weight_prepacked", 0):
        raise NotImplementedError("MatMulNBits of other bits than 2, 4, 8, reordered or prepacked")
    scales = scales.reshape(width, -1)
    blocks = scales.shape[1]
    numbers = _unpacked(packed.reshape(width, blocks, -1), bits).astype("float32")
    if zeros is None:
        first = np.float32(1 << (bits - 1))
    elif zeros.dtype == np.uint8:
        first = _unpacked(zeros.reshape(width, -1), bits)[:, :blocks, None].astype("float32")
    else:
        first = zeros.reshape(width, blocks, 1).astype("float32")
    real = (numbers - first) * scales[:, :, None].astype("float32")
    weights = np.ascontiguousarray(real.reshape(width, -1)[:, :depth].T)
    dtype = str(inputs[0].ty.dtype)
    product = standard(bb, "MatMul", [inputs[0], relax.const(weights.astype(dtype), dtype)], {})
    bias = operand(inputs, 5)
    return product if bias is None else relax.op.add(product, bias)


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Return the numbers of the last axis, of which the first has a byte's lowest bits."""
    shifts = np.arange(0, 8, bits, dtype="uint8")
    numbers = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1)


def _flops(op: Operation) -> int:
    return 2 * elements(op.inputs[0]) * int(op.attributes["N"])


register("com.microsoft.MatMulNBits", convert=_matmul_n_bits, flops=_flops)
