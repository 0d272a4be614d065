"""Sampling of pictures at given points: GridSample, AffineGrid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, tirx

from tvm_edge.ops.converter import Attributes, text
from tvm_edge.ops.flops import Operation, known
from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.ops.registry import PERFORMS, register
from tvm_edge.ops.resize import FLOATS, interpolation_flops
from tvm_edge.relay_passes.ir.expressions import static_shape
from tvm_edge.schedules.vision.grid_sample import Sampling, grid_sample

__all__: list[str] = []

_METHODS = {"linear": "bilinear", "cubic": "bicubic"}

# Pictures to either side of the middle of one. Farther away padding does not change any more, and
# where pictures are mirrored float32 has no digits left for the place in one.
_FAR = float(1 << 16)


def _grid_sample(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """Call TVM's kernel with points that it can convert to integers.

    ONNX is silent about the others, and ONNX Runtime takes the pixel that a conversion happens to
    give. Here a NaN is outside where padding is zeros, and the first pixel otherwise; infinite and
    huge coordinates are far outside on their side.
    """
    data, grid = inputs
    spatial = data.ty.ndim - 2
    method = text(attrs, "mode", "linear")
    method = _METHODS.get(method, method)
    if spatial not in (2, 3) or (spatial == 3 and method == "bicubic"):
        raise NotImplementedError(f"GridSample with mode {method} of {spatial} dimensions")
    if grid.ty.ndim != data.ty.ndim:
        raise ValueError(f"the grid has {grid.ty.ndim} dimensions and the data {data.ty.ndim}")
    padding, dtype = text(attrs, "padding_mode", "zeros"), str(grid.ty.dtype)
    if (
        padding == "reflection"
        and attrs.get("align_corners", 0)
        and 1 in (static_shape(data.ty) or ())[2:]
    ):
        # Mirrors stand in the middle of the same pixel, and ONNX Runtime divides by their distance.
        raise NotImplementedError("GridSample with reflection in the middle of a single pixel")
    far = min(_FAR, float(np.finfo(dtype).max))
    no_number = relax.const(np.asarray(-far if padding == "zeros" else -1, dtype), dtype)
    numbers = relax.op.where(relax.op.isnan(grid), no_number, grid)
    points = relax.op.clip(numbers, -far, far)
    return bb.normalize(
        relax.op.image.grid_sample(
            data,
            relax.op.permute_dims(points, [0, spatial + 1, *range(1, spatial + 1)]),
            method=method,
            layout="NCHW" if spatial == 2 else "NCDHW",
            padding_mode=padding,
            align_corners=bool(attrs.get("align_corners", 0)),
        )
    )


def _lower_grid_sample(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Sample pictures on a CPU; a GPU has a work-item for each element of TVM's kernel."""
    (data, grid), attrs = call.args, call.attrs
    dtypes = str(data.ty.dtype), str(grid.ty.dtype)
    shape, points = list(data.ty.shape), list(grid.ty.shape)
    if (
        site.spec.launches_grids
        or str(attrs.layout) != "NCHW"
        or not all(dtype in FLOATS for dtype in dtypes)
        or not all(isinstance(size, tirx.IntImm) for size in (*shape, *points))
        or is_empty(data.ty.shape)
        or is_empty(call.ty.shape)
    ):
        return call
    how = Sampling(str(attrs.method), str(attrs.padding_mode), bool(attrs.align_corners))
    batch, channels, height, width = (int(size) for size in shape)
    kernel = grid_sample(
        (batch, channels, height, width), [int(size) for size in points], dtypes, how, site.spec
    )
    flat = [
        site.reshape(data, [batch, channels, height * width]),
        site.reshape(grid, [batch, 2, -1]),
    ]
    return site.reshape(site.run(kernel, "grid_sample", flat)[0], call.ty.shape)


def _grid_sample_flops(op: Operation) -> int:
    return interpolation_flops(op, b"linear", len(known(op.inputs[0])) - 2)


register("AffineGrid", forming=(1,))
register("GridSample", convert=_grid_sample, flops=_grid_sample_flops)

register("relax.image.affine_grid", gpu=PERFORMS)
register("relax.image.grid_sample", lower=_lower_grid_sample, gpu=PERFORMS)
