"""Fully connected layers in parts, each with a weight that is read for it.

Rallapalli et al., "Are Very Deep Neural Networks Feasible on Mobile Devices?", section 3: the
memory of a very deep network is the weights of a few fully connected layers. Such a layer is cut
along the reduction axis, and the results are added up. Where a part of that axis would be too
short, it is cut along its outputs, and the results are put side by side. Parts are of one size but
for the last, and so of one kernel.

A part's weight is one piece of the artifact, and is streamed
(:mod:`tvm_edge.relay_passes.memory.stream_weights`): the part in use and the next one fill the
window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np
import tvm
from tvm import relax, topi

from tvm_edge.relay_passes.ir.expressions import const, is_call, static_shape, with_blocks
from tvm_edge.relay_passes.ir.vdevices import vdevice_of
from tvm_edge.relay_passes.ir.workloads import FLOATS
from tvm_edge.relay_passes.memory.stream_weights import streamed
from tvm_edge.relay_passes.memory.windows import refuse_window
from tvm_edge.relay_passes.place.label_operators import nodes_of
from tvm_edge.schedules.float16 import HALVES

__all__ = ["Cut", "SplitDense", "SplitLayer", "least_window", "plan_cut", "split_dense"]

# How to cut, the best first, and what the lengths of parts are multiples of: rows of the matrix
# that kernels add up at a time, whole vectors and panels. A part of some rows is read as it lies in
# the whole matrix, a row of some kB after the other. With one row on the left, 16384x4096 in 8
# parts, one core: 17 ms instead of 25 with parts of some columns.
_WAYS: tuple[tuple[Literal["output", "reduction"], int], ...] = (
    ("reduction", 64),
    ("output", 64),
    ("reduction", 16),
)
# Each is a few µs of its own, and one tensor more that the last kernel reads: OpenCL promises only
# 1 KiB of arguments.
_MOST_PARTS = 64


@dataclass(frozen=True)
class Cut:
    """Cut of a matrix ``[K, N]`` into parts.

    Attributes
    ----------
    along : {"output", "reduction"}
        N or K.
    step : int
        Length of each part but the last, which may be shorter.
    """

    along: Literal["output", "reduction"]
    step: int

    def places(self, shape: tuple[int, int]) -> list[tuple[int, int]]:
        """Begin and end of each part of a matrix of this shape."""
        length = shape[self.along == "output"]
        return [(at, min(at + self.step, length)) for at in range(0, length, self.step)]


@dataclass(frozen=True)
class SplitLayer:
    """A layer in parts.

    Attributes
    ----------
    node : int or None
        Of the user's model.
    cut : Cut
    parts : int
    part_bytes, weight_bytes : int
        Of the largest part, and of all.
    """

    node: int | None
    cut: Cut
    parts: int
    part_bytes: int
    weight_bytes: int


@dataclass(frozen=True)
class SplitDense:
    """A module, and its layers that are in parts."""

    module: tvm.IRModule
    layers: tuple[SplitLayer, ...]


def plan_cut(shape: tuple[int, int], itemsize: int, window: int) -> Cut | None:
    """Plan the cut of a matrix ``[K, N]`` so that two parts fit a window of so many bytes.

    ``None`` if it cannot be: :func:`least_window` says which window would do.
    """
    for along, grain in _WAYS:
        length, across = shape[along == "output"], shape[along == "reduction"]
        most = window // 2 // (across * itemsize) // grain * grain
        if most and ceil(length / most) <= _MOST_PARTS:
            step = length / ceil(length / most)
            return Cut(along, ceil(step / grain) * grain)
    return None


def least_window(shape: tuple[int, int], itemsize: int) -> int:
    """Bytes of the smallest window that a matrix ``[K, N]`` can be cut for."""
    return min(
        2
        * itemsize
        * shape[along == "reduction"]
        * grain
        * ceil(shape[along == "output"] / _MOST_PARTS / grain)
        for along, grain in _WAYS
    )


def split_dense(mod: tvm.IRModule, window: int | None, names: Mapping[int, str]) -> SplitDense:
    """Cut the dense layers of ``main`` whose constant matrix is larger than a window.

    Layers in branches stay as they are: which of them runs next is not known.

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
    gvar = mod.get_global_var("main")
    main = mod[gvar]
    if window is None:
        return SplitDense(mod, ())
    nodes = nodes_of(main)
    builder = relax.BlockBuilder(mod)
    writer = _Writer(builder)
    layers: list[SplitLayer] = []
    blocks = []
    for block in main.body.blocks:
        writer.begin(block)
        for binding in block.bindings:
            matrix = _large_matrix(binding.value, window)
            if matrix is None:
                writer.bindings.append(binding)
                continue
            shape, itemsize = (matrix.shape[0], matrix.shape[1]), matrix.itemsize
            cut = plan_cut(shape, itemsize, window)
            node = nodes.get(binding.var)
            if cut is None:
                least = least_window(shape, itemsize)
                limit = f"{_MOST_PARTS} parts at most"
                refuse_window("weight_window", window, least, limit, binding.var, node, names)
            writer.split(binding, matrix, cut)
            longest = max(end - begin for begin, end in cut.places(shape))
            line = shape[cut.along == "reduction"] * itemsize
            parts = len(cut.places(shape))
            layers.append(SplitLayer(node, cut, parts, longest * line, matrix.nbytes))
        blocks.append(type(block)(writer.bindings))
    if not layers:
        return SplitDense(mod, ())
    builder.update_func(gvar, with_blocks(main, blocks))
    return SplitDense(builder.get(), tuple(layers))


def _large_matrix(value: relax.Expr, window: int) -> np.ndarray | None:
    """The constant matrix of a dense layer, if it is larger than the window."""
    if not is_call(value, "relax.matmul") or isinstance(value.args[0], tvm.ir.GenericConst):
        return None
    matrix, shape = value.args[1], static_shape(value.args[1].ty)
    if not isinstance(matrix, tvm.ir.GenericConst) or shape is None or len(shape) != 2:
        return None
    if str(matrix.ty.dtype) not in FLOATS or str(value.args[0].ty.dtype) not in FLOATS:
        return None
    found = np.from_dlpack(matrix.value)  # not a copy: it is large
    return found if found.nbytes > window else None


class _Writer:
    """Writes the bindings of layers in parts."""

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder
        self._make: Callable[..., relax.Var] = relax.Var
        self._parts: dict[tuple[tvm.ir.GenericConst, Cut], list[relax.Expr]] = {}
        self.bindings: list[relax.Binding] = []

    def begin(self, block: relax.BindingBlock) -> None:
        """Write into a new block like this one."""
        inside = isinstance(block, relax.DataflowBlock)
        self._make = relax.DataflowVar if inside else relax.Var
        self.bindings = []

    def split(self, binding: relax.VarBinding, matrix: np.ndarray, cut: Cut) -> None:
        """A product in parts, bound to the variable that it was bound to."""
        call = binding.value
        data, weight = call.args
        parts = self._cut(weight, matrix, cut)
        device = vdevice_of(data.ty)
        axis = int(data.ty.ndim) - 1
        if cut.along == "output":
            products = [self._product(call, data, part, device) for part in parts]
            # Not ``relax.concat``: on a GPU the parts would be kernels of their own, for their
            # offsets in its result.
            value = self._builder.call_te(
                topi.concatenate, products, axis, primfunc_name_hint="join_parts"
            )
            self._bind(binding.var, value)
            return
        # Partial sums of 16 bits are rounded once, at the end.
        dtype = str(call.ty.dtype)
        wide = "float32" if dtype in HALVES else None
        ends = [end for _, end in cut.places(matrix.shape)]
        pieces = self._let("pieces", relax.op.split(data, ends[:-1], axis))
        total: relax.Expr | None = None
        for index, part in enumerate(parts):
            piece = self._let("piece", relax.TupleGetItem(pieces, index))
            product = self._product(call, piece, part, device, wide)
            added = product if total is None else relax.op.add(total, product)
            last = index == len(parts) - 1
            if last and wide is None:
                self._bind(binding.var, added)
            else:
                total = added if total is None else self._let("sum", added)
        if wide is not None:
            self._bind(binding.var, relax.op.astype(total, dtype))

    def _cut(self, weight: tvm.ir.GenericConst, matrix: np.ndarray, cut: Cut) -> list[relax.Expr]:
        """Parts of a matrix, each contiguous; layers that share it share them."""
        key = (weight, cut)
        if key not in self._parts:
            places = cut.places((matrix.shape[0], matrix.shape[1]))
            pieces = [
                matrix[:, begin:end] if cut.along == "output" else matrix[begin:end]
                for begin, end in places
            ]
            self._parts[key] = [const(piece, str(matrix.dtype)) for piece in pieces]
        return self._parts[key]

    def _product(
        self,
        like: relax.Call,
        data: relax.Expr,
        part: relax.Expr,
        device: relax.VDevice | None,
        out_dtype: str | None = None,
    ) -> relax.Var:
        weight = self._let("part", streamed(part, device))
        own = str(like.ty.dtype)
        out = out_dtype or (None if own == str(data.ty.dtype) else own)
        return self._let("product", relax.op.matmul(data, weight, out_dtype=out))

    def _let(self, name: str, value: relax.Expr) -> relax.Var:
        value = self._builder.normalize(value)
        var = self._make(name, value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def _bind(self, var: relax.Var, value: relax.Expr) -> None:
        self.bindings.append(relax.VarBinding(var, self._builder.normalize(value)))
