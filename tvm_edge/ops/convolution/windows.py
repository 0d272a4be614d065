"""Converters of windows that move or overlap: DeformConv and Col2Im."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

from tvm_edge.ops.converter import Attributes, operand
from tvm_edge.relay_passes.ir.expressions import constant_of, lengths_of, static_shape

__all__ = ["col2im", "deform_conv"]


def deform_conv(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Sample the kernel's points, then multiply with the weights (Dai et al. 2017, Zhu 2019).

    A point between elements is interpolated linearly; outside of the picture there are zeros.
    """
    x, w, offset = inputs[:3]
    bias, mask = operand(inputs, 3), operand(inputs, 4)
    shape, filters, moved = lengths_of(x.ty), static_shape(w.ty), lengths_of(offset.ty)
    if shape is None or filters is None or moved is None:
        raise NotImplementedError("DeformConv with weights of open dimensions")
    if len(filters) != 4:
        raise NotImplementedError(f"DeformConv of {len(filters) - 2} dimensions")
    n, channels = shape[:2]
    if not isinstance(channels, int):
        raise NotImplementedError("DeformConv of an open number of channels")
    groups, offset_groups = int(attrs.get("group", 1)), int(attrs.get("offset_group", 1))
    (kh, kw), (oh, ow) = filters[2:], moved[2:]
    strides, dilations = attrs.get("strides", (1, 1)), attrs.get("dilations", (1, 1))
    pads = attrs.get("pads", (0, 0, 0, 0))
    shared = channels // offset_groups  # channels that move alike

    def found(x: te.Tensor, offset: te.Tensor, *masks: te.Tensor) -> te.Tensor:
        def at(
            b: tirx.Var, c: tirx.Var, i: tirx.Var, j: tirx.Var, y: tirx.Var, z: tirx.Var
        ) -> tvm.ir.Expr:
            point = (c // shared * kh + i) * kw + j
            dtype = x.dtype
            place = [
                tirx.Cast(dtype, position * stride - pad + k * dilation)
                + offset[b, point * 2 + axis, y, z]
                for axis, (position, stride, pad, k, dilation) in enumerate(
                    zip((y, z), strides, pads, (i, j), dilations, strict=False)
                )
            ]
            value = _bilinear(x, b, c, place, (x.shape[2], x.shape[3]))
            return value * masks[0][b, point, y, z] if masks else value

        size = (x.shape[0], channels, kh, kw, *offset.shape[2:])
        return te.compute(size, at, name="deformed")

    operands = [x, offset] if mask is None else [x, offset, mask]
    columns = bb.emit_te(found, *operands)
    inner = channels // groups * kh * kw
    columns = bb.emit(relax.op.reshape(columns, (n, groups, inner, oh * ow)))
    weights = bb.emit(relax.op.reshape(w, (groups, filters[0] // groups, inner)))
    y = bb.emit(relax.op.reshape(relax.op.matmul(weights, columns), (n, filters[0], oh, ow)))
    if bias is not None:
        y = bb.emit(relax.op.add(y, relax.op.reshape(bias, (1, -1, 1, 1))))
    return y


def _bilinear(
    x: te.Tensor,
    b: tirx.Var,
    c: tirx.Var,
    place: Sequence[tvm.ir.Expr],
    lengths: tuple[Any, Any],
) -> tvm.ir.Expr:
    """Interpolate the element at a point, which may be anywhere or no number."""
    corners, parts = [], []
    for value, length in zip(place, lengths, strict=True):
        # Farther out nothing changes; a comparison with NaN is false, which is outside too.
        held = tirx.max(tirx.min(value, tirx.Cast(x.dtype, length)), tirx.const(-1, x.dtype))
        low = tirx.floor(held)
        corners.append(tirx.Cast("int32", low))
        parts.append(held - low)
    total = tirx.const(0, x.dtype)
    for dy in (0, 1):
        for dx in (0, 1):
            row, column = corners[0] + dy, corners[1] + dx
            inside = tirx.all(row >= 0, row < lengths[0], column >= 0, column < lengths[1])
            share = (parts[0] if dy else 1 - parts[0]) * (parts[1] if dx else 1 - parts[1])
            element = tirx.if_then_else(inside, x[b, c, row, column], tirx.const(0, x.dtype))
            total = total + share * element
    return total


def col2im(bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes) -> relax.Expr:
    """Sum into each element of the image those of the blocks that lie over it."""
    columns, image, block = inputs[0], constant_of(inputs[1]), constant_of(inputs[2])
    shape = static_shape(columns.ty)
    if image is None or block is None or shape is None:
        raise NotImplementedError("Col2Im to or of open lengths; fix them with input_shapes")
    lengths, kernel = [int(n) for n in image], [int(n) for n in block]
    rank = len(lengths)
    strides = attrs.get("strides", [1] * rank)
    dilations = attrs.get("dilations", [1] * rank)
    pads = attrs.get("pads", [0] * 2 * rank)
    counts = [
        (lengths[i] + pads[i] + pads[i + rank] - dilations[i] * (kernel[i] - 1) - 1) // strides[i]
        + 1
        for i in range(rank)
    ]
    channels = shape[1] // math.prod(kernel)
    if math.prod(counts) != shape[2] or channels * math.prod(kernel) != shape[1]:
        raise ValueError(f"Col2Im of {shape}: an image of {lengths} has {counts} blocks")
    wide = bb.emit(relax.op.reshape(columns, (shape[0], channels, *kernel, *counts)))

    def summed(x: te.Tensor) -> te.Tensor:
        taps = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(kernel)]

        def at(b: tirx.Var, c: tirx.Var, *position: tirx.Var) -> tvm.ir.Expr:
            start = [
                p + pads[i] - tap * dilations[i]
                for i, (p, tap) in enumerate(zip(position, taps, strict=True))
            ]
            over = tirx.all(
                *(
                    condition
                    for i, s in enumerate(start)
                    for condition in (
                        s >= 0,
                        tirx.floormod(s, strides[i]) == 0,
                        s < counts[i] * strides[i],
                    )
                )
            )
            blocks = [tirx.floordiv(s, strides[i]) for i, s in enumerate(start)]
            element = tirx.if_then_else(over, x(b, c, *taps, *blocks), tirx.const(0, x.dtype))
            return te.sum(element, axis=taps)

        return te.compute((shape[0], channels, *lengths), at, name="image")

    return bb.emit_te(summed, wide)
