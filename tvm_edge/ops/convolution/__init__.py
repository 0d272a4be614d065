"""Convolutions, transposed and deformable ones among them."""

from __future__ import annotations

import math

from tvm_edge.ops.convolution.conv2d import lower_conv2d
from tvm_edge.ops.convolution.open_lengths import conv
from tvm_edge.ops.convolution.transposed import conv_transpose
from tvm_edge.ops.convolution.windows import col2im, deform_conv
from tvm_edge.ops.flops import Operation, Shape, convolution_flops, elements, known
from tvm_edge.ops.registry import PERFORMS, PRODUCT, register, relax_names


def _transposed_flops(op: Operation) -> int:
    """Spread each element of the input by the weights of its channel: ``[C, M/group, *k]``."""
    return 2 * elements(op.inputs[0]) * math.prod(known(op.inputs[1])[1:])


def _relax_flops(op: Operation) -> int:
    """Count as ONNX's convolution, of weights in any layout, also blocked ones as ``OIHW16o``."""
    return 2 * elements(op.outputs[0]) * _of_one_channel(op, "O")


def _relax_transposed_flops(op: Operation) -> int:
    """Count as ONNX's transposed convolution, of weights in any layout."""
    return 2 * elements(op.inputs[0]) * _of_one_channel(op, "I")


def _of_one_channel(op: Operation, axis: str) -> int:
    """Return how many weights one channel of an axis has."""
    weights: Shape = known(op.inputs[1])
    letters = [letter for letter in str(op.attributes["kernel_layout"]) if letter.isalpha()]
    lengths = zip(letters, weights, strict=True)
    channels = math.prod(length for letter, length in lengths if letter.upper() == axis)
    return math.prod(weights) // (channels or 1)


register("Col2Im", convert=col2im, forming=(1, 2))
register("Conv", convert=conv, flops=convolution_flops(1))
register("ConvTranspose", convert=conv_transpose, flops=_transposed_flops)
register("DeformConv", convert=deform_conv, flops=convolution_flops(1))

_CONV = relax_names("nn.conv1d nn.conv2d nn.conv3d")
_TRANSPOSED = relax_names("nn.conv1d_transpose nn.conv2d_transpose nn.conv3d_transpose")
register(*_CONV, gpu=PERFORMS, float16=PRODUCT, flops=_relax_flops)
register(*_TRANSPOSED, gpu=PERFORMS, float16=PRODUCT, flops=_relax_transposed_flops)
register("relax.nn.conv2d", lower=lower_conv2d)
