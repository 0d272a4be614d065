"""ROI operators on a CPU: channels side by side in vectors.

Elements of a bin are anywhere in a map, and at the same places in each channel. So maps are first
rewritten with blocks of channels innermost. Then the cores share the regions. A core lists the taps
of a region's rows and columns of bins, and adds up vectors of channels by these lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.emit import Kernel, function, hold, in_pieces, register, registers, when
from tvm_edge.schedules.vision.roi_bins import Axis, PointBins, Tap
from tvm_edge.schedules.vision.roi_operation import Maps, Operation

__all__ = ["pool_channels"]

# Channels of a block: some vectors of any CPU, which share the cost of finding an element.
_LANES = 64
_FEWEST_LANES = 16

# Columns of a map that are rewritten together: a cache line.
_COLUMNS = 16

# Pixels rewritten in the time of collecting a bin from channels that lie apart.
_REWRITTEN_FOR_A_BIN = 8

# Tasks of a core, so that late cores do not hold up the others.
_TASKS = 4


def pool_channels(maps: Maps, operation: Operation, spec: DeviceSpec) -> Kernel:
    """Build :func:`tvm_edge.schedules.vision.roi.roi_align`'s kernel, for any number of regions."""
    batch, channels, height, width = maps.shape
    rows, columns, kind = operation.rows.bins, operation.columns.bins, operation.kind
    rewritten = _is_worth_rewriting(maps, rows * columns)
    lanes = min(_LANES, -(-channels // _FEWEST_LANES) * _FEWEST_LANES) if rewritten else 1
    blocks = -(-channels // lanes)
    shape = [maps.regions, channels, rows, columns]
    size = [batch * blocks * height * width * lanes]
    groups = _groups(maps.regions, blocks, spec)
    each_group = -(-blocks // groups)

    def rewrite(data: Any, blocked: Any) -> None:
        with T.parallel(0, batch * blocks * height) as at:
            y = hold(tirx.floormod(at, height))
            block = hold(tirx.floormod(tirx.floordiv(at, height), blocks))
            picture = hold(tirx.floordiv(at, height * blocks))

            def tile(first: Any, size: int) -> None:
                with T.serial(0, lanes) as lane:
                    channel = hold(tirx.min(block * lanes + lane, channels - 1))
                    with T.serial(0, size) as x:
                        value = data[picture, channel, y, first + x]
                        blocked[(at * width + first + x) * lanes + lane] = value.astype(kind)

            # The part that some columns write stays in the nearest cache until it is complete.
            in_pieces(width, _COLUMNS, tile)

    def body(data: Any, *tensors: Any) -> None:
        if rewritten:
            *regions, result, blocked = tensors
            rewrite(data, blocked)
        else:
            *regions, result = tensors
            blocked = T.buffer_proxy(T.decl_buffer(size, maps.dtype, data.data))
        with T.parallel(0, maps.regions * groups) as task:
            region, group = hold(tirx.floordiv(task, groups)), tirx.floormod(task, groups)
            picture = maps.picture(regions, region)
            x1, y1, x2, y2 = maps.corners(regions, region)
            found = (
                operation.rows.of(y1, y2, height, kind),
                operation.columns.of(x1, x2, width, kind),
            )
            factor = hold(operation.factor(*found))
            ys, xs = (_listed(axis, operation) for axis in found)
            line = T.buffer_proxy(T.decl_buffer([columns * lanes], kind))
            with T.serial(0, each_group) as number:
                block = hold(group * each_group + number)
                with when(block < blocks), T.serial(0, rows) as bin_y:
                    first = hold((picture * blocks + block) * height)
                    with T.serial(0, columns) as bin_x:
                        accumulators = registers(lanes, kind)
                        start = hold(operation.start(ys, xs, bin_y, bin_x))
                        with T.vectorized(0, lanes) as lane:
                            accumulators[lane] = start

                        def tap(
                            y: Any,
                            x: Any,
                            weight: Any,
                            accumulators: Any = accumulators,
                            first: Any = first,
                        ) -> None:
                            at = hold(((first + y) * width + x) * lanes)
                            own = hold(weight)
                            with T.vectorized(0, lanes) as lane:
                                value = blocked[at + lane].astype(kind)
                                accumulators[lane] = operation.combine(
                                    accumulators[lane], own, value
                                )

                        operation.visit(ys, xs, (bin_y, bin_x), tap)
                        with T.vectorized(0, lanes) as lane:
                            line[bin_x * lanes + lane] = accumulators[lane] * factor
                    last = tirx.min(lanes, channels - block * lanes)
                    with T.serial(0, last) as lane, T.serial(0, columns) as bin_x:
                        value = line[bin_x * lanes + lane].astype(maps.dtype)
                        result[region, block * lanes + lane, bin_y, bin_x] = value

    workspace = [(size, kind)] if rewritten else []
    return function(maps.inputs, [(shape, maps.dtype), *workspace], body)


def _is_worth_rewriting(maps: Maps, bins: int) -> bool:
    """Return whether regions are so many that it is faster to have channels side by side."""
    batch, _, height, width = maps.shape
    if not isinstance(maps.regions, int):
        return True
    return batch * height * width < _REWRITTEN_FOR_A_BIN * maps.regions * bins


def _groups(regions: Any, blocks: int, spec: DeviceSpec) -> int:
    """Count the parts that a region's channels are divided into; each lists its taps again."""
    if not isinstance(regions, int):
        return 1
    return min(blocks, -(-_TASKS * max(spec.cores, 1) // max(regions, 1)))


@dataclass(frozen=True)
class _List:
    """Taps of an axis, found once.

    Attributes
    ----------
    ends : buffer
        Where in the list the taps of bin ``i`` begin and, at ``i + 1``, end.
    complete : buffer
        1 for bins of which all points are inside of the axis.
    pixels, weights : buffer
    """

    ends: Any
    complete: Any
    pixels: Any
    weights: Any

    def span(self, bin_: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        return hold(self.ends[bin_]), hold(self.ends[bin_ + 1] - self.ends[bin_])

    def taps(self, _bin: tirx.Expr, step: tirx.Expr) -> Sequence[Tap]:
        return [(hold(self.pixels[step]), hold(self.weights[step]))]

    def whole(self, bin_: tirx.Expr) -> tirx.Expr:
        return self.complete[bin_] > 0


def _listed(axis: Axis, operation: Operation) -> Axis:
    """List the taps of an axis of points; an axis of pixels is a list already."""
    if not isinstance(axis, PointBins):
        return axis
    rule, kind = axis.points, axis.kind
    room = 2 * rule.most(axis.size)
    found = _List(
        *(
            T.buffer_proxy(T.decl_buffer([size], dtype))
            for size, dtype in (
                (rule.bins + 1, "int32"),
                (rule.bins, "int32"),
                (room, "int32"),
                (room, kind),
            )
        )
    )
    length = register(tirx.const(0, "int32"))
    with T.serial(0, rule.bins) as bin_:
        begin = hold(length[0])
        found.ends[bin_] = begin
        found.complete[bin_] = axis.whole(bin_).astype("int32")
        first, count = axis.span(bin_)
        with T.serial(0, count) as i:
            taps = axis.taps(bin_, first + i)
            # Where coordinates are coarser than pixels there can be more points than fit.
            with when(length[0] + 2 <= room):
                if operation.reduction == "mean":
                    _add_weights(found, begin, length, taps)
                else:
                    _append(found, length, taps)
        found.ends[bin_ + 1] = length[0]
    return found


def _append(found: _List, length: Any, taps: Sequence[Tap]) -> None:
    for pixel, weight in taps:
        found.pixels[length[0]] = pixel
        found.weights[length[0]] = weight
        length[0] = length[0] + 1


def _add_weights(found: _List, begin: tirx.Expr, length: Any, taps: Sequence[Tap]) -> None:
    """Add the weights of neighbouring points: they share pixels, and a mean needs only the sum."""
    (low, low_weight), (_, high_weight) = taps
    end = hold(length[0])
    one_before, two_before = (hold(tirx.max(end - back, begin)) for back in (1, 2))
    with (
        when(low_weight + high_weight > 0),
        T.If(tirx.all(end > begin, found.pixels[two_before] == low)),
    ):
        with T.Then():
            found.weights[two_before] = found.weights[two_before] + low_weight
            found.weights[one_before] = found.weights[one_before] + high_weight
        with T.Else(), T.If(tirx.all(end > begin, found.pixels[one_before] == low)):
            with T.Then():
                found.weights[one_before] = found.weights[one_before] + low_weight
                _append(found, length, taps[1:])
            with T.Else():
                _append(found, length, taps)
