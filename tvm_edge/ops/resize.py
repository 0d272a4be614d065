"""Resize and Upsample: converters where TVM leaves ONNX's definition, kernels for a CPU.

TVM resizes the last axes by the ratio of the lengths. ONNX divides coordinates by the given scale,
which differs where the new length was rounded; may name any axes; and may widen the filter
(antialias). And TVM's kernels calculate coordinates on the device, where the last bit, and with it
the nearest element, is another on another device. There a resize is, axis by axis, a weighted sum
of elements taken at constant indices, which are calculated here as ONNX Runtime does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from tvm import relax, sym, te, tirx

from tvm_edge.ops.converter import Attributes, operand, spread, text
from tvm_edge.ops.elements import constants_in, integers
from tvm_edge.ops.flops import Operation, UnknownShape, elements, known
from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.ops.registry import FOLLOWS, PERFORMS, register
from tvm_edge.ops.run_time_resize import ENLARGED, resize_in_run
from tvm_edge.relay_passes.ir.expressions import constant_of, is_call, static_shape
from tvm_edge.schedules.typical import typical
from tvm_edge.schedules.vision.enlarge import enlarge_planes
from tvm_edge.schedules.vision.resize import resize_planes, resize_tables
from tvm_edge.schedules.vision.resize_pictures import resize_pictures
from tvm_edge.schedules.vision.resize_taps import (
    LONGEST,
    Axis,
    Filter,
    positions_of,
    repeated,
    taps_of,
)

__all__ = ["FLOATS", "interpolation_flops"]

FLOATS = ("float16", "float32", "float64")
"""Types that kernels of a CPU interpolate."""

_COORDINATES = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel")

_NEAREST = ("ceil", "floor", "round_prefer_ceil", "round_prefer_floor")

_MOST_TAPS = 32


def _resize(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    x, shape = inputs[0], static_shape(inputs[0].ty)
    roi = None
    given = cast(list[Any], inputs)  # which TVM's converter gets as well
    for i, value in enumerate(given[1:], 1):
        if value is not None and static_shape(value.ty) == (0,):  # left out, before opset 13
            given[i] = None
    at = (1, 3) if attrs["opset"] < 11 else (2, 3)
    scales, sizes = (constant_of(operand(inputs, i)) for i in at)
    if attrs["opset"] < 11:
        how = Filter(text(attrs, "mode", "nearest"), "asymmetric", "simple", -0.75, False, False)
    else:
        roi = operand(inputs, 1)
        how = Filter(
            text(attrs, "mode", "nearest"),
            text(attrs, "coordinate_transformation_mode", "half_pixel"),
            text(attrs, "nearest_mode", "round_prefer_floor"),
            float(attrs.get("cubic_coeff_a", -0.75)),
            bool(attrs.get("antialias", 0)),
            bool(attrs.get("exclude_outside", 0)),
        )
    crops = how.coordinates == "tf_crop_and_resize"
    region = constant_of(roi)
    if shape is None or (scales is None and sizes is None) or (crops and region is None):
        return _in_run(bb, inputs, attrs, how, at)
    named = [int(a) % len(shape) for a in attrs.get("axes", range(len(shape)))]
    axes = _target(shape, named, scales, sizes, attrs)
    if max(axis.new for axis in axes) > LONGEST:
        raise NotImplementedError(f"Resize to {[axis.new for axis in axes]}")
    if region is not None and crops:
        axes = _cropped(axes, named, region)
    elif _tvm_agrees(axes, how, attrs):
        return None
    return _by_tables(bb, x, axes, how, float(attrs.get("extrapolation_value", 0.0)))


def _in_run(
    bb: relax.BlockBuilder,
    inputs: Sequence[relax.Expr],
    attrs: Attributes,
    how: Filter,
    at: tuple[int, int],
) -> relax.Expr:
    """Resize by expressions, where a length or a part of the picture is only known in the run."""
    x = inputs[0]
    if x.ty.shape is None:
        raise NotImplementedError("Resize of a tensor of a rank that only the run tells")
    rank = len(x.ty.shape)
    named = [int(a) % rank for a in attrs.get("axes", range(rank))]
    scales = operand(inputs, at[0])
    return resize_in_run(
        bb,
        x,
        named,
        how,
        scales=scales,
        known=[] if scales is None else constants_in(bb, inputs, attrs, at[0]),
        sizes=integers(bb, inputs, attrs, at[1]) if scales is None else None,
        policy=text(attrs, "keep_aspect_ratio_policy", "stretch"),
        roi=operand(inputs, 1) if attrs["opset"] >= 11 else None,
        outside=float(attrs.get("extrapolation_value", 0.0)),
    )


def _by_tables(
    bb: relax.BlockBuilder, x: relax.Expr, axes: Sequence[Axis], how: Filter, outside: float
) -> relax.Expr:
    """Sum elements at constant indices; `outside` is the value of a crop beyond the picture."""
    dtype = str(x.ty.dtype)
    interpolates = how.mode != "nearest" and not all(axis.is_kept for axis in axes)
    calculated = dtype if "float" in dtype or not interpolates else "float32"
    if calculated != dtype:
        x = bb.emit(relax.op.astype(x, calculated))
    empty = np.zeros([1] * len(axes), "bool")
    for number, axis in enumerate(axes):
        if axis.is_kept:
            continue
        x = _resize_axis(bb, x, number, axis, how)
        if how.coordinates == "tf_crop_and_resize":
            position = positions_of(axis, how.coordinates)
            beyond = ~((position >= 0) & (position <= axis.old - 1))
            empty = empty | spread(beyond, number, len(axes))
    if empty.any():
        value = relax.const(np.asarray(outside, calculated), calculated)
        x = bb.emit(relax.op.where(relax.const(empty, "bool"), value, x))
    return x if calculated == dtype else bb.emit(relax.op.astype(x, dtype))


def _upsample(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr | None:
    """Convert Resize of opset 10 under its old name; its scales were an attribute once."""
    scales = operand(inputs, 1)
    if scales is None:
        scales = relax.const(np.asarray(attrs["scales"], "float32"), "float32")
    return _resize(bb, [inputs[0], scales], {**attrs, "opset": 10})


def _target(
    shape: Sequence[int],
    named: Sequence[int],
    scales: np.ndarray | None,
    sizes: np.ndarray | None,
    attrs: Attributes,
) -> list[Axis]:
    """Return scale and new length of every axis."""
    axes = [Axis(length, length, 1.0) for length in shape]
    if scales is not None:
        for axis, scale in zip(named, scales.astype("float32"), strict=True):
            # In float32, as ONNX: 2.3 times 10 is 23.
            new = math.floor(scale * np.float32(shape[axis]))
            axes[axis] = Axis(shape[axis], new, float(scale))
        return axes
    assert sizes is not None
    wanted = [int(size) for size in sizes]
    ratios = [size / shape[axis] for axis, size in zip(named, wanted, strict=True)]
    policy = text(attrs, "keep_aspect_ratio_policy", "stretch")
    for axis, size, ratio in zip(named, wanted, ratios, strict=True):
        if policy == "stretch":
            axes[axis] = Axis(shape[axis], size, ratio)
        else:
            scale = min(ratios) if policy == "not_larger" else max(ratios)
            axes[axis] = Axis(shape[axis], math.floor(scale * shape[axis] + 0.5), scale)
    return axes


def _cropped(axes: Sequence[Axis], named: Sequence[int], roi: np.ndarray) -> list[Axis]:
    """Give the axes their starts and ends; the operand has all starts first."""
    if roi.shape != (2 * len(named),):
        raise ValueError(f"the roi of a Resize has {2 * len(named)} numbers, not {roi.size}")
    result = list(axes)
    for i, axis in enumerate(named):
        start, end = float(roi[i]), float(roi[i + len(named)])
        result[axis] = replace(axes[axis], start=start, end=end)
    return result


def _tvm_agrees(axes: Sequence[Axis], how: Filter, attrs: Attributes) -> bool:
    """Return whether TVM's converter gives the same results, on any device."""
    exact = all(abs(axis.scale * axis.old - axis.new) < 1e-4 * axis.new for axis in axes)
    if how.mode == "nearest":
        exact = all(map(_is_exact_in_binary, axes)) and how.coordinates != "align_corners"
    return (
        attrs["opset"] >= 11
        and len(axes) in (3, 4, 5)
        and exact
        and all(axis.is_kept for axis in axes[:2])
        and "axes" not in attrs
        and not how.antialias
        and how.coordinates != "half_pixel_symmetric"
        and text(attrs, "keep_aspect_ratio_policy", "stretch") == "stretch"
    )


def _is_exact_in_binary(axis: Axis) -> bool:
    """Return whether coordinates have few bits, so that every device calculates the same."""
    if axis.scale * axis.old != axis.new:
        return False
    mantissa, exponent = math.frexp(axis.scale)
    return mantissa == 0.5 and abs(exponent) < 10


def _resize_axis(
    bb: relax.BlockBuilder, x: relax.Expr, number: int, axis: Axis, how: Filter
) -> relax.Expr:
    indices, weights = taps_of(axis, how)
    if indices.shape[1] > _MOST_TAPS:
        raise NotImplementedError(f"Resize with antialias from {axis.old} to {axis.new}")
    dtype = str(x.ty.dtype)
    terms = []
    for k in range(indices.shape[1]):
        term = relax.op.take(x, relax.const(indices[:, k], "int64"), number, mode="clip")
        if how.mode != "nearest":
            weight = spread(weights[:, k], number, x.ty.ndim).astype(dtype)
            term = relax.op.multiply(term, relax.const(weight, dtype))
        terms.append(bb.emit(term))
    total = terms[0]
    for term in terms[1:]:
        total = bb.emit(relax.op.add(total, term))
    return total


def _lower_resize2d(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Interpolate planes on a CPU; a GPU has a work-item for each element of TVM's kernel."""
    data, attrs = call.args[0], call.attrs
    repeats = _repeated_in_run(site, call)
    if repeats is not None:
        return repeats
    coordinates, dtype = str(attrs.coordinate_transformation_mode), str(data.ty.dtype)
    if (
        site.spec.launches_grids
        or str(attrs.method) not in ("nearest_neighbor", "linear", "cubic")
        or coordinates not in _COORDINATES
        or str(attrs.layout) != "NCHW"
        or dtype not in FLOATS
        or is_empty(call.ty.shape)
    ):
        return call
    batch, channels, *old = data.ty.shape
    new = list(call.ty.shape)[2:]
    if not all(isinstance(size, tirx.IntImm) for size in (*old, *new)):
        return call
    axes = [Axis(int(o), int(n), int(n) / int(o)) for o, n in zip(old, new, strict=True)]
    if str(attrs.method) == "nearest_neighbor":
        enlarged = _enlarged(site, call, axes)
        return call if enlarged is None else enlarged
    alpha, exclude = float(attrs.cubic_alpha), bool(attrs.cubic_exclude)
    how = Filter(str(attrs.method), coordinates, "", alpha, False, exclude)
    kind = "float64" if dtype == "float64" else "float32"
    tables = resize_tables(taps_of(axes[0], how), taps_of(axes[1], how), kind)
    size, count = (axes[0].old, axes[1].old), batch * channels
    picture = _picture(site, data) if axes[0].new <= axes[0].old else None
    if picture is not None:
        source, order = picture
        number = int(batch)
        kernel = resize_pictures(number, size, order, str(source.ty.dtype), tables, site.spec)
        operand = site.reshape(source, [number, size[0], size[1] * len(order)])
    else:
        planes = int(count) if isinstance(count, int | tirx.IntImm) else count
        kernel = resize_planes(planes, size, dtype, tables, site.spec)
        operand = site.reshape(data, [planes, *old])
    given = [operand, *(relax.const(table, str(table.dtype)) for table in tables)]
    return site.reshape(site.run(kernel, "resize", given)[0], call.ty.shape)


def _enlarged(site: KernelSite, call: relax.Call, axes: Sequence[Axis]) -> relax.Expr | None:
    """Repeat pixels, if each one of the result is the one at its place divided by a factor."""
    data, attrs = call.args[0], call.attrs
    coordinates, nearest = str(attrs.coordinate_transformation_mode), str(attrs.rounding_method)
    if nearest not in _NEAREST:
        return None
    how = Filter("nearest", coordinates, nearest, 0.0, False, False)
    factors = [repeated(axis, how) for axis in axes]
    if not all(factors):
        return None
    planes = data.ty.shape[0] * data.ty.shape[1]
    planes = int(planes) if isinstance(planes, int | tirx.IntImm) else planes
    size, (down, across) = (axes[0].old, axes[1].old), factors
    kernel = enlarge_planes(planes, size, (down, across), str(data.ty.dtype), site.spec)
    operand = site.reshape(data, [planes, *size])
    return site.reshape(site.run(kernel, "resize", [operand])[0], call.ty.shape)


def _repeated_in_run(site: KernelSite, call: relax.Call) -> relax.Call | None:
    """Repeat pixels of pictures whose size only the run tells, in blocks of channels or not.

    TVM's kernel divides lengths to find a pixel's place, each time.
    """
    data, attrs, new = call.args[0], call.attrs, list(call.ty.shape)
    how = attrs.method, attrs.coordinate_transformation_mode, attrs.rounding_method
    if static_shape(call.ty) is not None or tuple(map(str, how)) != ENLARGED:
        return None
    old = list(data.ty.shape)
    factors = [typical(to) // max(typical(of), 1) for of, to in zip(old, new, strict=True)]
    analyzer = sym.Analyzer()
    if not all(
        analyzer.can_prove_equal(a * n, b) for a, n, b in zip(old, factors, new, strict=True)
    ):
        return None

    def repeat(pixels: te.Tensor) -> te.Tensor:
        def element(*index: tirx.Expr) -> tirx.Expr:
            return pixels(*(tirx.floordiv(i, n) for i, n in zip(index, factors, strict=True)))

        return te.compute(new, element, name="resized")

    target = {} if site.device is None else {"target": site.device.target}
    return site.builder.call_te(repeat, data, primfunc_name_hint="resize", primfunc_attrs=target)


def _picture(site: KernelSite, data: relax.Expr) -> tuple[relax.Var, Sequence[int]] | None:
    """Return what planes of float32 are read from, if channels lie beside each other there.

    The second is the channel that each plane is of.
    """
    swapped, call = False, _binding(site, data)
    if is_call(call, "relax.strided_slice") and _reverses_channels(call):
        swapped, call = True, _binding(site, call.args[0])
    if not is_call(call, "relax.permute_dims"):
        return None
    source = call.args[0]
    before = _binding(site, source)
    if is_call(before, "relax.astype"):
        source = before.args[0]
    shape, dtype = static_shape(source.ty), str(source.ty.dtype)
    if [int(axis) for axis in call.attrs.axes or ()] != [0, 3, 1, 2] or shape is None:
        return None
    types = str(data.ty.dtype), dtype in ("uint8", "float32")
    if types != ("float32", True) or not isinstance(source, relax.Var):
        return None
    order = range(shape[3])
    return source, (order[::-1] if swapped else order)


def _binding(site: KernelSite, value: relax.Expr) -> relax.Expr | None:
    return site.builder.lookup_binding(value) if isinstance(value, relax.Var) else None


def _reverses_channels(call: relax.Call) -> bool:
    """Return whether a slice is the whole tensor, channels from the last to the first."""
    channels = call.ty.shape[1]
    if not isinstance(channels, tirx.IntImm):
        return False
    same = static_shape(call.ty) == static_shape(call.args[0].ty) is not None
    axes, begin, end, strides = (_integers(each) for each in call.args[1:5])
    last = int(channels) - 1
    # An end before the first element, from the end of the axis.
    return same and (axes, begin, strides) == ([1], [last], [-1]) and end == [-1 - int(channels)]


def _integers(value: relax.Expr) -> list[int]:
    return [int(each) for each in getattr(value, "fields", ()) if isinstance(each, tirx.IntImm)]


def _resize_flops(op: Operation) -> int:
    axes = sum(a != b for a, b in zip(known(op.inputs[0]), known(op.outputs[0]), strict=True))
    return interpolation_flops(op, b"nearest", axes)


def interpolation_flops(op: Operation, default: bytes, axes: int) -> int:
    """Count the weighted sum of each element's neighbours along `axes` axes."""
    mode = op.attributes.get("mode", default).removeprefix(b"bi")
    taps = {b"nearest": 0, b"linear": 2, b"cubic": 4}.get(mode)
    if taps is None:
        raise UnknownShape
    return 2 * taps**axes * elements(op.outputs[0]) if taps and axes else 0


register("Resize", convert=_resize, forming=(1, 2, 3), settings=(1, 2), flops=_resize_flops)
register("Upsample", convert=_upsample, forming=(1,), settings=(1,), flops=_resize_flops)

register(
    "relax.image.resize2d",
    lower=_lower_resize2d,
    gpu=PERFORMS,
    float16=FOLLOWS,
    blocks="image",
)
register("relax.image.resize3d", gpu=PERFORMS)
