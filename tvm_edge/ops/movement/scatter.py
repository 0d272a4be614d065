"""Scatters, by kernels in which indices that leave their axis take its nearest place."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, tirx

from tvm_edge.ops.converter import Attributes, operand, text
from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.relay_passes.ir.expressions import constant_of, static_shape
from tvm_edge.schedules.emit import Kernel, Tensor
from tvm_edge.schedules.vision import gpu
from tvm_edge.schedules.vision.scatter import (
    apply_parts,
    apply_sorted,
    element_targets,
    slice_targets,
)

__all__ = ["lower_scatter_elements", "lower_scatter_nd", "tensor_scatter"]

# Places that an int32 can name.
_MOST_PLACES = (1 << 31) - 1


def lower_scatter_elements(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower ``relax.scatter_elements``."""
    data, indices = (_tensor(arg) for arg in call.args[:2])
    axes = len(data[0])
    axis, dtype = int(call.attrs.axis) % axes, _place_type(data)
    known = None
    values = constant_of(call.args[1])
    if values is not None and _is_static(data):
        places: list[NDArray[Any]] = [*np.indices(values.shape)]
        places[axis] = values
        known = _flat(places, data[0])
    kernel = element_targets(data, indices, axis, site.spec, dtype)
    lengths = data[0][0], indices[0][0]
    by_row = None
    if axis > 0 and isinstance(lengths[0], int) and isinstance(lengths[1], int):
        by_row = lengths if lengths[0] >= site.spec.cores else None
    count = prod(call.args[1].ty.shape)
    return _scatter(site, call, axes, kernel, count, known, by_row)


def lower_scatter_nd(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Lower ``relax.scatter_nd``."""
    data, indices = (_tensor(arg) for arg in call.args[:2])
    *rows, width = call.args[1].ty.shape
    axes, known = int(width), None
    values = constant_of(call.args[1])
    if values is not None and _is_static(data):
        known = _flat([values[..., axis] for axis in range(axes)], data[0][:axes])
    kernel = slice_targets(data, indices, axes, site.spec, _place_type(data))
    return _scatter(site, call, axes, kernel, prod(rows), known)


def _scatter(
    site: KernelSite,
    call: relax.Call,
    axes: int,
    kernel: Kernel,
    count: Any,
    known: NDArray[np.int64] | None,
    by_row: tuple[int, int] | None = None,
) -> relax.Expr:
    """Find each update's target, on a GPU sort updates by it, and apply them.

    Parameters
    ----------
    axes : int
        Axes of the data before a slice.
    kernel : Kernel
        Kernel that finds the targets.
    count : int or Expr
        How many targets there are.
    known : NDArray or None
        The targets, if the indices are constant.
    by_row : (int, int), optional
        As for :func:`~tvm_edge.schedules.vision.scatter.apply_parts`.
    """
    data, indices, updates = call.args
    if any(is_empty(arg.ty.shape) for arg in call.args):
        return data
    ((_, dtype),) = kernel.outputs
    how = (_tensor(updates), axes, str(call.attrs.reduction), site.spec)
    if known is None:
        types = [site.tensor([count], dtype)]
        (targets,) = site.call(kernel.func, "scatter_targets", [data, indices], types)
    else:
        targets = relax.const(known.astype(dtype), dtype)
    if not site.spec.launches_grids:
        apply = apply_parts(_tensor(data), _tensor(targets), *how, by_row=by_row)
        operands = [data, targets, updates]
    else:
        if known is None:
            sort = gpu.argsort_rows(
                1,
                int(count),
                dtype,
                site.spec,
                descending=False,
                index_dtype="int32",
                values=True,
            )
            order, targets, *_ = site.run(sort, "argsort", [targets])
        else:
            ranks = np.argsort(known, kind="stable")
            order = relax.const(ranks.astype("int32"), "int32")
            targets = relax.const(known[ranks].astype(dtype), dtype)
        apply = apply_sorted(_tensor(data), _tensor(targets), *how)
        operands = [data, order, targets, updates]
    (result,) = site.call(apply.func, "scatter", operands, [call.ty])
    return result


def _tensor(value: relax.Expr) -> Tensor:
    """Return shape and type for a kernel, which reads open lengths from its tensors."""
    shape = [
        int(size) if isinstance(size, tirx.IntImm) else tirx.Var(f"n{axis}", "int64")
        for axis, size in enumerate(value.ty.shape)
    ]
    return shape, str(value.ty.dtype)


def _is_static(tensor: Tensor) -> bool:
    return all(isinstance(size, int) for size in tensor[0])


def _place_type(data: Tensor) -> str:
    fits = _is_static(data) and prod(data[0]) <= _MOST_PLACES
    return "int32" if fits else "int64"


def _flat(places: Sequence[NDArray[Any]], lengths: Sequence[int]) -> NDArray[np.int64]:
    """Flatten indices as :mod:`tvm_edge.schedules.vision.scatter` does."""
    flat = np.zeros(places[0].shape if places else (), "int64")
    for place, length in zip(places, lengths, strict=True):
        index = place.astype("int64")
        index = np.where(index < 0, index + length, index)
        flat = flat * length + index.clip(0, length - 1)
    return flat.reshape(-1)


def tensor_scatter(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Have each element look up its place in the update: no two of them write one place."""
    cache, update, starts = inputs[0], inputs[1], operand(inputs, 2)
    shape, new = static_shape(cache.ty), static_shape(update.ty)
    if shape is None or new is None:
        raise NotImplementedError("TensorScatter of shapes known only at run time")
    axis = int(attrs.get("axis", -2)) % len(shape)
    along = [1] * len(shape)
    along[axis] = shape[axis]
    places = relax.const(np.arange(shape[axis]).reshape(along), "int64")
    if starts is not None:
        first = bb.emit(relax.op.reshape(starts, (-1, *[1] * (len(shape) - 1))))
        places = bb.emit(relax.op.subtract(places, first))
    if text(attrs, "mode", "linear") == "circular":
        places = bb.emit(relax.op.floor_mod(places, relax.const(np.int64(shape[axis]), "int64")))
    last = relax.const(np.int64(new[axis] - 1), "int64")
    zero = relax.const(np.int64(0), "int64")
    inside = bb.emit(
        relax.op.logical_and(
            relax.op.greater_equal(places, zero), relax.op.less_equal(places, last)
        )
    )
    held = bb.emit(relax.op.minimum(relax.op.maximum(places, zero), last))
    held = bb.emit(relax.op.broadcast_to(held, shape))
    written = bb.emit(relax.op.gather_elements(update, held, axis))
    return bb.normalize(relax.op.where(inside, written, cache))
