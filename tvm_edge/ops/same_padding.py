"""Pads of ``auto_pad`` SAME_UPPER and SAME_LOWER along axes whose lengths only the run tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx

from tvm_edge.ops.converter import Attributes, text
from tvm_edge.ops.elements import plain
from tvm_edge.ops.movement.run_time_pads import pad_by
from tvm_edge.relay_passes.ir.expressions import lengths_of

__all__ = ["SamePads", "padded_image", "same_pads"]


@dataclass(frozen=True)
class SamePads:
    """Pads before and after each spatial axis: numbers, or expressions of lengths."""

    before: tuple[Any, ...]
    after: tuple[Any, ...]

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """The attribute ``pads``; ``None`` where a run decides."""
        whole = (*self.before, *self.after)
        return None if any(isinstance(width, tirx.Expr) for width in whole) else whole


def same_pads(x: relax.Expr, window: Sequence[int], attrs: Attributes) -> SamePads | None:
    """Return the pads that ``auto_pad`` stands for.

    Parameters
    ----------
    x : relax.Expr
        Image ``(N, C, *lengths)``.
    window : sequence of int
        Lengths of the kernel.
    attrs : mapping
        Attributes of the node.

    Returns
    -------
    SamePads or None
        ``None`` where there is no such ``auto_pad``, or all lengths are numbers: TVM's converter
        does those.
    """
    auto, shape = text(attrs, "auto_pad", "NOTSET"), lengths_of(x.ty)
    if auto not in ("SAME_UPPER", "SAME_LOWER") or shape is None:
        return None
    if not any(isinstance(length, tirx.Expr) for length in shape[2:]):
        return None
    before, after = [], []
    ones = [1] * len(window)
    strides, dilations = attrs.get("strides", ones), attrs.get("dilations", ones)
    for length, k, stride, dilation in zip(shape[2:], window, strides, dilations, strict=True):
        reach = (int(k) - 1) * int(dilation) + 1
        total = _total(length, reach, int(stride))
        small = total // 2 if isinstance(total, int) else plain(tirx.floordiv(total, 2))
        large = plain(total - small)
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return SamePads(tuple(before), tuple(after))


def _total(length: Any, reach: int, stride: int) -> Any:
    """Return both pads of an axis: the results are as many as strides begin in it.

    As an expression it is a sum with the length, which cancels in the shape of the padded image.
    """
    if stride == 1:
        return reach - 1
    starts = -(-length // stride) if isinstance(length, int) else _starts(length, stride)
    total = (starts - 1) * stride + reach - length
    if isinstance(total, int):
        return max(total, 0)
    return plain(total if reach >= stride else tirx.max(total, tirx.IntImm("int64", 0)))


def _starts(length: tirx.Expr, stride: int) -> tirx.Expr:
    return tirx.floordiv(length + (stride - 1), tirx.IntImm("int64", stride))


def padded_image(
    bb: relax.BlockBuilder, x: relax.Expr, pads: SamePads, lowest: bool = False
) -> relax.Var:
    """Pad an image by expressions: with zeros, or with the least value of its type."""
    fill, dtype = None, str(x.ty.dtype)
    if lowest:
        least = -np.inf if "float" in dtype else np.iinfo(dtype).min
        fill = relax.const(np.asarray(least, dtype), dtype)
    return pad_by(bb, x, (0, 0, *pads.before), (0, 0, *pads.after), fill=fill)
