"""Convolutions without local memory: each work-item keeps a tile of channels, lines and columns.

Mobile GPUs run these kernels best (ICPP'19, section 3.2.2, and the kernels of APSys'20). Mali's
local memory is main memory. A depthwise convolution shares nothing that would be worth a barrier
on any GPU. The grid has three axes, columns, lines and channels, so that a work-group is a choice
of its own (:mod:`tvm_edge.schedules.workgroup`).

A work-item reads an element once, even if several accumulators need it. Elements side by side are
read as vectors. A tile at the end of a line moves back into the image, so that its loads stay
inside. It stores only the results that the tile before it did not.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, sym, tirx

from tvm_edge.hardware import DeviceSpec
from tvm_edge.schedules.base import WORKSPACE, ScheduleRule
from tvm_edge.schedules.emit import Tensor, each, either, function, hold
from tvm_edge.schedules.float16 import as_stored
from tvm_edge.schedules.gpu.direct_conv import DirectConv
from tvm_edge.schedules.gpu.epilogue import Memory, as_vectors
from tvm_edge.schedules.gpu.item_space import legal_items
from tvm_edge.schedules.gpu.items import Items, ItemTile
from tvm_edge.schedules.gpu.write_direct import write_direct
from tvm_edge.schedules.gpu.written import buffers_of, kernel_of, tensors_of
from tvm_edge.schedules.open_lengths import length_of, total
from tvm_edge.schedules.workgroup import WorkGroup, choose_work_group, takes

__all__ = ["Direct", "direct_kernel", "tiled_kernel"]


class Direct(ScheduleRule):
    """Convolutions of two dimensions that gain nothing from local memory.

    These are depthwise ones on every GPU, and others where local memory is not on the chip.

    Parameters
    ----------
    name : str
    accumulator_dtype : {"float32", "int32"}
        Products are of float32 or float16, or of 8-bit numbers.
    """

    def __init__(self, name: str, accumulator_dtype: str) -> None:
        self.name, self._accumulator_dtype = name, accumulator_dtype

    def apply(self, func: tirx.PrimFunc, spec: DeviceSpec) -> tirx.PrimFunc | None:
        """Return the kernel, if `func` is one such convolution and its epilogue."""
        found = DirectConv.of(func, self._accumulator_dtype)
        if found is None:
            return None
        items = legal_items(found)
        return tiled_kernel(found, items, spec) if items is not None or found.suits(spec) else None


def tiled_kernel(conv: DirectConv, items: Items | None, spec: DeviceSpec) -> tirx.PrimFunc:
    """Return the kernel with the given knobs, or those of the rules."""
    tile = conv.choose_tile(spec) if items is None else items.tile
    problem = conv.problem(tile)
    # A tile keeps its size in smaller work-groups where the device does not accept the given ones.
    if items is not None and takes(problem, items.group, spec):
        return direct_kernel(conv, tile, items.group, spec)
    return direct_kernel(conv, tile, choose_work_group(problem, spec), spec)


def direct_kernel(
    conv: DirectConv, tile: ItemTile, group: WorkGroup | None, spec: DeviceSpec
) -> tirx.PrimFunc:
    """Write the function with loops for `tile` and work-groups `group`.

    Parameters
    ----------
    group : WorkGroup or None
        ``None`` leaves it to the call. The function then has three more int8 tensors before the
        result. Their lengths are the work-items of a work-group along x, y and z.
    """
    pad = conv.padding
    room: list[Tensor] = []
    if pad is not None:
        padded = pad.writes[0].source
        value = as_stored(pad.body.value)
        dtype = str(padded.dtype) if value is None else "float16"
        room = [([total(map(length_of, padded.shape))], dtype)]
    if group is None:
        return _free_kernel(conv, tile, room, spec)
    sizes = group.sizes

    def body(flat: list[Any]) -> None:
        if pad is not None:
            _write_padding(pad, buffers_of(conv.func), flat, spec)
        if conv.is_open and tile.lines * tile.columns > 1:
            fits = tirx.all(conv.lines >= tile.lines, conv.columns >= tile.columns)
            single = ItemTile(tile.channels, 1, 1)
            either(
                fits,
                lambda: write_direct(conv, tile, sizes, flat, spec),
                lambda: write_direct(conv, single, sizes, flat, spec),
            )
            return
        write_direct(conv, tile, sizes, flat, spec)

    return kernel_of(conv.func, room, body)


def _free_kernel(
    conv: DirectConv, tile: ItemTile, room: list[Tensor], spec: DeviceSpec
) -> tirx.PrimFunc:
    """Write the function whose call chooses the work-groups."""
    tensors = tensors_of(conv.func)
    free = [tirx.Var(f"items_{axis}", "int64") for axis in "xyz"]

    def body(*buffers: Any) -> None:
        before = len(tensors) - 1
        own = [*buffers[:before], *buffers[before + len(free) :]]
        flat = as_vectors([*tensors, *room], own)
        if conv.padding is not None:
            _write_padding(conv.padding, buffers_of(conv.func), flat, spec)
        write_direct(conv, tile, [tirx.Cast("int32", size) for size in free], flat, spec)

    given = [*tensors[:-1], *(([size], "int8") for size in free)]
    made = function(given, [tensors[-1], *room], body).func
    return made.with_attr(WORKSPACE, len(room))


def _write_padding(
    pad: s_tir.SBlock, params: list[tirx.Buffer], flat: list[Any], spec: DeviceSpec
) -> None:
    sizes = [length_of(v.dom.extent) for v in pad.iter_vars]

    def put(at: tirx.Expr) -> None:
        places, rest = [], at
        for size in reversed(sizes):
            places.append(hold(tirx.floormod(rest, size)))
            rest = tirx.floordiv(rest, size)
        simplify = sym.Analyzer()
        variables = [
            (v.var, place) for v, place in zip(pad.iter_vars, reversed(places), strict=True)
        ]
        memory = Memory(params, flat[: len(params)], simplify)
        stored = as_stored(pad.body.value)
        value = pad.body.value if stored is None else stored
        flat[-1][at] = memory.flattened(value, variables)

    each(spec, total(sizes), put)
