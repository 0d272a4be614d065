"""Configurations of convolutions on tensor cores, in channel blocks of 16 bytes.

The type of a workload says whether it is one of them: ``float16``, ``int8``, or ``tf32`` of float32
that tensor cores may round. Their knobs are tiles. Depthwise convolutions have none. Those of
float16 may be by Winograd's algorithm, where the estimate expects it to be faster.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.blocked import fills
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.pixel_cells import as_cells
from tvm_edge.schedules.gpu.tensor_conv import BLOCKS, TensorConv, tensor_applies
from tvm_edge.schedules.gpu.tensor_tile import (
    TensorTile,
    choose_tensor_tile,
    convolution_cycles,
    pass_cycles,
    possible_tensor_tiles,
    suits,
)
from tvm_edge.schedules.gpu.tensor_winograd import TILE, products_of, units_of_transforms
from tvm_edge.schedules.knobs import knobs_as_text, read_knobs
from tvm_edge.schedules.winograd import winograd_applies

__all__ = [
    "on_tensor_cores",
    "tensor_block",
    "tensor_config",
    "tensor_configs",
    "tensor_cycles",
    "tensor_objection",
]

_STORED = {"float16": "float16", "int8": "int8", "tf32": "float32"}
"""Type of the image by that of the workload."""

_CACHED = (0, 1, 2)
"""Choices of what goes through the L1 cache: no estimate tells exactly, so a search tries all."""


def on_tensor_cores(workload: ConvWorkload, spec: DeviceSpec) -> bool:
    """Return whether a workload's kernel is in blocks that tensor cores multiply."""
    dtype = _STORED.get(workload.dtype)
    return dtype is not None and not tensor_objection(workload, dtype, spec)


def tensor_block(workload: ConvWorkload) -> int:
    """Return the channels in a block of such a workload."""
    return BLOCKS[_STORED[workload.dtype]]


def tensor_config(workload: ConvWorkload, dtype: str, spec: DeviceSpec) -> ConvConfig | None:
    """Return the algorithm of a convolution of images of `dtype`, ``None`` if there is none."""
    if tensor_objection(workload, dtype, spec):
        return None
    if workload.depthwise:
        return ConvConfig("window", BLOCKS[dtype])
    return min(_algorithms(workload, dtype), key=lambda own: tensor_cycles(workload, own, spec))


def _algorithms(workload: ConvWorkload, dtype: str) -> list[ConvConfig]:
    """Return the algorithms of a convolution that is not depthwise, tiles left to the schedule.

    Winograd's transforms would make the error of tf32 larger, and int8 has no room for sums.
    """
    found = [ConvConfig("tensor", BLOCKS[dtype])]
    if dtype == "float16" and winograd_applies(workload):
        found.append(ConvConfig("winograd", BLOCKS[dtype], TILE))
    return found


def tensor_cycles(workload: ConvWorkload, config: ConvConfig, spec: DeviceSpec) -> float:
    """Estimate the cycles of a convolution by an algorithm, by the tile of its knobs or the best.

    Of a first layer in cells of pixels, where it has them.
    """
    conv = _multiplied(workload, config)
    tile = read_knobs(TensorTile, config.knobs) if config.knobs else choose_tensor_tile(conv, spec)
    cycles = convolution_cycles(tile, conv, spec)
    if config.algorithm == "winograd":
        cycles += sum(pass_cycles(units, spec) for units in units_of_transforms(workload))
    return cycles


def _multiplied(workload: ConvWorkload, config: ConvConfig) -> TensorConv:
    """Return the product, or the products, that tensor cores multiply."""
    if config.algorithm == "winograd":
        return products_of(workload)
    dtype = next(dtype for dtype, lanes in BLOCKS.items() if lanes == config.block)
    return TensorConv.of(as_cells(workload, dtype) or workload, dtype)


def tensor_objection(workload: ConvWorkload, dtype: str, spec: DeviceSpec) -> str:
    """Return why a convolution is not in such blocks; empty if it is."""
    cores, block = spec.tensor_cores, BLOCKS.get(dtype)
    if cores is None or block is None or dtype not in cores.dtypes:
        return f"{spec.name} has no tensor cores for {dtype}"
    if workload.depthwise:
        few = f"{workload.channels} channels do not fill blocks of {block}"
        return "" if fills(workload.channels, block) else few
    if not tensor_applies(workload):
        return "kernels of tensor cores are for one group and windows of 32 taps at most"
    if not possible_tensor_tiles(TensorConv.of(workload, dtype), spec):
        items = spec.max_work_group_size
        return f"no tile of tensor cores fits work-groups of {items} items"
    return ""


@lru_cache(maxsize=256)
def tensor_configs(workload: ConvWorkload, spec: DeviceSpec) -> tuple[ConvConfig, ...]:
    """Return every configuration of a convolution on tensor cores, the estimate's choice first.

    Those of the algorithm that it chooses come before those of the other.
    """
    dtype = _STORED[workload.dtype]
    chosen = tensor_config(workload, dtype, spec)
    assert chosen is not None, "on_tensor_cores says whether there is one"
    if chosen.algorithm == "window":
        return (chosen,)
    found: list[ConvConfig] = []
    for config in sorted(_algorithms(workload, dtype), key=lambda own: own != chosen):
        conv = _multiplied(workload, config)
        tiles = possible_tensor_tiles(conv, spec)
        ways = [replace(tile, cached=c) for tile in tiles for c in (tile.cached, *_CACHED)]
        legal = [tile for tile in dict.fromkeys(ways) if suits(tile, conv, spec)]
        found += [replace(config, knobs=knobs_as_text(tile)) for tile in legal]
    return tuple(found)
