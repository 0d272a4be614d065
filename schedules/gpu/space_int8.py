"""What a search over convolutions of bytes may choose from on a GPU.

Images stay in NCHW and there is no other algorithm: knobs are all there is to choose. Where local
memory is on the chip these are tiles, elsewhere and of depthwise convolutions work-items and their
work-groups. The sizes that they are ranked by are read off the kernel, as its rule reads them.
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
    """The configuration without a search: knobs are left to the schedule."""
    return replace(int8_configs(workload, spec)[0], knobs="")


def int8_configs(workload: ConvWorkload, spec: DeviceSpec) -> list[ConvConfig]:
    """Every configuration of a convolution of bytes, the schedule's choice first.

    ``plain`` is the only one of those that no such rule takes: of few results, whose sums
    work-groups share.
    """
    return list(_configs(workload, spec))


@lru_cache(maxsize=256)
def _configs(workload: ConvWorkload, spec: DeviceSpec) -> tuple[ConvConfig, ...]:
    func = te.create_prim_func(int8_tensors(workload), "int64")
    # In the order of the rules: what tiles suit is no work-items'.
    tiles = _tiles(func, spec)
    if tiles:
        return tuple(ConvConfig("direct", knobs=text) for text in tiles)
    items = _items(func, spec)
    if items:
        return tuple(ConvConfig("items", knobs=text) for text in items)
    return (ConvConfig("plain"),)


def _tiles(func: tirx.PrimFunc, spec: DeviceSpec) -> list[str]:
    """Tiles in local memory as text, by estimated time."""
    source = Source.adding_up(func, "int32") if spec.local_memory_kind == "dedicated" else None
    if source is None:
        return []
    tiles = ranked_tiles(source.extents, source.window, spec, source.together)
    return [knobs_as_text(tile) for tile in tiles]


def _items(func: tirx.PrimFunc, spec: DeviceSpec) -> list[str]:
    """Work-items and their groups as text, by estimated time behind the rule's own."""
    conv = DirectConv.of(func, "int32")
    if conv is None or not conv.suits(spec):
        return []
    return [knobs_as_text(items) for items in possible_items(conv, spec)]
