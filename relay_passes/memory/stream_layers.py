"""Convolutions whose weights are read in every run, instead of lying on the device.

Rallapalli et al., "Are Very Deep Neural Networks Feasible on Mobile Devices?", section 3, reads the
weights of fully connected layers part by part (:mod:`tvm_edge.relay_passes.memory.split_fc`). What
is left on a GPU then is the weights of convolutions. They go the same way, a layer at a time: while
one calculates, the weights of the next are read.

Runs on kernels that are not scheduled yet: weights are what kernels read, packed in blocks or
transformed for Winograd's algorithm, whatever the algorithm is. Convolutions with more weights than
half of the window were cut before (:mod:`tvm_edge.relay_passes.memory.split_conv`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import tvm
from tvm import relax, s_tir, tirx

from tvm_edge.relay_passes.ir.expressions import (
    KERNEL_CALLS,
    is_call,
    static_shape,
    with_bindings,
)
from tvm_edge.relay_passes.ir.locations import kernel_of
from tvm_edge.relay_passes.ir.vdevices import is_same, vdevice_of, vdevices_of
from tvm_edge.relay_passes.memory.stream_weights import streamed, streamed_constant
from tvm_edge.schedules.accesses import nodes_in

__all__ = ["LEAST_STREAMED", "StreamedKernels", "is_streamed_to", "stream_layers"]

LEAST_STREAMED = 1 << 20
"""Bytes of weights that are worth asking for: less is no matter for memory."""


@dataclass(frozen=True)
class StreamedKernels:
    """A module, and its kernels whose weights are streamed.

    Attributes
    ----------
    module : tvm.IRModule
    nbytes : dict of int to int
        By kernel the bytes of its weights.
    """

    module: tvm.IRModule
    nbytes: dict[int, int]


def is_streamed_to(mod: tvm.IRModule, ty: relax.Type) -> bool:
    """Return whether a kernel with a result of this type runs where weights occupy memory.

    On a GPU, or on the one device there is. The CPU beside a GPU reads its weights where they are
    mapped.
    """
    devices, own = vdevices_of(mod), vdevice_of(ty)
    return not devices or own is None or is_same(own, devices[0])


def stream_layers(mod: tvm.IRModule, least: int | None) -> StreamedKernels:
    """Mark the weights of the layers of ``main`` as streamed.

    A layer is a kernel that adds up. Those in branches stay as they are: which of them runs next is
    not known. Of several constants that a kernel reads the largest is streamed.

    Parameters
    ----------
    mod : IRModule
        Fused kernels, numbered; weights are constants, and some are marked already.
    least : int or None
        Bytes of weights from which on they are streamed; ``None`` leaves all layers as they are.
    """
    if least is None:
        return StreamedKernels(mod, {})
    gvar = mod.get_global_var("main")
    main = mod[gvar]
    marked = {
        binding.var
        for block in main.body.blocks
        for binding in block.bindings
        if streamed_constant(binding.value) is not None
    }
    builder = relax.BlockBuilder(mod)
    nbytes: dict[int, int] = {}

    def asked(binding: relax.Binding) -> Iterator[relax.Binding]:
        call = binding.value
        number = kernel_of(binding.var)
        streams = is_call(call, *KERNEL_CALLS) and is_streamed_to(mod, binding.var.ty)
        if number is None or not streams:
            yield binding
            return
        given = list(call.args[1].fields)
        place = _largest(given)
        size = 0 if place is None else _nbytes(given[place])
        if place is None or size < least or marked.intersection(given):
            yield binding
            return
        if not _adds_up(mod[call.args[0]]):
            yield binding
            return
        make = type(binding.var)
        mark = builder.normalize(streamed(given[place], vdevice_of(binding.var.ty)))
        weights = make("weights", mark.ty)
        yield relax.VarBinding(weights, mark)
        given[place] = weights
        arguments = [call.args[0], relax.Tuple(given), *call.args[2:]]
        value = relax.Call(call.op, arguments, call.attrs, call.ty_args)
        yield relax.VarBinding(binding.var, builder.normalize(value))
        nbytes[number] = size

    made = with_bindings(main, asked)
    if not nbytes:
        return StreamedKernels(mod, {})
    mod = mod.clone()
    mod[gvar] = made
    return StreamedKernels(mod, nbytes)


def _largest(given: list[relax.Expr]) -> int | None:
    """The position of the largest constant among arguments."""
    constants = [i for i, arg in enumerate(given) if isinstance(arg, tvm.ir.GenericConst)]
    return max(constants, key=lambda i: _nbytes(given[i]), default=None)


def _nbytes(constant: tvm.ir.GenericConst) -> int:
    size = int(tvm.DataType(str(constant.ty.dtype)).itemsize)
    for length in static_shape(constant.ty) or ():
        size *= length
    return size


def _adds_up(func: tirx.PrimFunc) -> bool:
    """Return whether a kernel reduces: one that picks from a table reads only some of its rows."""
    return any(
        any(var.iter_type == tirx.IterVar.CommReduce for var in node.iter_vars)
        for node in nodes_in(func.body, s_tir.SBlock)
    )
