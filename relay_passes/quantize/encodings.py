"""Encodings of real numbers in 8 bits, and constants for each channel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from tvm_edge.ops import quantize
from tvm_edge.relay_passes.ir.expressions import const, constant_of

__all__ = ["Encoding", "by_channel", "encoding_of", "moved", "of_channels", "rounded"]


@dataclass(frozen=True)
class Encoding:
    """``real = (number - zero) · scale``, for a whole tensor."""

    scale: float
    zero: int
    dtype: str

    def stored_as(self, dtype: str) -> Encoding:
        """Encoding of these numbers, moved into the range of another type."""
        if dtype == self.dtype:
            return self
        return replace(self, dtype=dtype, zero=self.zero + _shift(self.dtype, dtype))

    def bound(self, real: float) -> int:
        """The number that a real one is rounded to, which may be out of range."""
        steps = np.rint(np.float32(real) / np.float32(self.scale))
        return int(np.clip(steps, -1e6, 1e6)) + self.zero


def encoding_of(call: relax.Call, dtype: str) -> Encoding | None:
    """Encoding of a QUANTIZE or DEQUANTIZE of numbers of a type; ``None`` if it is of channels."""
    scale, zero = constant_of(call.args[1]), constant_of(call.args[2])
    if scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return None
    return Encoding(scale.item(), zero.item(), dtype)


def _shift(before: str, after: str) -> int:
    return int(np.iinfo(after).min) - int(np.iinfo(before).min)


def moved(value: relax.Expr, dtype: str) -> relax.Expr:
    """8-bit numbers moved into the range of another type."""
    own = str(value.ty.dtype)
    if own == dtype:
        return value
    wide = relax.op.astype(value, "int32")
    return relax.op.astype(relax.op.add(wide, relax.const(_shift(own, dtype), "int32")), dtype)


def rounded(value: relax.Expr, encoding: Encoding) -> relax.Expr:
    """A tensor in units of the scale, rounded and moved by the zero point."""
    one, zero = relax.const(1.0, "float32"), relax.const(encoding.zero, "int32")
    return quantize(value, one, zero, encoding.dtype)


def by_channel(value: np.ndarray, dtype: str) -> relax.Expr:
    """A constant for each channel of ``[N, O, H, W]``; one for all where they are the same."""
    if (value == value[0]).all():
        return const(value[0], dtype)
    return const(value.reshape(1, -1, 1, 1), dtype)


def of_channels(value: np.ndarray, rank: int, axis: int, count: int) -> np.ndarray | None:
    """A constant that is broadcast to a tensor, as one number for each element of `axis`.

    ``None`` if it differs along another axis, or has another length.
    """
    if value.ndim > rank:
        return None
    shape = (1,) * (rank - value.ndim) + value.shape
    if any(length not in (1, count if i == axis else 1) for i, length in enumerate(shape)):
        return None
    return np.broadcast_to(value.reshape(-1), (count,))
