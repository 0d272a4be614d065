"""Winograd convolution of plain images on a GPU: the transforms around a batch of products.

Three kernels: inputs ``[(m+2)**2, C, tiles]``; products, which are matrix products to the rule
that tiles them; outputs, with what follows the convolution. A work-item transforms one tile, in
registers. Neighbours have neighbouring tiles, whose frequencies lie side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import isqrt
from typing import Any

import numpy as np
from tvm import ir, s_tir, sym, te, tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import inline_spatial, open_schedule, root_blocks
from tvm_edge.schedules.base import ScheduleRule
from tvm_edge.schedules.blocked import outputs
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.emit import Kernel, Tensor, each, hold, registers, when
from tvm_edge.schedules.float16 import widened
from tvm_edge.schedules.gpu.epilogue import Epilogue, Memory
from tvm_edge.schedules.gpu.written import buffers_of, kernel_of, written
from tvm_edge.schedules.knobs import CONFIG
from tvm_edge.schedules.open_lengths import (
    Length,
    ceil_div,
    divides,
    length_of,
    total,
    variables_in,
)
from tvm_edge.schedules.stages import epilogue_of
from tvm_edge.schedules.winograd import STAGES, transforms

__all__ = ["WinogradOutput", "products", "tile_counts", "transform_images"]


def tile_counts(workload: ConvWorkload, m: int, size: Sequence[Length]) -> list[Length]:
    """Return batch, and rows and columns of tiles, of images of batch, lines and columns."""
    batch, height, width = size
    top, left, bottom, right = workload.padding
    lines = outputs(height + top + bottom, workload.kernel[0], 1, 1)
    columns = outputs(width + left + right, workload.kernel[1], 1, 1)
    return [batch, ceil_div(lines, m), ceil_div(columns, m)]


def transform_images(
    workload: ConvWorkload,
    m: int,
    spec: DeviceSpec,
    dtype: str = "float32",
    size: Sequence[Length] = (),
) -> Kernel:
    """Build the kernel that transforms the tiles of images.

    Parameters
    ----------
    workload : ConvWorkload
        A 3x3 convolution of stride one.
    m : {2, 4}
        Outputs of a tile along a line.
    spec : DeviceSpec
    dtype : {"float32", "float16"}
        Of the images.
    size : sequence of int or Expr
        Their batch, lines and columns, where these are not the workload's. The kernel then takes
        all of their variables by value, after the images.

    Returns
    -------
    Kernel
        From ``[N, C, H, W]`` to ``[(m+2)**2, C, N * tiles]`` of float32.
    """
    side, channels = m + 2, workload.channels
    batch, height, width = size or (workload.batch, workload.height, workload.width)
    _, tiles_h, tiles_w = tile_counts(workload, m, (batch, height, width))
    tiles = total([batch, tiles_h, tiles_w])
    top, left = workload.padding[:2]
    matrix = transforms(m)[1]
    images: Tensor = ([batch, channels, height, width], dtype)
    result: Tensor = ([side * side, channels, tiles], "float32")

    def body(flat: list[Any]) -> None:
        images, transformed = flat

        def tile_of(at: tirx.Expr) -> None:
            tile, channel = hold(tirx.floormod(at, tiles)), hold(tirx.floordiv(at, tiles))
            inside = tirx.floormod(tile, tiles_h * tiles_w)
            image = tirx.floordiv(tile, tiles_h * tiles_w) * channels + channel
            y = hold(tirx.floordiv(inside, tiles_w) * m - top)
            x = hold(tirx.floormod(inside, tiles_w) * m - left)
            first = hold((image * height + y) * width + x)
            values = registers(side * side, "float32")
            for i in range(side):
                for j in range(side):
                    bounds = [
                        *_within(y, i, top, (tiles_h - 1) * m, height),
                        *_within(x, j, left, (tiles_w - 1) * m, width),
                    ]
                    value = widened(images[first + (i * width + j)])
                    if bounds:
                        zero = tirx.const(0, "float32")
                        value = tirx.if_then_else(tirx.all(*bounds), value, zero)
                    values[i * side + j] = value
            rows = registers(side * side, "float32")
            for p in range(side):
                for j in range(side):
                    rows[p * side + j] = _sum(
                        matrix[:, p], [values[i * side + j] for i in range(side)]
                    )
            for p in range(side):
                for q in range(side):
                    where = (p * side + q) * channels * tiles + at
                    transformed[where] = _sum(
                        matrix[:, q], [rows[p * side + j] for j in range(side)]
                    )

        each(spec, total([channels, tiles]), tile_of)

    return written([images, *variables_in(size)], [result], body)


def _within(
    first: tirx.Expr, step: int, before: int, last: Length, extent: Length
) -> list[tirx.Expr]:
    """Return the conditions under which ``first + step`` is in the image.

    `first` goes from ``-before`` to ``last - before``.
    """
    bounds = []
    if step < before:
        bounds.append(first + step >= 0)
    is_open = not (isinstance(last, int) and isinstance(extent, int))
    if is_open or last - before + step >= extent:
        bounds.append(first + step < extent)
    return bounds


def _sum(factors: np.ndarray, values: Sequence[tirx.Expr]) -> tirx.Expr:
    """Return ``sum(factors[i] * values[i])`` without the zeros."""
    total: tirx.Expr | None = None
    for factor, value in zip(factors, values, strict=True):
        if factor == 0:
            continue
        term = value if factor == 1 else tirx.const(float(factor), "float32") * value
        total = term if total is None else total + term
    assert total is not None
    return total


def products(filters: te.Tensor, transformed: te.Tensor, config: str = "") -> te.Tensor:
    """Reduce over channels: ``[f, C, O]`` and ``[f, C, tiles]`` to ``[f, O, tiles]``.

    `config` are knobs for the schedule; empty: its own choice.
    """
    channel = te.reduce_axis((0, filters.shape[1]), name="channel")
    shape = (filters.shape[0], filters.shape[2], transformed.shape[2])
    return te.compute(
        shape,
        lambda f, o, t: te.sum(filters[f, channel, o] * transformed[f, channel, t], axis=channel),
        name="frequencies",
        attrs={CONFIG: config} if config else None,
    )


def _inside(condition: tirx.Expr, asked: bool) -> AbstractContextManager[None]:
    """Guard statements by `condition` where `asked`, else run them everywhere."""
    return when(condition) if asked else nullcontext()


class WinogradOutput(ScheduleRule):
    """Images out of products, see :func:`tvm_edge.schedules.winograd.combine_outputs`."""

    name = "winograd_output"

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Return the kernel, if `func` transforms products and has an epilogue."""
        sch = open_schedule(func)
        if not {*STAGES[2:]} <= {sch.get(block).name_hint for block in root_blocks(sch)}:
            return None
        inline_spatial(sch, keep=STAGES)
        output = sch.get_sblock(STAGES[3])
        epilogue = sch.get(epilogue_of(sch, output))
        stmt, main = sch.get(output), sch.mod["main"]
        if len(root_blocks(sch)) != 3 or not isinstance(epilogue.body, tirx.BufferStore):
            return None
        if not epilogue.writes[0].source.same_as(main.params[-1]):
            return None
        products = sch.get(sch.get_sblock(STAGES[2])).reads[0].source
        return _written(main, products, stmt, epilogue, spec)


def _written(
    func: tirx.PrimFunc,
    products: tirx.Buffer,
    output: s_tir.SBlock,
    block: s_tir.SBlock,
    spec: DeviceSpec,
) -> tirx.PrimFunc:
    extents = [length_of(v.dom.extent) for v in output.iter_vars]
    _, channels, out_h, out_w = extents
    frequencies, _, tiles = map(length_of, products.shape)
    size = isqrt(frequencies)
    m = size - 2
    tiles_h, tiles_w = ceil_div(out_h, m), ceil_div(out_w, m)
    matrix = transforms(m)[2]
    params = buffers_of(func)
    own = next(i for i, param in enumerate(params) if param.same_as(products))

    def body(flat: list[Any]) -> None:
        axes = [tirx.Var(name, "int32") for name in ("image", "channel", "line", "column")]
        simplify = sym.Analyzer()
        for axis, extent in zip(axes, extents, strict=True):
            simplify.bind(axis, ir.Range(0, extent))
        memory = Memory(params, flat, simplify)
        epilogue = Epilogue(block, output.writes[0].source, memory, axes, axes)
        vectors = epilogue.in_vectors(out_w, m)

        def tile_of(at: tirx.Expr) -> None:
            tile, channel = hold(tirx.floormod(at, tiles)), hold(tirx.floordiv(at, tiles))
            inside = tirx.floormod(tile, tiles_h * tiles_w)
            image = hold(tirx.floordiv(tile, tiles_h * tiles_w))
            y = hold(tirx.floordiv(inside, tiles_w) * m)
            x = hold(tirx.floormod(inside, tiles_w) * m)
            values, rows = (registers(n * size, "float32") for n in (size, m))
            for f in range(frequencies):
                values[f] = flat[own][f * channels * tiles + at]
            for i in range(m):
                for q in range(size):
                    rows[i * size + q] = _sum(
                        matrix[:, i], [values[p * size + q] for p in range(size)]
                    )
            accumulators = registers(m, "float32")
            for i in range(m):
                for j in range(m):
                    accumulators[j] = _sum(matrix[:, j], [rows[i * size + q] for q in range(size)])
                with _inside(y + i < out_h, i > 0 and not divides(m, out_h)):
                    if vectors:
                        epilogue.write_vector(
                            (image, channel, y + i, x), lambda lane: accumulators[lane], m
                        )
                        continue
                    for j in range(m):
                        with _inside(x + j < out_w, j > 0 and not divides(m, out_w)):
                            epilogue.write((image, channel, y + i, x + j), accumulators[j])

        each(spec, total([channels, tiles]), tile_of)

    return kernel_of(func, [], body)
