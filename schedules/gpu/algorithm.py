"""Choice of the algorithm of a convolution on a GPU, and of its tile."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tvm import te

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.blocked import filled
from tvm_edge.schedules.conv_config import ConfigSpace, ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.channel_blocks import (
    SIZES,
    BlockedReduction,
    image_block,
    tensors_in_blocks,
)
from tvm_edge.schedules.gpu.direct_conv import DirectConv
from tvm_edge.schedules.gpu.item_blocks import BlockedConv
from tvm_edge.schedules.gpu.item_space import cycles_of_items, first_items, possible_items
from tvm_edge.schedules.gpu.items import Items, items_apply
from tvm_edge.schedules.gpu.packed import can_pack, conv2d_tensors
from tvm_edge.schedules.gpu.product import Tile
from tvm_edge.schedules.gpu.product_tile import (
    choose_block_tile,
    choose_product_tile,
    choose_warp_tile,
    estimated_cycles,
    possible_block_tiles,
    ranked_tiles,
    streaming_cycles,
)
from tvm_edge.schedules.gpu.space_int8 import choose_int8, int8_configs
from tvm_edge.schedules.gpu.subgroup_tile import choose_sub_group_tile
from tvm_edge.schedules.gpu.tensor_space import on_tensor_cores, tensor_configs
from tvm_edge.schedules.knobs import knobs_as_text
from tvm_edge.schedules.winograd import winograd_applies

__all__ = [
    "as_product",
    "block_extents",
    "choose_config",
    "config_space",
    "item_cycles",
    "winograd_cycles",
]

# Bytes of a float32.
_BYTES = 4

# Limit of the transformed images in bytes: the largest of VGG's, in a batch of eight. Kernels
# have 32-bit indices, and device memory does not hold a multiple of all images.
_MOST_TRANSFORMED = 256 << 20

Extents = tuple[int, int, int, int]


def choose_config(
    workload: ConvWorkload, spec: DeviceSpec, precision: str = "float32", *, winograd: bool = True
) -> ConvConfig:
    """Return the algorithm with the lowest estimated latency, knobs left to the schedule.

    `precision` is what direct convolutions may multiply in. Of float32, Winograd's algorithm stays
    at that: its transforms would multiply the error of tf32 several times. `winograd` may exclude
    it, because its transformed images need a workspace.

    The estimates of :mod:`~tvm_edge.schedules.gpu.product_tile` weigh Winograd's fewer
    multiplications against two more kernels, the memory traffic of the transformed images, and
    larger filters. Sub-groups of Intel's GPUs come before both where they apply: these GPUs are
    fast with registers, and not with local memory (ICPP'19 §3.2.1). A convolution that gains
    nothing from local memory does without it. For int8 see
    :mod:`~tvm_edge.schedules.gpu.space_int8`.
    """
    if on_tensor_cores(workload, spec):
        configs = tensor_configs(workload, spec)
        return replace(next(c for c in configs if winograd or not c.m), knobs="")
    if workload.is_bytes:
        return choose_int8(workload, spec)
    sub_groups = choose_sub_group_tile(workload, spec) if not spec.on_cpu else None
    if sub_groups is not None:
        return ConvConfig("subgroup", knobs=knobs_as_text(sub_groups))
    if items_apply(workload, spec):
        return ConvConfig("items")
    if spec.local_memory_kind != "dedicated":
        return ConvConfig("plain")
    extents, window = as_product(workload)
    least = _product_cycles(extents, window, spec, precision)
    best = ConvConfig("plain" if least == float("inf") else "direct")
    for m in _winograd_tiles(workload) if winograd else ():
        cycles = winograd_cycles(workload, m, spec)
        if cycles < least:
            best, least = ConvConfig("winograd", m=m), cycles
    return best


def winograd_cycles(
    workload: ConvWorkload, m: int, spec: DeviceSpec, tile: Tile | None = None
) -> float:
    """Estimate the cycles of the three kernels, with products by `tile` or by the best tile."""
    frequencies, filters, tiles, channels = products = _winograd(workload, m)
    lines, columns = workload.output
    image = _BYTES * workload.batch * channels * workload.height * workload.width
    result = _BYTES * workload.batch * filters * lines * columns
    cycles = _product_cycles(products, 1, spec, tile=tile)
    cycles += streaming_cycles(image + _BYTES * frequencies * channels * tiles, spec)
    return cycles + streaming_cycles(result + _BYTES * frequencies * filters * tiles, spec)


def config_space(workload: ConvWorkload, spec: DeviceSpec, *, blocks: bool = False) -> ConfigSpace:
    """Return every configuration of a convolution.

    Direct convolutions and Winograd's products have tiles, on tensor cores too, which have no other
    algorithm. Without local memory there are tiles of
    work-items, and their work-groups. With `blocks` the configurations in channel blocks come last:
    they are chosen for whole networks.
    """
    if on_tensor_cores(workload, spec):
        return ConfigSpace(workload, tensor_configs(workload, spec))
    if workload.is_bytes:
        return ConfigSpace(workload, tuple(int8_configs(workload, spec)))
    first = choose_config(workload, spec)
    found = [first] if first.algorithm == "subgroup" else []
    found += [ConvConfig("items", knobs=knobs) for knobs in _items(workload, spec)]
    if spec.local_memory_kind == "dedicated":
        extents, window = as_product(workload)
        found += [ConvConfig("direct", knobs=k) for k in _ranked(extents, window, spec)]
        for m in _winograd_tiles(workload):
            products = _winograd(workload, m)
            found += [ConvConfig("winograd", m=m, knobs=k) for k in _ranked(products, 1, spec)]
    found.append(ConvConfig("plain"))
    # The heuristic leaves the knobs to the schedule, which uses the first of its kind.
    found.sort(key=lambda c: (c.algorithm, c.m) != (first.algorithm, first.m))
    for block in SIZES if blocks else ():
        found += _in_blocks(workload, block, spec)
    return ConfigSpace(workload, tuple(found))


@lru_cache(maxsize=256)
def _items(workload: ConvWorkload, spec: DeviceSpec) -> tuple[str, ...]:
    """Return the knobs of a convolution without local memory as text, the rule's own choice first.

    The rule reads the sizes off a kernel: this is the kernel that the operator becomes.
    """
    conv = _item_conv(workload, 0, spec) if items_apply(workload, spec) else None
    if conv is None:
        return ()
    return tuple(knobs_as_text(items) for items in possible_items(conv, spec))


@lru_cache(maxsize=512)
def _item_conv(workload: ConvWorkload, block: int, spec: DeviceSpec) -> DirectConv | None:
    """Analyze a convolution as the rules for those without local memory do."""
    if block:
        blocked = BlockedReduction.of(
            te.create_prim_func(tensors_in_blocks(workload, block), "int64")
        )
        return None if blocked is None else BlockedConv(blocked)
    packed = spec.local_memory_kind != "dedicated" and can_pack(workload)
    func = te.create_prim_func(conv2d_tensors(workload, packed=packed), "int64")
    conv = DirectConv.of(func)
    return conv if conv is not None and conv.suits(spec) else None


def item_cycles(workload: ConvWorkload, block: int, items: Items | None, spec: DeviceSpec) -> float:
    """Estimate the cycles without local memory, with the given knobs or those of the rules."""
    conv = _item_conv(workload, block, spec)
    if conv is None:
        return float("inf")
    return cycles_of_items(conv, items or first_items(conv, spec), spec)


@lru_cache(maxsize=512)
def _in_blocks(workload: ConvWorkload, block: int, spec: DeviceSpec) -> tuple[ConvConfig, ...]:
    """Return the configurations in channel blocks, by the rule that accepts the convolution."""
    if not image_block(workload, block):
        return ()
    if spec.local_memory_kind == "dedicated" and not workload.depthwise:
        extents, line = block_extents(workload, block)
        tile = choose_block_tile(extents, line, spec)
        if tile is not None:
            tiles = possible_block_tiles(extents, line, spec)
            ranked = sorted(tiles, key=lambda tile: estimated_cycles(tile, extents, spec))
            return tuple(ConvConfig("direct", block, knobs=knobs_as_text(t)) for t in ranked)
    conv = _item_conv(workload, block, spec)
    found = [] if conv is None else possible_items(conv, spec)
    return tuple(ConvConfig("items", block, knobs=knobs_as_text(items)) for items in found)


def block_extents(workload: ConvWorkload, block: int) -> tuple[Extents, int]:
    """Return a blocked convolution's extents as a product, and its reduction steps per line."""
    depth = image_block(workload, block)
    lines, columns = workload.output
    channels, rows = filled(workload.channels, depth), filled(workload.filters, block)
    window = workload.kernel[0] * workload.kernel[1]
    extents = (workload.batch, rows, lines * columns, channels * window)
    return extents, workload.kernel[1] * depth


def as_product(workload: ConvWorkload) -> tuple[Extents, int]:
    """Return batch, rows, columns and reduction length of the product, and its window."""
    lines, columns = workload.output
    window = workload.kernel[0] * workload.kernel[1]
    groups = workload.groups
    return (
        workload.batch * groups,
        workload.filters // groups,
        lines * columns,
        workload.channels // groups * window,
    ), window


def _winograd_tiles(workload: ConvWorkload) -> list[int]:
    """Return the sizes of Winograd tiles that a convolution may have."""
    if not winograd_applies(workload):
        return []
    most = _MOST_TRANSFORMED // _BYTES
    sizes = []
    for m in (2, 4):
        frequencies, filters, tiles, channels = _winograd(workload, m)
        if frequencies * tiles * max(filters, channels) <= most:
            sizes.append(m)
    return sizes


def _winograd(workload: ConvWorkload, m: int) -> Extents:
    """Return the extents of the products of Winograd's algorithm."""
    lines, columns = workload.output
    tiles = workload.batch * -(-lines // m) * -(-columns // m)
    return (m + 2) ** 2, workload.filters, tiles, workload.channels


def _ranked(extents: Extents, window: int, spec: DeviceSpec) -> list[str]:
    """Return tiles as text, the one with the lowest estimated latency first."""
    return [knobs_as_text(tile) for tile in ranked_tiles(extents, window, spec)]


def _product_cycles(
    extents: Extents,
    window: int,
    spec: DeviceSpec,
    precision: str = "float32",
    tile: Tile | None = None,
) -> float:
    """Estimate a tiled product that reads its filters once; infinite where it has no tile."""
    if precision == "tf32":
        tile = choose_warp_tile(extents, spec)
    tile = tile or choose_product_tile(extents, window, spec)
    if tile is None:
        return float("inf")
    batch, rows, _, reduction = extents
    filters = batch * rows * reduction if window == 1 else rows * reduction
    return max(estimated_cycles(tile, extents, spec), streaming_cycles(_BYTES * filters, spec))
