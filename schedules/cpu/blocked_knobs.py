"""Knobs of convolutions in blocks of channels: register tiles and tasks, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.analysis import divisors
from tvm_edge.schedules.cpu.float16_runs import shuffles
from tvm_edge.schedules.cpu.matrix_products import PIXELS
from tvm_edge.schedules.cpu.overlap import small_tile
from tvm_edge.schedules.taps import LONGEST_TILE, Reach, useful_share

__all__ = [
    "Knobs",
    "Tile",
    "best_knobs",
    "candidates",
    "most_pixels",
    "seconds_of",
    "stride_of",
    "touched",
]

# Two multiply-adds start in a cycle, with a latency of four: fewer accumulators would wait.
_LATENCY = 8
# Instructions that load a vector in halves, each of which starts beside a multiply-add.
_IN_HALVES = 3
# Each block of filters is a stream of memory of its own: eight fall behind the prefetcher.
_MAX_BLOCKS = 4

# Lines of a window that LLVM unrolls.
_UNROLLED_LINES = 3
# Accumulators of products that smull adds up in 16 bits. More, or those of two blocks, LLVM spills.
_PAIRS, _PAIRS_IN_ORDER = 16, 12
# Vectors of pixels that stay in 16 registers.
_MOST_ELEMENTS = 9

Order = Literal["lines", "blocks", "fused"]


@dataclass(frozen=True)
class Knobs:
    """Knobs of a blocked convolution: its tiles and tasks.

    Attributes
    ----------
    lines, columns, blocks : int
        Pixels and blocks of output channels of a register tile.
    order : {"lines", "blocks", "fused"}
        What cores share out: pixels, each with all filters after another, or blocks of filters,
        each with all pixels. Of Winograd's algorithm lines of tiles as well, each from the image to
        the result, in place of the tasks of three stages.
    padding : {"task", "whole"}
        Pad the lines that a task reads, in it, or the image before all tasks.
    flat : bool
        Run through the pixels of an image as one line (1x1 kernels of stride one).
    """

    lines: int
    columns: int
    blocks: int
    order: Order
    padding: Literal["task", "whole"] = "whole"
    flat: bool = False


@dataclass(frozen=True)
class Tile:
    """The sizes that knobs are chosen by.

    Attributes
    ----------
    outer : int
        Independent problems: batch, or frequencies of Winograd's algorithm.
    blocks, lines, columns : int
        Blocks of output channels and pixels of one problem.
    steps : int
        Length of the reduction.
    window, strides : tuple of int
        Kernel size and strides along lines and columns.
    image_bytes, filter_bytes : int
        Of one problem; lines and columns of the image that no window touches do not count.
    lanes : int
        Output channels in a block.
    padded : bool
        Whether the image has to be padded.
    open_lines, open_columns : bool
        Whether only the run tells how many there are: the sizes are typical ones.
    reach : tuple of two Reach, optional
        Of lines and columns, where taps in the padding are skipped.
    image : tuple of int
        Lines and columns of the image then.
    widened : bool
        Whether filters are stored as float16.
    element : int
        Bytes of an element of a multiply-add's vectors.
    skips_channels : bool
        Whether steps are skipped whose channels only fill the last block of the image up: loops
        over lines and columns stay apart then.
    scalars : bool
        Whether channels of the image are read one by one: it has no vectors of them.
    tile_lines : int
        Of Winograd's algorithm: lines of tiles that stages can be fused over; 0 where they cannot.
    pairs : bool
        Whether instructions multiply two pixels of a line by two filters
        (:mod:`tvm_edge.schedules.cpu.matrix_products`).
    """

    outer: int
    blocks: int
    lines: int
    columns: int
    steps: int
    window: tuple[int, int]
    strides: tuple[int, int]
    image_bytes: int
    filter_bytes: int
    lanes: int
    padded: bool
    open_lines: bool = False
    open_columns: bool = False
    reach: tuple[Reach, Reach] | None = None
    image: tuple[int, int] = (0, 0)
    widened: bool = False
    element: int = 4
    skips_channels: bool = False
    scalars: bool = False
    tile_lines: int = 0
    pairs: bool = False

    def takes(self, knobs: Knobs) -> bool:
        """Return whether tiles can be made: of whole pairs, and with the padding that is stored."""
        if self.pairs:
            rest = (self.lines % knobs.lines, self.columns % knobs.columns, knobs.columns % PIXELS)
            return not any(rest) and not knobs.flat
        if self.reach is None:
            return True
        return knobs.lines == 1 and knobs.columns <= LONGEST_TILE and not knobs.flat

    def vectors(self, spec: DeviceSpec) -> int:
        """Vector registers of a block of output channels; products of bytes are of 32 bits."""
        return max(1, self.lanes // spec.lanes(4 if self.element == 1 else self.element))

    @property
    def flattens(self) -> bool:
        """Return whether lines can be fused with columns."""
        apart = self.open_lines or self.open_columns or self.skips_channels or self.pairs
        return not apart and self.window == (1, 1) and self.strides == (1, 1)


def candidates(size: Tile, spec: DeviceSpec) -> list[Knobs]:
    """Knobs that are legal for a convolution, best first by the model of :func:`_cost`."""
    shapes = [size]
    if size.flattens and size.lines > 1:
        shapes.append(replace(size, lines=1, columns=size.lines * size.columns))
    found: list[tuple[float, int, Knobs]] = []
    for flat, shape in enumerate(shapes):
        for knobs in _legal(shape, spec):
            cost = _cost(shape, knobs, spec)
            found.append((cost, len(found), replace(knobs, flat=True) if flat else knobs))
    return [knobs for _, _, knobs in sorted(found, key=lambda item: item[:2])]


def best_knobs(size: Tile, spec: DeviceSpec) -> Knobs:
    """The first of :func:`candidates`."""
    return candidates(size, spec)[0]


def seconds_of(size: Tile, knobs: Knobs, spec: DeviceSpec) -> float:
    """Latency of a convolution by the model that orders :func:`candidates`, in seconds."""
    if knobs.flat:
        size = replace(size, lines=1, columns=size.lines * size.columns)
    return _cost(size, knobs, spec) / (2e9 * _clock(spec))


def _legal(size: Tile, spec: DeviceSpec) -> Iterator[Knobs]:
    vectors = size.vectors(spec)
    one = size.element == 1 and spec.dot_product == "smull"
    for blocks in divisors(size.blocks, 1 if one else _MAX_BLOCKS):
        filters = blocks * vectors
        most = most_pixels(filters, spec, size.element)
        if most < 1 and filters > 1:
            continue
        for columns in range(1, min(max(most, 1), size.columns) + 1):
            if not _keeps_shared(columns, filters, size, spec):
                continue
            # Of pairs no tile is cut off.
            whole = (columns == size.columns or size.pairs) and not size.open_columns
            tall = range(1, min(max(most, 1) // columns, size.lines) + 1) if whole else [1]
            for lines in tall:
                if size.tile_lines and not size.columns // size.tile_lines % columns:
                    # TVM has no bounds of a tile that is cut off there.
                    yield Knobs(1, columns, blocks, "fused")
                for order in ("lines", "blocks"):
                    # Tasks of pixels are whole tiles: nothing of a parallel loop can be peeled.
                    pixels = size.lines == 1 and not size.open_lines
                    cut = size.columns % columns and not size.open_columns
                    if order == "lines" and pixels and cut:
                        continue
                    if order == "lines" and size.lines % lines and not size.open_lines:
                        continue
                    for padding in ("task", "whole") if size.padded else ("whole",):
                        if padding == "task" and order == "blocks":
                            continue  # every task would pad the whole image
                        knobs = Knobs(lines, columns, blocks, order, padding)
                        if size.takes(knobs):
                            yield knobs


def most_pixels(filters: int, spec: DeviceSpec, element: int = 4) -> int:
    """Return the most pixels of a tile of `filters` vectors that stays in registers.

    Beside the accumulators are the filters' vectors of a step and one broadcast element. NEON takes
    an element out of a vector that is loaded whole: each pixel has one, and with fewer than six
    registers for all else LLVM spills; eight let a core in order load the next step's, of numbers
    that are longer than a byte. Elements of 16 bits are those of the lower 16 registers,
    where no more than nine pixels stay.
    """
    if element == 1 and spec.dot_product == "smull":
        return (_PAIRS_IN_ORDER if spec.in_order else _PAIRS) // filters
    if spec.multiplies_by_element:
        beside = 8 if spec.in_order and element > 1 else 6
        most = (spec.vector_registers - beside) // (filters + 1)
        return min(most, _MOST_ELEMENTS) if element == 2 else most
    return (spec.vector_registers - filters - 1) // filters


def _keeps_shared(columns: int, filters: int, size: Tile, spec: DeviceSpec) -> bool:
    """Return whether pixels of a line that windows share stay in NEON's registers.

    Channels that are read one by one have a register for each pixel, and LLVM keeps it up to the
    last window that needs it. Windows of three lines it unrolls as well, and spills with fewer than
    four registers for all else. Of a core in order, and of 16 bits, tiles are smaller anyway.
    """
    spills = spec.multiplies_by_element and not spec.in_order and size.element == 4
    if not size.scalars or not spills or columns == 1:
        return True
    pixels = (columns - 1) * size.strides[1] + size.window[1]
    left = spec.vector_registers - columns * filters - filters - pixels
    return left >= (4 if size.window[0] <= _UNROLLED_LINES else 0)


def _fused_cost(size: Tile, knobs: Knobs, spec: DeviceSpec) -> float:
    """Cost where a core has lines of tiles, and reads all filters for each."""
    filters = knobs.blocks * size.vectors(spec)
    tiles = size.columns // size.tile_lines // knobs.columns * (size.blocks // knobs.blocks)
    lines = ceil(size.tile_lines / spec.cores)
    line = tiles * _tile_cost(knobs.columns, filters, size, spec)
    # From a cache that all of them fit, in order and ahead of their use: on an EPYC a byte takes a
    # half as long as one of the stages' where they come from memory at first, else a seventh.
    fits = size.outer * size.filter_bytes <= max(spec.l2_cache, spec.l3_cache)
    read = size.filter_bytes * _per_byte(spec) / (2 if fits else 1)
    return size.outer * lines * (line + read)


def _cost(size: Tile, knobs: Knobs, spec: DeviceSpec) -> float:
    """Time of the busiest core, in half cycles: one multiply-add of vectors each."""
    if knobs.order == "fused":
        return _fused_cost(size, knobs, spec)
    vectors = size.vectors(spec)
    filters = knobs.blocks * vectors
    if size.reach is not None:
        share = 1.0
        axes = zip((size.lines, size.columns), (1, knobs.columns), size.window, strict=True)
        for (length, tile, taps), reach, pixels in zip(axes, size.reach, size.image, strict=True):
            share *= useful_share(length, tile, taps, reach, pixels)
        size = replace(size, steps=ceil(share * size.steps), reach=None)
    full, rest = divmod(size.columns, knobs.columns)
    row = full * _tile_cost(knobs.lines * knobs.columns, filters, size, spec)
    if size.open_columns:
        left = _left_cost(rest, knobs, filters, size, spec)
        row += (left + _mean_left(knobs, filters, size, spec)) / 2
    elif rest:
        row += _tile_cost(knobs.lines * rest, filters, size, spec)
    line_tasks, lines_left = divmod(size.lines, knobs.lines)
    if lines_left and size.open_lines:
        line_tasks, lines_left = line_tasks + 1, 0
    if lines_left:  # the tile is as wide as the image, and a task has all lines
        row = line_tasks * row + _tile_cost(lines_left * size.columns, filters, size, spec)
        line_tasks = 1
    block_tasks = size.blocks // knobs.blocks
    if knobs.order == "lines" and size.lines == 1:
        line_tasks = full + bool(rest)
        row /= line_tasks
    tasks = size.outer * line_tasks * (1 if knobs.padding == "task" else block_tasks)
    busiest = ceil(tasks / spec.cores) / tasks * size.outer * line_tasks * block_tasks * row
    cache = max(spec.l2_cache, spec.l1_cache) // 2
    # Bytes that come from beyond a core's own caches.
    if knobs.order == "lines":
        reads = 1 if size.filter_bytes <= cache else ceil(line_tasks / spec.cores)
        traffic = size.filter_bytes * reads + size.image_bytes / spec.cores
    else:
        reads = 1 if size.image_bytes <= cache else ceil(block_tasks / spec.cores)
        traffic = size.filter_bytes / spec.cores + size.image_bytes * reads
    padding = 0.0
    if size.padded:
        copied = size.image_bytes / spec.simd_bytes / spec.cores
        if knobs.padding == "task":
            copied *= 1 + max(size.window[0] - size.strides[0], 0) / (knobs.lines * size.strides[0])
        else:
            # Written, and read again beyond the first cache; a parallel loop more.
            copied = 3 * copied + 2 * 1700 * _clock(spec)
        padding = size.outer * copied
    if size.tile_lines:
        # Images and results of all frequencies, which stages write and read.
        results = 4 * size.blocks * size.lanes * size.columns
        traffic += 2 * (size.image_bytes + results) / spec.cores
    return busiest + size.outer * traffic * _per_byte(spec) + padding


def _per_byte(spec: DeviceSpec) -> float:
    """Half cycles of a byte from memory: a quarter, the rest is read ahead of its use."""
    return 2 * _clock(spec) / max(spec.bandwidth_gbs / spec.cores, 1e-3) / 4


def _left_cost(left: int, knobs: Knobs, filters: int, size: Tile, spec: DeviceSpec) -> float:
    """Cost of the pixels that whole tiles leave of an open line, in small tiles."""
    small = small_tile(knobs.columns, filters)
    return ceil(left / small) * _tile_cost(small, filters, size, spec)


def _mean_left(knobs: Knobs, filters: int, size: Tile, spec: DeviceSpec) -> float:
    """Mean cost of what is left of lines of any length."""
    lefts = range(knobs.columns)
    return sum(_left_cost(left, knobs, filters, size, spec) for left in lefts) / knobs.columns


def _clock(spec: DeviceSpec) -> float:
    """Cycles per nanosecond, from the peak: two multiply-adds of vectors in a cycle."""
    return max(spec.peak_gflops / (spec.cores * spec.lanes() * 4), 1.0)


def _tile_cost(pixels: int, filters: int, size: Tile, spec: DeviceSpec) -> float:
    """Half cycles of a tile: its steps, then its accumulators are initialised and stored."""
    accumulators = pixels * filters
    # Measured: with two blocks and more all tiles that fit the registers reach the same speed;
    # with one block broadcasting the pixels takes longer than multiplying them.
    step = max(accumulators, 1.2 * pixels, _LATENCY) + 0.8
    if size.element == 1 and spec.dot_product == "smull":
        step = 3 * accumulators + 2 * pixels + filters / 2
    elif size.pairs:
        # A step is 16 channels: two instructions for each accumulator, four vectors of filters for
        # one of each pixel's accumulators, and a vector of each pixel, of which zips make two.
        step = max(2 * accumulators, _LATENCY) + (4 * filters + 2 * pixels) / 4
    elif spec.multiplies_by_element:
        # A vector of each pixel serves four steps. Loads count by the slots that they take.
        loads = filters + pixels / 4
        issued = _IN_HALVES * loads if spec.in_order and size.element == 4 else 0
        step = max(accumulators, issued, _LATENCY) + loads / 4
        if spec.in_order and size.element == 4 and filters < 3:
            step += 1  # counted by llvm-mca: vectors of pixels come too late
    elif size.element == 2 and spec.float16:
        step = max(accumulators + shuffles(pixels, filters), _LATENCY) + 0.8
    if size.widened:
        step += filters  # an instruction for each vector of them
    return size.steps * step + 6 * accumulators


def touched(nbytes: int, window: tuple[int, int], strides: tuple[int, int]) -> int:
    """The part of an image that windows read."""
    for size, stride in zip(window, strides, strict=True):
        nbytes = nbytes * min(size, stride) // stride
    return nbytes


def stride_of(size: int, outputs: int, window: int) -> int:
    """The stride that takes `outputs` windows out of a padded image; 1 for a single one."""
    return 1 if outputs == 1 else max(1, (size - window) // (outputs - 1))
