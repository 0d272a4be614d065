"""Choice of a convolution's algorithm and knobs on a CPU."""

from __future__ import annotations

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.blocked import filled, input_block
from tvm_edge.schedules.conv_config import ConfigSpace, ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.blocked_knobs import Tile, candidates, touched
from tvm_edge.schedules.cpu.space_int8 import choose_int8, int8_configs
from tvm_edge.schedules.knobs import knobs_as_text
from tvm_edge.schedules.pairs import multiplies_pairs
from tvm_edge.schedules.taps import reaches, read_reaches
from tvm_edge.schedules.winograd import winograd_applies

__all__ = [
    "block_sizes",
    "blocked_config",
    "choose_config",
    "config_space",
    "direct_tile",
    "product_tile",
]

_MIN_BLOCK = 4


def block_sizes(spec: DeviceSpec, dtype: str = "float32") -> tuple[int, ...]:
    """Channels in a block: a vector register, half a register and two of them."""
    lanes = spec.lanes(2 if dtype == "float16" else 4)
    return tuple(size for size in (lanes, lanes // 2, 2 * lanes) if size >= _MIN_BLOCK)


def config_space(workload: ConvWorkload, spec: DeviceSpec) -> ConfigSpace:
    """Every configuration of a convolution: plain, in blocks of several sizes, Winograd.

    Blocks are a vector register, half a register and two of them (NCHW16c, NCHW8c and NCHW32c with
    AVX-512), where the channels fill them. For int8 they have one size
    (:mod:`tvm_edge.schedules.cpu.space_int8`).
    """
    if workload.is_bytes:
        return ConfigSpace(workload, tuple(int8_configs(workload, spec)))
    first = choose_config(workload, spec)
    found: list[ConvConfig] = []
    for block in block_sizes(spec):
        depth = input_block(workload, block)
        if not depth:
            continue
        if workload.depthwise:
            found.append(ConvConfig("direct", block))
            continue
        tile = direct_tile(workload, block, depth)
        found += [ConvConfig("direct", block, 0, knobs_as_text(k)) for k in candidates(tile, spec)]
        if winograd_applies(workload) and depth > 1:
            for m in (2, 4):
                knobs = candidates(product_tile(workload, block, m), spec)
                found += [ConvConfig("winograd", block, m, knobs_as_text(k)) for k in knobs]
    found.append(ConvConfig("plain"))
    # The heuristic leaves the knobs to the schedule, which takes the first of its kind.
    found.sort(key=lambda c: (c.algorithm, c.block, c.m) != (first.algorithm, first.block, first.m))
    return ConfigSpace(workload, tuple(found))


def choose_config(workload: ConvWorkload, spec: DeviceSpec, *, winograd: bool = True) -> ConvConfig:
    """The algorithm with the least cost, knobs left to the schedule; maybe not `winograd`.

    The cost is counted in multiply-adds for a pair of an input and an output channel: those of the
    products, those of the transforms shared by the channels, and the time to read the filters once
    from memory, which decides for small images.
    """
    if workload.is_bytes:
        return choose_int8(workload, spec)
    halves = workload.dtype == "float16"
    sizes = (spec.lanes(2), spec.lanes()) if halves else (spec.lanes(),)
    block = next((size for size in sizes if input_block(workload, size)), 0)
    if not block:
        return ConvConfig("plain")
    if not winograd or not winograd_applies(workload) or workload.channels < block:
        return ConvConfig("direct", block)
    if input_block(workload, block) < block:
        return ConvConfig("direct", block)
    lines, columns = workload.output
    # Multiply-adds in the time in which one element comes from memory.
    read = spec.peak_gflops / 2 / (max(spec.bandwidth_gbs, 1e-3) / 4)
    best, best_cost = 0, workload.batch * 9 * lines * columns + 9 * read
    # Transforms are float32: as many products of float16, or of pairs, take half the time.
    own = 48 if halves or multiplies_pairs(workload, spec) else 24
    transforms = own * (1 / workload.channels + 1 / filled(workload.filters, block))
    for m in (2, 4):
        tiles = workload.batch * -(-lines // m) * -(-columns // m)
        cost = (m + 2) ** 2 * (tiles * (1 + transforms) + read)
        if cost < best_cost:
            best, best_cost = m, cost
    return ConvConfig("winograd", block, best) if best else ConvConfig("direct", block)


def blocked_config(workload: ConvWorkload, spec: DeviceSpec) -> ConvConfig | None:
    """A direct convolution in the first blocks that the channels fill; ``None`` if they fill none.

    For images of open size, of which plain ones have no kernels in vectors.
    """
    sizes = (block for block in block_sizes(spec, workload.dtype) if input_block(workload, block))
    return next((ConvConfig("direct", block) for block in sizes), None)


def direct_tile(workload: ConvWorkload, block: int, depth: int) -> Tile:
    """Sizes of a direct convolution for its knobs; `depth` channels are a block of its image."""
    lines, columns = workload.output
    window = workload.kernel[0] * workload.kernel[1]
    channels = filled(workload.channels // workload.groups, depth)
    filters = filled(workload.filters, block)
    reach = reaches(workload)
    top, left, bottom, right = workload.padding
    above = 0 if reach else top + bottom  # lines beyond the image are skipped then
    image = 4 * channels * workload.groups
    image *= (workload.height + above) * (workload.width + left + right)
    return Tile(
        outer=workload.batch,
        blocks=filters // block,
        lines=lines,
        columns=columns,
        steps=channels * window,
        window=workload.kernel,
        strides=workload.strides,
        image_bytes=touched(image, workload.kernel, workload.strides),
        filter_bytes=_stored(workload) * filters * channels * window,
        lanes=block,
        element=_stored(workload),
        padded=any(workload.padding),
        reach=read_reaches(reach) if reach else None,
        image=(workload.height, workload.width) if reach else (0, 0),
        scalars=depth == 1,
    )


def product_tile(workload: ConvWorkload, block: int, m: int) -> Tile:
    """Sizes of the products of a Winograd convolution for their knobs."""
    lines, columns = workload.output
    tiles = workload.batch * -(-lines // m) * -(-columns // m)
    channels, filters = filled(workload.channels, block), filled(workload.filters, block)
    return Tile(
        outer=(m + 2) ** 2,
        blocks=filters // block,
        lines=1,
        columns=tiles,
        steps=channels,
        window=(1, 1),
        strides=(1, 1),
        image_bytes=4 * channels * tiles,
        filter_bytes=_stored(workload) * filters * channels,
        lanes=block,
        element=_stored(workload),
        padded=False,
        tile_lines=0 if lines % m or columns % m else workload.batch * lines // m,
    )


def _stored(workload: ConvWorkload) -> int:
    """Bytes of a weight."""
    return 2 if workload.dtype == "float16" else 4
