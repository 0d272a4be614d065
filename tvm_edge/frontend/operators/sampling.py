"""GridSample at any points, numbers or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from tvm_edge.frontend.operators.base import Attributes, Converter, static_shape, text

__all__ = ["SAMPLING"]

_METHODS = {"linear": "bilinear", "cubic": "bicubic"}

# Pictures to either side of the middle of one. Farther away padding does not change any more, and
# where pictures are mirrored float32 has no digits left for the place in one.
_FAR = float(1 << 16)


def _grid_sample(
    bb: relax.BlockBuilder, inputs: Sequence[relax.Expr], attrs: Attributes
) -> relax.Expr:
    """TVM's kernel, of points that it can convert to integers.

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
        and 1 in (static_shape(data) or ())[2:]
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


SAMPLING: dict[str, Converter] = {"GridSample": _grid_sample}
