"""Convolutions in parts, for weights that are streamed through a window smaller than a layer.

A convolution is cut along its output channels, with the element-wise operators after it, and the
parts are put side by side: each kernel reads the image, and a part of the filters. Where kernels
can write into the result at an offset, nothing is copied
(:mod:`tvm_edge.relay_passes.memory.concat_in_place`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np
import tvm
from tvm import relax

from tvm_edge.ops.registry import of_call
from tvm_edge.relay_passes.ir.expressions import (
    array_of,
    const,
    count_uses,
    is_call,
    static_shape,
    with_blocks,
)
from tvm_edge.relay_passes.memory.stream_layers import is_streamed_to
from tvm_edge.relay_passes.memory.windows import refuse_window
from tvm_edge.relay_passes.place.label_operators import nodes_of, operands

__all__ = ["least_conv_window", "plan_filters", "split_convolutions"]

# Parts are of whole blocks of the widest vectors; GPUs' tiles have as many channels or a divisor.
_GRAIN = 16


def plan_filters(filters: int, filter_bytes: int, window: int) -> int | None:
    """Number of filters of a part, so that two parts fit a window of so many bytes.

    Parameters
    ----------
    filters : int
        Of the convolution.
    filter_bytes : int
        Of one of them.
    window : int
        Bytes.

    Returns
    -------
    int or None
        All of them where two times the layer fit; ``None`` if no part is small enough:
        :func:`least_conv_window` says which window would do.
    """
    most = window // 2 // filter_bytes
    if most >= filters:
        return filters
    most = most // _GRAIN * _GRAIN
    if not most:
        return None
    return min(most, ceil(filters / ceil(filters / most) / _GRAIN) * _GRAIN)


def least_conv_window(filters: int, filter_bytes: int) -> int:
    """Bytes of the smallest window that a convolution can be cut for."""
    return 2 * min(filters, _GRAIN) * filter_bytes


def split_convolutions(
    mod: tvm.IRModule, window: int | None, names: Mapping[int, str]
) -> tvm.IRModule:
    """Cut the convolutions of ``main`` whose filters are larger than half of a window.

    Those in branches and those of groups stay whole.

    Parameters
    ----------
    mod : IRModule
        Operators not legalised yet; placed.
    window : int or None
        Bytes; ``None`` leaves all layers as they are.
    names : mapping of int to str
        How the user calls a node, for messages.

    Raises
    ------
    InputError
        A layer cannot be cut into parts so small.
    """
    if window is None:
        return mod
    gvar = mod.get_global_var("main")
    main = mod[gvar]
    nodes, uses = nodes_of(main), count_uses(main)
    builder = relax.BlockBuilder(mod)
    blocks = []
    changed = False
    for block in main.body.blocks:
        writer = _Writer(builder, isinstance(block, relax.DataflowBlock))
        gone: set[relax.Var] = set()  # they end in what is put side by side
        for position, binding in enumerate(block.bindings):
            if binding.var in gone:
                continue
            layer = _layer(mod, binding, block.bindings[position + 1 :], uses)
            step = None if layer is None else plan_filters(layer.filters, layer.size, window)
            if layer is None or step == layer.filters:
                writer.bindings.append(binding)
                continue
            if step is None:
                least = least_conv_window(layer.filters, layer.size)
                parts = f"parts of {_GRAIN} filters at least"
                refuse_window(
                    "conv_window", window, least, parts, binding.var, nodes.get(binding.var), names
                )
            writer.split(layer, step)
            gone.update(each.var for each in layer.tail)
            changed = True
        blocks.append(type(block)(writer.bindings))
    if not changed:
        return mod
    builder.update_func(gvar, with_blocks(main, blocks))
    return builder.get()


@dataclass(frozen=True)
class _Layer:
    """A convolution and the element-wise operators after it that nobody else reads."""

    binding: relax.VarBinding
    weights: np.ndarray
    tail: tuple[relax.VarBinding, ...]

    @property
    def filters(self) -> int:
        return int(self.weights.shape[0])

    @property
    def size(self) -> int:
        """Bytes of a filter."""
        return self.weights.nbytes // self.filters


def _layer(
    mod: tvm.IRModule,
    binding: relax.Binding,
    behind: list[relax.Binding],
    uses: Mapping[relax.Var, int],
) -> _Layer | None:
    """The layer that begins with a binding; ``None`` if that is no convolution to cut."""
    call = binding.value
    if not is_call(call, "relax.nn.conv2d") or not is_streamed_to(mod, binding.var.ty):
        return None
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    weights = call.args[1]
    if layouts != ("NCHW", "OIHW", "NCHW") or int(attrs.groups) != 1:
        return None
    if not isinstance(weights, tvm.ir.GenericConst):
        return None
    tail: list[relax.VarBinding] = []
    last = binding.var
    while uses.get(last, 0) == 1:
        reader = next((b for b in behind if last in operands(b.value)), None)
        if not isinstance(reader, relax.VarBinding) or not _by_channel(reader.value, last):
            break
        tail.append(reader)
        last = reader.var
    found = np.from_dlpack(weights.value)  # not a copy: it is large
    return _Layer(binding, found, tuple(tail)) if found.size else None


def _by_channel(value: relax.Expr, image: relax.Var) -> bool:
    """Return whether an operator computes each channel by itself, with constants beside."""
    if of_call(value).blocks not in ("unary", "nary"):
        return False
    shape, own = static_shape(value.ty), static_shape(image.ty)
    if shape is None or shape != own:
        return False
    beside = [arg for arg in value.args if not arg.same_as(image)]
    return set(operands(value)) == {image} and all(_slices(arg, shape[1]) for arg in beside)


def _slices(arg: relax.Expr, channels: int) -> Callable[[int, int], relax.Expr] | None:
    """Slices of a constant for some of the channels; ``None`` if that cannot be said."""
    if isinstance(arg, tvm.ir.GenericConst) and isinstance(arg.ty, relax.TensorType):
        value = array_of(arg.value)
        if value.size == 1:
            return lambda begin, end: arg
        if value.size == channels and value.ndim >= 3 and value.shape[-3] == channels:
            dtype = str(arg.ty.dtype)
            return lambda begin, end: const(value[..., begin:end, :, :], dtype)
        return None
    return lambda begin, end: arg


class _Writer:
    """Writes the bindings of one block."""

    def __init__(self, builder: relax.BlockBuilder, dataflow: bool) -> None:
        self._builder = builder
        self._make: Callable[..., relax.Var] = relax.DataflowVar if dataflow else relax.Var
        self.bindings: list[relax.Binding] = []

    def split(self, layer: _Layer, step: int) -> None:
        """A layer in parts of so many filters, bound to the variable that it ended in."""
        conv, dtype = layer.binding.value, str(layer.weights.dtype)
        ends = []
        for number, begin in enumerate(range(0, layer.filters, step)):
            end = min(begin + step, layer.filters)
            filters = const(layer.weights[begin:end], dtype)
            call = relax.Call(conv.op, [conv.args[0], filters], conv.attrs, conv.ty_args)
            own = self._let(layer.binding.var, number, call)
            image = layer.binding.var
            for each in layer.tail:
                args = []
                for arg in each.value.args:
                    given = None if arg.same_as(image) else _slices(arg, layer.filters)
                    args.append(own if given is None else given(begin, end))
                value = relax.Call(each.value.op, args, each.value.attrs, each.value.ty_args)
                own, image = self._let(each.var, number, value), each.var
            ends.append(own)
        last = layer.tail[-1].var if layer.tail else layer.binding.var
        whole = self._builder.normalize(relax.op.concat(relax.Tuple(ends), 1))
        self.bindings.append(relax.VarBinding(last, whole))

    def _let(self, like: relax.Var, number: int, value: relax.Expr) -> relax.Var:
        """A part's step; its name says which node of the user's model it is of."""
        value = self._builder.normalize(value)
        var = self._make(f"{like.name}_{number}", value.ty, like.span)
        self.bindings.append(relax.VarBinding(var, value))
        return var
