"""Convolutions of one pixel run through the pixels of an open image as one line.

A tile of 14 pixels in lines of 16 is calculated twice for each line, and in lines of 4 it is none.
A 1x1 convolution, and the element-wise operators after it, know nothing of lines: an image of H
lines and W columns is in memory one line of H * W. The kernel is the one for images of one line,
and is given how many pixels there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, sym, tirx

from tvm_edge.relay_passes.ir.expressions import all_bindings, is_call
from tvm_edge.relay_passes.lower.own_lengths import with_lengths
from tvm_edge.relay_passes.lower.replaced_kernels import Replaced, with_kernels
from tvm_edge.schedules.accesses import constant, nodes_in, uses
from tvm_edge.schedules.typical import typical

__all__ = ["flat_images"]

_LINES = 2
"""The axis of lines in an image in blocks; that of columns is the next."""


def flat_images(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, int]]:
    """Let kernels that look at single pixels of open images have them in one line.

    Runs after :func:`~tvm_edge.relay_passes.lower.own_lengths.own_lengths`.

    Returns
    -------
    tvm.IRModule
    dict of str to int
        The typical length of each new variable, by its name.
    """
    kernels: dict[ir.GlobalVar, Replaced] = {}
    lengths: dict[str, int] = {}
    names: dict[str, str] = {}
    calls = _calls(mod)
    for gvar, found in calls.items():
        image = None if found is None else _image(mod[gvar])
        if found is None or image is None:
            continue
        pixels = _pixels(found, image.place)
        text = str(pixels)
        name = names.setdefault(text, f"pixels_{len(names)}")
        lengths[name] = typical(pixels)
        flat = image.flat(mod[gvar], tirx.Var(name, pixels.ty.dtype))
        kernels[gvar] = Replaced(str(gvar.name_hint), flat.func, flat.given)
    return (with_kernels(mod, kernels) if kernels else mod), lengths


def _calls(mod: tvm.IRModule) -> dict[ir.GlobalVar, relax.Call | None]:
    """A call of each kernel; ``None`` if one gives it what a kernel has not made.

    Tensors from elsewhere are checked in each run to have the shape that the kernel says.
    """
    found: dict[ir.GlobalVar, relax.Call | None] = {}
    for _, func in mod.functions_items():
        if not isinstance(func, relax.Function):
            continue
        made: set[relax.Expr] = set()
        for binding in all_bindings(func.body):
            value = binding.value
            if not is_call(value, "relax.call_tir"):
                continue
            made.add(binding.var)
            images = [arg for arg in value.args[1].fields if _is_open_image(arg)]
            if not all(image in made for image in images):
                found[value.args[0]] = None
            found.setdefault(value.args[0], value)
    return found


def _is_open_image(arg: relax.Expr) -> bool:
    shape = getattr(arg.ty, "shape", None)
    return shape is not None and any(constant(length) is None for length in shape.values[1:])


@dataclass(frozen=True)
class _Flat:
    """A kernel on images of one line, the parameter that tells their pixels, and one of them."""

    func: tirx.PrimFunc
    place: int
    image: int

    def given(self, call: relax.Call) -> list[relax.Expr]:
        """Return what a call gives: the number of pixels, too."""
        fields = list(call.args[1].fields)
        return [*fields[: self.place], _pixels(call, self.image), *fields[self.place :]]


@dataclass(frozen=True)
class _Image:
    """Lines and columns of all images of a kernel, and the place of one of them."""

    lines: tirx.Var
    columns: tirx.Var
    place: int

    def flat(self, func: tirx.PrimFunc, pixels: tirx.Var) -> _Flat:
        """Return the kernel for images of one line."""
        one = tirx.const(1, self.lines.ty.dtype)
        by = {self.lines: one, self.columns: pixels}

        def change(node: tirx.Expr | tirx.Stmt) -> tirx.Expr | tirx.Stmt:
            return tvm_ffi.structural_map(node, (tirx.Var, lambda var: by.get(var, var)))

        params, body = with_lengths(func.params, func.body, by, change)
        place = len(params) - 1  # in front of the result
        params.insert(place, pixels)
        return _Flat(tirx.PrimFunc(params, body, attrs=func.attrs), place, self.place)


def _image(func: ir.BaseFunc) -> _Image | None:
    """Return the images of a kernel that reduces, pixel by pixel; ``None`` of other kernels."""
    buffers = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
    blocks = nodes_in(func.body, s_tir.SBlock)
    if not any(var.iter_type == var.CommReduce for block in blocks for var in block.iter_vars):
        return None
    for place, param in enumerate(func.params):
        if param not in buffers or len(param.shape) != 5:
            continue
        lines, columns = param.shape[_LINES : _LINES + 2]
        if not isinstance(lines, tirx.Var) or not isinstance(columns, tirx.Var):
            continue
        if lines.same_as(columns):
            return None  # of square images one variable cannot be 1 and the number of pixels
        image = _Image(lines, columns, place)
        others = [buffer for block in blocks for buffer in block.alloc_buffers]
        fits = all(_has_pixels(buffer, image) for buffer in [*buffers, *others])
        return image if fits and all(_is_of_pixels(block, image) for block in blocks) else None
    return None


def _has_pixels(buffer: tirx.Var, image: _Image) -> bool:
    """Return whether a buffer has both axes where they belong, or neither."""
    found = [length for length in buffer.shape if _any_of(length, image)]
    if not found:
        return True
    axes = list(buffer.shape)[_LINES : _LINES + 2]
    return (
        len(found) == 2
        and len(axes) == 2
        and axes[0].same_as(image.lines)
        and (axes[1].same_as(image.columns))
    )


def _any_of(node: tirx.Expr | tirx.Stmt, image: _Image) -> bool:
    return uses(node, image.lines) or uses(node, image.columns)


def _is_of_pixels(block: s_tir.SBlock, image: _Image) -> bool:
    """Return whether a block reads and writes images at its own pixel alone."""
    if not block.iter_vars:
        return True  # around the others
    axes: dict[tirx.Var, tirx.Var] = {}
    units: dict[tirx.Var, tirx.Expr] = {}
    for var in block.iter_vars:
        extent = var.dom.extent
        if constant(extent) == 1:
            units[var.var] = tirx.const(0, var.var.ty.dtype)
        elif extent.same_as(image.lines) or extent.same_as(image.columns):
            if var.iter_type != var.DataPar:
                return False
            axes[var.var] = extent
        elif _any_of(extent, image):
            return False
    simplify = sym.Analyzer().simplify
    good = True

    def without_pixel(buffer: tirx.Var, indices: tuple[tirx.Expr, ...]) -> list[tirx.Expr]:
        """Return the other indices, once those of the pixel are looked at."""
        nonlocal good
        if not any(_any_of(length, image) for length in buffer.shape):
            return list(indices)
        for place, length in ((_LINES, image.lines), (_LINES + 1, image.columns)):
            index = tvm_ffi.structural_map(
                indices[place], (tirx.Var, lambda var: units.get(var, var))
            )
            good = good and length.same_as(axes.get(simplify(index)))
        return [*indices[:_LINES], *indices[_LINES + 2 :]]

    left: list[tirx.Expr] = []

    def load(node: ir.TensorLoad) -> None:
        left.extend(without_pixel(node.source, tuple(node.indices)))

    def store(node: tirx.BufferStore) -> None:
        left.extend(without_pixel(node.buffer, tuple(node.indices)))

    body = block.body if block.init is None else tirx.SeqStmt([block.init, block.body])
    tvm_ffi.structural_walk(body, ((ir.TensorLoad, load), (tirx.BufferStore, store)))

    def without_access(node: ir.TensorLoad) -> tirx.Expr:
        return tirx.const(0, str(node.source.dtype))

    values = [
        tvm_ffi.structural_map(node.value, (ir.TensorLoad, without_access))
        for node in nodes_in(body, tirx.BufferStore)
    ]
    pixel = [*axes, image.lines, image.columns]
    return good and not any(uses(node, var) for node in [*left, *values] for var in pixel)


def _pixels(call: relax.Call, place: int) -> tirx.Expr:
    fields = call.args[1].fields
    shape = fields[place].ty.shape if place < len(fields) else call.ty.shape
    return shape.values[_LINES] * shape.values[_LINES + 1]
