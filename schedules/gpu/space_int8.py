"""Search space of int8 convolutions on a GPU.

Images stay in NCHW and there is no other algorithm: only the knobs are a choice. Where local memory
is on the chip the knobs are tiles. Elsewhere, and for depthwise convolutions, they are work-items
and work-groups. The ranking reads sizes off the kernel, as its rule reads them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tvm import te, tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.conv2d_int8 import int8_tensors
from tvm_edge.schedules.gpu.direct_conv import DirectConv
from tvm_edge.schedules.gpu.item_space import possible_items
from tvm_edge.schedules.gpu.product_tile import ranked_tiles
from tvm_edge.schedules.gpu.tiled import Source
from tvm_edge.schedules.knobs import knobs_as_text

__all__ = ["choose_int8", "int8_configs"]


def choose_int8(workload: ConvWorkload, spec: DeviceSpec) -> ConvConfig:
    """Return the configuration without a search: knobs are left to the schedule."""
    return replace(int8_configs(workload, spec)[0], knobs="")


def int8_configs(workload: ConvWorkload, spec: DeviceSpec) -> list[ConvConfig]:
    """Return every configuration of an int8 convolution, the schedule's choice first.

    ``plain`` is the only one where no such rule applies: with few results, whose reductions
    work-groups share.
    """
    return list(_configs(workload, spec))


@lru_cache(maxsize=256)
def _configs(workload: ConvWorkload, spec: DeviceSpec) -> tuple[ConvConfig, ...]:
    func = te.create_prim_func(int8_tensors(workload), "int64")
    # In the order of the rules: a convolution that suits tiles has no knobs of work-items.
    tiles = _tiles(func, spec)
    if tiles:
        return tuple(ConvConfig("direct", knobs=text) for text in tiles)
    items = _items(func, spec)
    if items:
        return tuple(ConvConfig("items", knobs=text) for text in items)
    return (ConvConfig("plain"),)


def _tiles(func: tirx.PrimFunc, spec: DeviceSpec) -> list[str]:
    """Return tiles in local memory as text, by estimated latency."""
    source = Source.adding_up(func, "int32") if spec.local_memory_kind == "dedicated" else None
    if source is None:
        return []
    tiles = ranked_tiles(source.extents, source.window, spec, source.together)
    return [knobs_as_text(tile) for tile in tiles]


def _items(func: tirx.PrimFunc, spec: DeviceSpec) -> list[str]:
    """Return work-items and work-groups as text, the rule's own first, then by latency."""
    conv = DirectConv.of(func, "int32")
    if conv is None or not conv.suits(spec):
        return []
    return [knobs_as_text(items) for items in possible_items(conv, spec)]
