"""Search space of int8 convolutions on a CPU.

Images are in blocks of 16 channels, whatever the vector registers: knobs are all there is to
choose. The sizes that they are ranked by are those which the schedules read off the kernels.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.blocked import filled
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.blocked_knobs import Tile, candidates, stride_of, touched
from tvm_edge.schedules.cpu.dot_products import DOT_PRODUCTS
from tvm_edge.schedules.cpu.matrix_products import CHANNELS
from tvm_edge.schedules.cpu.window_knobs import WindowSize, window_candidates
from tvm_edge.schedules.int8 import (
    BLOCK,
    DOT,
    columns_beyond,
    image_block,
    window_shifts,
    window_step,
)
from tvm_edge.schedules.knobs import knobs_as_text

__all__ = ["choose_int8", "int8_configs", "tile_of", "window_of"]


def choose_int8(workload: ConvWorkload, spec: DeviceSpec) -> ConvConfig:
    """The configuration without a search: knobs are left to the schedule.

    Plain where `spec` has no instruction or the convolution no blocks.
    """
    has_kernel = spec.dot_product and image_block(workload)
    return ConvConfig("direct", BLOCK) if has_kernel else ConvConfig("plain")


def int8_configs(workload: ConvWorkload, spec: DeviceSpec) -> list[ConvConfig]:
    """Every configuration of an int8 convolution, the schedule's choice first."""
    first = choose_int8(workload, spec)
    if first.algorithm == "plain":
        return [first]
    if workload.depthwise:
        knobs = [knobs_as_text(k) for k in window_candidates(window_of(workload, spec), spec)]
    else:
        knobs = [knobs_as_text(k) for k in candidates(tile_of(workload, spec), spec)]
    return [replace(first, knobs=text) for text in knobs]


def tile_of(workload: ConvWorkload, spec: DeviceSpec) -> Tile:
    """The sizes of a dense or grouped convolution; a step is four products, of pairs 16."""
    block = image_block(workload)
    pairs = DOT_PRODUCTS[spec.dot_product].filter_group(workload) == CHANNELS
    lines, columns = workload.output
    height, width = _padded(workload)
    strides = (
        stride_of(height, lines, workload.kernel[0]),
        stride_of(width, columns, workload.kernel[1]),
    )
    own = filled(workload.channels // workload.groups, block)
    filters = filled(workload.filters, BLOCK)
    taps = workload.kernel[0] * workload.kernel[1]
    image = filled(workload.channels, block) * height * width
    return Tile(
        outer=workload.batch,
        blocks=filters // BLOCK,
        lines=lines,
        columns=columns,
        steps=own * taps // (BLOCK if pairs else DOT),
        window=workload.kernel,
        strides=strides,
        image_bytes=touched(image, workload.kernel, strides),
        filter_bytes=filters * own * taps,
        lanes=BLOCK,
        padded=any(workload.padding),
        element=1,
        pairs=pairs,
    )


def window_of(workload: ConvWorkload, spec: DeviceSpec) -> WindowSize:
    """The sizes of a depthwise convolution; a step is four columns of a filter, or two."""
    group = DOT_PRODUCTS[spec.dot_product].filter_group(workload)
    taken = window_step(group)
    lines, columns = workload.output
    height, width = _padded(workload)
    steps = ceil(workload.kernel[1] / taken)
    beyond = columns_beyond(width, columns, workload.strides[1], steps * taken)
    blocks = filled(workload.channels, BLOCK) // BLOCK
    line = (width + beyond) * BLOCK
    return WindowSize(
        batch=workload.batch,
        blocks=blocks,
        lines=lines,
        columns=columns,
        lanes=BLOCK,
        window=(workload.kernel[0], steps),
        stride=stride_of(height, lines, workload.kernel[0]),
        line_bytes=line,
        image_bytes=workload.batch * blocks * height * line,
        padded=any(workload.padding) or beyond > 0,
        shifts=window_shifts(workload.kernel[1], workload.strides[1], group),
    )


def _padded(workload: ConvWorkload) -> tuple[int, int]:
    """Lines and columns of the image with its padding."""
    top, left, bottom, right = workload.padding
    return workload.height + top + bottom, workload.width + left + right
