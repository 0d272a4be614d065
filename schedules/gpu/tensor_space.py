"""Configurations of convolutions on tensor cores, in channel blocks of 16 bytes.

The type of a workload says whether it is one of them: ``float16``, ``int8``, or ``tf32`` of float32
that tensor cores may round. Their knobs are tiles. Depthwise convolutions have none.
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
from tvm_edge.schedules.gpu.tensor_tile import possible_tensor_tiles
from tvm_edge.schedules.knobs import knobs_as_text

__all__ = [
    "on_tensor_cores",
    "tensor_block",
    "tensor_config",
    "tensor_configs",
    "tensor_objection",
]

_STORED = {"float16": "float16", "int8": "int8", "tf32": "float32"}
"""Type of the image by that of the workload."""

_CACHED = (0, 1, 2)
"""Choices of what goes through the L1 cache: no estimate tells, so a search tries all."""


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
    return ConvConfig("window" if workload.depthwise else "tensor", BLOCKS[dtype])


def tensor_objection(workload: ConvWorkload, dtype: str, spec: DeviceSpec) -> str:
    """Return why a convolution is not in such blocks; empty if it is."""
    block = BLOCKS.get(dtype)
    if not spec.tensor_cores or block is None:
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

    Of a first layer, tiles are those of its cells of pixels.
    """
    dtype = _STORED[workload.dtype]
    config = tensor_config(workload, dtype, spec)
    assert config is not None, "on_tensor_cores says whether there is one"
    if config.algorithm == "window":
        return (config,)
    conv = TensorConv.of(as_cells(workload, dtype) or workload, dtype)
    tiles = possible_tensor_tiles(conv, spec)
    ways = [replace(tile, cached=cached) for tile in tiles for cached in _CACHED]
    return tuple(replace(config, knobs=knobs_as_text(tile)) for tile in ways)
