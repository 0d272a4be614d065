"""Prior boxes as MXNet's ``MultiBoxPrior`` has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from tvm_edge.ops import registry
from tvm_edge.ops.kernel_site import KernelSite, is_empty
from tvm_edge.ops.registry import PERFORMS, register
from tvm_edge.schedules.vision import anchors

__all__ = ["MULTIBOX_PRIOR", "multibox_prior"]

MULTIBOX_PRIOR = "tvm_edge.multibox_prior"


def multibox_prior(
    data: relax.Expr,
    *,
    sizes: Sequence[float] = (1.0,),
    ratios: Sequence[float] = (1.0,),
    steps: Sequence[float] = (-1.0, -1.0),
    offsets: Sequence[float] = (0.5, 0.5),
    clip: bool = False,
) -> relax.Call:
    """Make boxes of several sizes and aspect ratios around each cell of a feature map.

    Liu et al., SSD, ECCV 2016, section 2.2, as MXNet calculates it. A cell has a box of each size
    at the first ratio, and then one of the first size at each other ratio.

    Parameters
    ----------
    data : relax.Expr
        ``(batch, channels, height, width)``. The shape alone matters.
    sizes : sequence of float
        Fractions of the picture's height.
    ratios : sequence of float
        Width to height, above 0.
    steps : sequence of float
        From one cell to the next, vertically and horizontally, as fractions of the picture. If one
        is not above 0, cells share the picture out evenly.
    offsets : sequence of float
        Place of the centre in its cell, vertically and horizontally.
    clip : bool
        Whether boxes are cut off at the picture's edges.

    Returns
    -------
    relax.Call
        ``(1, height * width * (len(sizes) + len(ratios) - 1), 4)`` of the type of `data`: corners
        x1, y1, x2, y2 as fractions of the picture, row after row. They are known when the model is
        compiled, and cost nothing in a run.

    Raises
    ------
    ValueError
        No size or ratio, or one that is no positive number; not two steps or offsets; `data` of
        other than four axes or of integers.
    """
    for name, values in (("sizes", sizes), ("ratios", ratios)):
        if not values or not all(0 < value < float("inf") for value in values):
            raise ValueError(f"{MULTIBOX_PRIOR}: {name} must be numbers above 0, not {values}")
    for name, values in (("steps", steps), ("offsets", offsets)):
        if len(values) != 2:
            raise ValueError(f"{MULTIBOX_PRIOR}: {name} must be two numbers, not {values}")
    return registry.call(
        MULTIBOX_PRIOR,
        [data],
        sizes=[float(size) for size in sizes],
        ratios=[float(ratio) for ratio in ratios],
        steps=[float(step) for step in steps],
        offsets=[float(offset) for offset in offsets],
        clip=clip,
    )


def _infer_type(call: relax.Call, _builder: relax.BlockBuilder) -> relax.Type:
    (data,) = (arg.ty for arg in call.args)
    dtype = str(data.dtype)
    if data.ndim != 4 or not dtype.startswith("float"):
        raise ValueError(
            f"{MULTIBOX_PRIOR}: data must have four dimensions of floats, not {data.ndim} of "
            f"{dtype}"
        )
    if data.shape is None:
        return relax.TensorType(dtype=dtype, vdevice=data.vdevice, ndim=3)
    height, width = data.shape[2], data.shape[3]
    per_cell = len(call.attrs["sizes"]) + len(call.attrs["ratios"]) - 1
    return relax.TensorType([1, height * width * per_cell, 4], dtype, data.vdevice)


def _lower(site: KernelSite, call: relax.Call) -> relax.Expr:
    """Make a constant."""
    attrs, shape, dtype = call.attrs, call.args[0].ty.shape, str(call.ty.dtype)
    if is_empty(call.ty.shape):
        return site.zeros(call.ty.shape, dtype)
    height, width = (int(size) for size in list(shape)[2:])
    names = ("sizes", "ratios", "steps", "offsets")
    how: dict[str, Any] = {name: [float(v) for v in attrs[name]] for name in names}
    boxes = anchors.prior_boxes(height, width, **how, clip=bool(attrs["clip"]))
    return relax.const(boxes.astype(dtype), dtype)


register(MULTIBOX_PRIOR, infer_type=_infer_type, lower=_lower, gpu=PERFORMS)
