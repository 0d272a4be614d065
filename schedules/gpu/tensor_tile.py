"""Tiles of convolutions on tensor cores: the knobs, the legal ones, and the rule's choice."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache

from tvm_edge.hardware import DeviceSpec
from tvm_edge.hardware.tensor_cores import TensorCores
from tvm_edge.schedules.gpu.cycles import ALUS, REGISTERS
from tvm_edge.schedules.gpu.tensor_conv import TensorConv
from tvm_edge.schedules.gpu.tensor_patch import patch_units

__all__ = [
    "UNIT_BYTES",
    "TensorTile",
    "choose_tensor_tile",
    "convolution_cycles",
    "pass_cycles",
    "possible_tensor_tiles",
    "suits",
]

UNIT_BYTES = 16
"""Bytes of the channels of a block of a pixel, of whatever type."""


@dataclass(frozen=True)
class TensorTile:
    """Division of a convolution among work-groups and warps.

    Attributes
    ----------
    rows, columns : int
        Filters and pixels of a work-group.
    down, beside : int
        Pieces of a warp: 16 filters, and 8 pixels.
    warps : int
        Warps that share the reduction of the same results.
    depth : int
        Units of a step along the reduction.
    stages : int
        Steps in local memory.
    cached : int
        What goes through the L1 cache: nothing, images, or images and filters.
    patch : int
        Columns of the patch of the result that the pixels are; 0: pixels in order.
    parts : int
        Work-groups that share the reduction of a tile.
    """

    rows: int
    columns: int
    down: int
    beside: int
    warps: int
    depth: int
    stages: int
    cached: int = 0
    patch: int = 0
    parts: int = 1

    @property
    def numbers(self) -> tuple[int, ...]:
        """Arguments of the kernel's template: all but the parts."""
        return tuple(getattr(self, each.name) for each in fields(self)[:-1])

    @property
    def share(self) -> int:
        """Warps that have results of their own."""
        return self.rows // (self.down * 16) * (self.columns // (self.beside * 8))

    @property
    def items(self) -> int:
        """Work-items of a work-group."""
        return 32 * self.share * self.warps

    def local_bytes(self, conv: TensorConv) -> int:
        """Return the local memory of a work-group."""
        staged = self.depth * (self.rows + (0 if self.patch else self.columns)) * self.stages
        before = 0
        if self.patch:
            _, places = patch_units(conv, self.columns // self.patch, self.patch)
            before = self.own_blocks(conv) * places
        return max(16 * (before + staged), 4 * (self.warps - 1) * self.rows * self.columns)

    def registers(self, cores: TensorCores) -> int:
        """Estimate the registers of a work-item: accumulators, two sets of operands, the rest."""
        own = self.down * self.beside * 4 + 2 * (4 * self.down + 2 * self.beside)
        held = 0  # units of the next step
        if not cores.async_copies:
            held = sum(-(-self.depth * side // self.items) for side in (self.rows, self.columns))
        return own + 4 * held + _OTHER_REGISTERS

    def steps(self, conv: TensorConv) -> int:
        """Count the steps of a work-group. Of a patch each is one tap."""
        if self.patch:
            return self.own_blocks(conv) // self.depth * conv.taps
        return -(-conv.units // (self.depth * self.parts))

    def own_blocks(self, conv: TensorConv) -> int:
        """Count the blocks of the image that a work-group of a patch has in local memory."""
        return -(-conv.blocks // (self.depth * self.parts)) * self.depth

    def whole(self, conv: TensorConv) -> bool:
        """Return whether every unit of every step exists."""
        return self.steps(conv) * self.depth * self.parts == conv.units

    def across(self, conv: TensorConv) -> int:
        """Count the tiles of the pixels."""
        if not self.patch:
            return -(-conv.pixels // self.columns)
        lines = self.columns // self.patch
        return conv.batch * -(-conv.lines // lines) * -(-conv.columns // self.patch)


_PARTS = (1, 2, 4, 8, 16)
# Columns of patches; and the pieces of a warp that shares the reduction of one, at most.
_PATCHES, _FEW_PIECES = (4, 7, 8, 14, 16, 28), 8
_MOST_WORKSPACE = 32 << 20  # bytes

# Of a work-item, beside accumulators and operands; and the most there are.
_OTHER_REGISTERS, _MOST_REGISTERS = 50, 255

# Cycles: of a launch, of a work-group until its first step, at least of a step, of a step anyway;
# of a piece (16 by 8 by 16 products) on all tensor cores, and at least on those of its warp; of 128
# bytes of shared memory; of 16 bytes from the L2 cache; of a result.
_LAUNCH, _START, _LATENCY, _STEP = 4270.0, 958.0, 241.0, 28.0
_PIECE, _OWN_PIECE, _LINE, _UNIT, _RESULT = 1.77, 6.9, 1.12, 0.405, 0.055

# Cycles of where a unit of pixels in order is, and whether that is inside the image: where all of a
# step are of one tap, and where each has to find its own. Fitted to 370 timings of 50 convolutions
# of float16 and int8 on 8 multiprocessors of an H200, patches among them.
_ADDRESS, _ADDRESS_APART = 0.07, 0.25

# How much longer a step of two stages takes, as one step is copied while one is multiplied: where a
# core has several work-groups, and where nothing else runs meanwhile. How much of what a work-group
# does before its first step and after the last one is beside other work-groups' steps. Cycles of a
# partial sum that a warp hands over to the first one.
# Fitted to 252 timings of 18 convolutions of 3x3 on 8, 16 and 132 multiprocessors of an H200.
_TWO_STAGES, _TWO_STAGES_ALONE, _HIDDEN, _HANDED_OVER = 1.05, 1.2, 0.3, 0.03

# Of a transform of Winograd's algorithm, fitted to 120 convolutions by it on 8, 16 and 132
# multiprocessors of an H200: of its launch, and of a unit that it moves.
_PASS, _PASSED_UNIT = 3270.0, 0.319

_SHAPES = (
    # rows, columns, down, beside, warps, depth, stages
    (16, 8, 1, 1, 4, 16, 4),
    (32, 8, 2, 1, 4, 16, 4),
    (64, 8, 4, 1, 4, 16, 3),
    (32, 32, 2, 2, 2, 8, 4),
    (128, 112, 4, 7, 1, 8, 3),
    (128, 112, 4, 7, 1, 4, 3),
    (128, 56, 4, 7, 2, 8, 3),
    (64, 64, 4, 4, 1, 4, 4),
    (64, 32, 2, 2, 1, 8, 4),
    (32, 64, 2, 2, 1, 8, 4),
    (64, 32, 4, 2, 2, 8, 4),
    (32, 32, 2, 4, 4, 16, 3),
    (256, 112, 4, 7, 1, 4, 3),
    (128, 56, 4, 7, 1, 8, 3),
    (64, 56, 4, 7, 4, 8, 4),
    (128, 56, 4, 7, 2, 4, 4),
    (32, 128, 2, 4, 1, 4, 4),
    (32, 64, 2, 4, 2, 8, 4),
    (64, 64, 4, 4, 1, 8, 3),
    (64, 128, 4, 4, 1, 8, 3),
    (64, 128, 4, 8, 1, 4, 4),
    (64, 112, 4, 7, 1, 4, 4),
    (64, 64, 4, 4, 2, 8, 3),
    (64, 24, 4, 3, 4, 8, 4),
    (64, 128, 4, 4, 1, 4, 4),
    (128, 64, 4, 4, 1, 4, 4),
    (128, 128, 4, 8, 1, 8, 3),
    (256, 64, 4, 8, 1, 4, 3),
    (32, 128, 2, 4, 1, 2, 4),
    (32, 256, 2, 8, 1, 2, 4),
    (16, 256, 1, 8, 1, 2, 4),
    (96, 128, 2, 8, 1, 4, 3),
    (128, 32, 4, 4, 4, 8, 4),
    (64, 32, 4, 4, 4, 8, 4),
    (64, 256, 4, 8, 1, 4, 3),
    (64, 112, 4, 7, 2, 8, 3),
    (16, 64, 1, 4, 2, 8, 4),
    (64, 64, 4, 2, 1, 4, 4),
    (64, 128, 4, 2, 1, 4, 3),
    (128, 64, 4, 2, 1, 4, 3),
    (32, 128, 2, 2, 1, 4, 3),
    (128, 128, 4, 4, 1, 4, 3),
    (64, 32, 4, 1, 1, 4, 4),
    (256, 112, 4, 7, 1, 8, 2),
    (128, 112, 4, 7, 1, 8, 2),
    (64, 224, 4, 7, 1, 8, 2),
    (256, 56, 4, 7, 1, 8, 2),
    (128, 56, 4, 7, 4, 8, 3),
)
"""Those that were among the fastest four of some convolution on 8, 16 or 132 multiprocessors.

The last five are the fastest of 234 tiles of nine 3x3 convolutions of vgg19 and resnet50 on 8 or
14 multiprocessors of an H200: of few stages, each of them long.
"""

_SHAPES_OF_TWO = tuple(dict.fromkeys((*shape[:-1], 2) for shape in _SHAPES))
"""For copies through registers. Not measured on a GPU that has no others."""


def suits(tile: TensorTile, conv: TensorConv, spec: DeviceSpec) -> bool:
    """Return whether a device runs a convolution by a tile."""
    cores = spec.tensor_cores
    assert cores is not None, "callers ask for them first"
    staged = cores.async_copies or (
        tile.stages == 2 and tile.cached == 0 and tile.registers(cores) <= _MOST_REGISTERS
    )
    return (
        staged
        and conv.filters % tile.rows == 0
        and tile.down * 16 <= conv.stack
        and tile.down in (1, 2, 4)
        and tile.rows % (tile.down * 16) == 0
        and tile.columns % (tile.beside * 8) == 0
        and tile.depth % (2 * tile.warps) == 0
        and tile.stages > 1
        and 1 <= tile.parts <= -(-conv.units // tile.depth)
        and 1 in (tile.parts, conv.products)
        and (not tile.patch or _suits_patch(tile, conv, cores))
        and tile.local_bytes(conv) <= cores.local_memory
        and tile.items <= spec.max_work_group_size
    )


def _suits_patch(tile: TensorTile, conv: TensorConv, cores: TensorCores) -> bool:
    return (
        cores.async_copies
        and conv.taps > 1
        and conv.stride_h == conv.stride_w == 1
        and tile.columns % tile.patch == 0
        and tile.parts <= -(-conv.blocks // tile.depth)
    )


@lru_cache(maxsize=512)
def possible_tensor_tiles(conv: TensorConv, spec: DeviceSpec) -> tuple[TensorTile, ...]:
    """Return the legal tiles, the one with the lowest estimated latency first."""
    found: list[TensorTile] = []

    def cycles(tile: TensorTile) -> float:
        return estimated_cycles(tile, conv, spec)

    # A memory transaction has 32 bytes, two pixels: of those that a stride skips the next tap has
    # use: up to a third faster on few channels. Elsewhere the L1 cache costs 3 to 7 %.
    copies = spec.tensor_cores is not None and spec.tensor_cores.async_copies
    cached = int(copies and conv.stride_w > 1 and conv.kernel_w > 1)
    for shape in _SHAPES if copies else _SHAPES_OF_TWO:
        for parts in _PARTS:
            tile = TensorTile(*shape, cached=cached, parts=parts)
            workspace = 4 * parts * conv.filters * conv.pixels
            if not suits(tile, conv, spec) or (parts > 1 and workspace > _MOST_WORKSPACE):
                break
            found.append(tile)
            # Warps of many accumulators that share a reduction took 1.2 to 2 times the estimate.
            if tile.warps == 1 or tile.down * tile.beside <= _FEW_PIECES:
                patches = (replace(tile, cached=0, patch=columns) for columns in _PATCHES)
                suitable = [each for each in patches if suits(each, conv, spec)]
                found += sorted(suitable, key=cycles)[:1]
    return tuple(sorted(found, key=cycles))


def choose_tensor_tile(conv: TensorConv, spec: DeviceSpec) -> TensorTile:
    """Return the legal tile with the lowest estimated latency."""
    return possible_tensor_tiles(conv, spec)[0]


def estimated_cycles(tile: TensorTile, conv: TensorConv, spec: DeviceSpec) -> float:
    """Estimate the cycles of the kernels.

    A core's work-groups share its tensor cores, its shared memory and its way to the L2 cache; of
    these the busiest counts. A step takes no less than its latency. The constants are fitted to
    1,800 timings of 50 convolutions on 8 and 16 multiprocessors of an H100: the tiles that they
    choose make resnet50's convolutions 2 % slower than the best ones, mobilenet_v2's 5 %.
    """
    cores, tensor_cores = max(spec.cores, 1), spec.tensor_cores
    assert tensor_cores is not None, "callers ask for them first"
    groups = conv.filters // tile.rows * tile.across(conv) * tile.parts
    groups *= conv.products
    own = -(-groups // cores)
    resident = min(_resident(tile, conv, tensor_cores), own)
    pieces = tile.depth / 2 * (tile.rows / 16) * (tile.columns / 8)
    of_warp = tile.depth / 2 / tile.warps * tile.down * tile.beside
    units = (tile.rows + (0 if tile.patch else tile.columns)) * tile.depth
    lines = units / 8 + tile.share * (tile.down * 4 + tile.beside * 2) * tile.depth / 2
    address = 0.0
    if conv.taps > 1 and not tile.patch:
        of_unit = _ADDRESS if conv.blocks % tile.depth == 0 else _ADDRESS_APART
        address = of_unit * tile.columns * tile.depth
    work = max(_PIECE * pieces, _LINE * lines, _UNIT * units) + address + _STEP
    step = max(_LATENCY + _OWN_PIECE * of_warp, resident * work)
    if tile.stages == 2 and tensor_cores.async_copies:
        step *= _TWO_STAGES if resident > 1 else _TWO_STAGES_ALONE
    before = 0.0
    result = _RESULT + (tile.warps - 1) * _HANDED_OVER
    if tile.patch:
        copied, _ = patch_units(conv, tile.columns // tile.patch, tile.patch)
        before = tile.own_blocks(conv) * copied * _UNIT
    around = _START + before + resident * result * tile.rows * tile.columns
    rounds = own / resident
    alone = 1 + (rounds - 1) * (1 - _HIDDEN if resident > 1 else 1)
    cycles = _LAUNCH + rounds * tile.steps(conv) * step + alone * around
    if tile.parts > 1:
        sums = (tile.parts + 1) * conv.filters * conv.pixels / 4
        cycles += _LAUNCH + sums * _UNIT / cores
    return cycles


def convolution_cycles(tile: TensorTile, conv: TensorConv, spec: DeviceSpec) -> float:
    """Estimate the cycles of the kernels, and no less than those of the memory they read from.

    Filters come from the device's memory, and what its L2 cache has no room for.
    """
    filters = conv.products * conv.units * conv.filters
    images = conv.batch * conv.products * conv.blocks * conv.height * conv.width
    results = conv.products * conv.filters // conv.lanes * conv.pixels
    memory = memory_cycles(UNIT_BYTES * filters + beyond_cache(images + results, spec), spec)
    reading = max(filters * _UNIT / max(spec.cores, 1), memory)
    return max(estimated_cycles(tile, conv, spec), _LAUNCH + reading)


def pass_cycles(units: float, spec: DeviceSpec) -> float:
    """Estimate the cycles of a kernel that moves units and calculates little."""
    moving = max(
        units * _PASSED_UNIT / max(spec.cores, 1), memory_cycles(beyond_cache(units, spec), spec)
    )
    return _PASS + moving


def beyond_cache(units: float, spec: DeviceSpec) -> float:
    """Return the bytes of `units` that the L2 cache has no room for."""
    return max(UNIT_BYTES * units - spec.l2_cache, 0.0)


def memory_cycles(nbytes: float, spec: DeviceSpec) -> float:
    """Return the cycles of a device's memory for `nbytes`; 0 where its bandwidth is not known."""
    if not spec.bandwidth_gbs or not spec.peak_gflops:
        return 0.0
    clock_ghz = spec.peak_gflops / (2 * max(spec.cores, 1) * (spec.alus or ALUS))
    return nbytes * clock_ghz / spec.bandwidth_gbs


def _resident(tile: TensorTile, conv: TensorConv, cores: TensorCores) -> int:
    """Work-groups that a core has at once."""
    by_registers = REGISTERS // (tile.items * min(tile.registers(cores), _MOST_REGISTERS))
    by_memory = cores.core_memory // (tile.local_bytes(conv) + 1024)
    return max(1, min(by_registers, cores.resident // tile.items, by_memory))
