"""Types of eight bits and fewer: stored as uint8, one an element, and converted by tables.

TVM packs, rounds and compares them otherwise than ONNX, and not every device has them. What they
stand for is a table of 256 entries; which of them a number is rounded to is a search among the
middles between neighbours. ``ml_dtypes`` says what each byte means.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tvm import relax

from tvm_edge.ops.converter import scalar

__all__ = ["SMALL_TYPES", "STORED_AS", "decoded", "encoded"]

_FLOATS = (
    "float4_e2m1fn",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
_BITS = {"int2": 2, "int4": 4, "uint2": 2, "uint4": 4}

SMALL_TYPES = frozenset((*_FLOATS, *_BITS))
"""Names as NumPy and ``ml_dtypes`` have them."""

STORED_AS = "uint8"
"""The type that they are stored as."""


def decoded(bb: relax.BlockBuilder, x: relax.Expr, kind: str) -> relax.Expr:
    """Return in float32, which holds all of them, the numbers that are stored as `kind`."""
    values = np.arange(256, dtype="uint8").view(getattr(ml_dtypes, kind)).astype("float32")
    index = bb.emit(relax.op.astype(x, "int32"))
    return bb.emit(relax.op.take(relax.const(values, "float32"), index, 0, mode="clip"))


def encoded(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    kind: str,
    *,
    saturate: bool = True,
    round_mode: str = "nearest",
) -> relax.Expr:
    """Store numbers as the type `kind`.

    Parameters
    ----------
    bb, x, kind
    saturate : bool
        Whether a float of eight bits that is too large is the largest there is; else it is infinite
        or no number, whichever the type has.
    round_mode : {"nearest", "up", "down"}
        For ``float8_e8m0fnu``, of which every value is a power of two.
    """
    if kind in _BITS:
        return _whole(bb, x, kind)
    dtype = getattr(ml_dtypes, kind)
    if str(x.ty.dtype) != "float32":
        x = bb.emit(relax.op.astype(x, "float32"))
    bounds, codes = _rounding(kind, saturate, round_mode)
    size = bb.emit(relax.op.abs(x))
    place = bb.emit(relax.op.bucketize(size, relax.const(bounds, "float32"), True, False))
    result = _looked_up(bb, codes, place)
    if kind != "float8_e8m0fnu":
        with np.errstate(all="ignore"):
            negative = (-codes.view(dtype).astype("float32")).astype(dtype).view("uint8")
        below = bb.emit(relax.op.less(x, scalar(0.0, x)))
        result = bb.emit(relax.op.where(below, _looked_up(bb, negative, place), result))
    with np.errstate(all="ignore"):
        no_number = np.asarray(np.nan, "float32").astype(dtype).view("uint8")
    return bb.emit(relax.op.where(relax.op.isnan(x), relax.const(no_number, STORED_AS), result))


def _rounding(kind: str, saturate: bool, round_mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Bounds between sizes of numbers, and the codes of what is between them."""
    dtype = getattr(ml_dtypes, kind)
    count = 256 if kind == "float8_e8m0fnu" else 8 if kind.startswith("float4") else 128
    codes = np.arange(count, dtype="uint8")
    values = codes.view(dtype).astype("float64")
    codes, values = codes[np.isfinite(values)], values[np.isfinite(values)]
    if round_mode == "up":
        return values[:-1].astype("float32"), codes
    if round_mode == "down":
        return _just_below(values[1:]), codes
    # After the largest, as if one more followed at the same distance.
    beyond = values[-1] + (values[-1] - values[-2])
    middles = (values + np.append(values[1:], beyond)) / 2
    # A middle goes to the even one of its neighbours, the upper one by a bound just below it.
    bounds = np.where(codes % 2 == 1, _just_below(middles), middles.astype("float32"))
    if saturate:
        return bounds[:-1].astype("float32"), codes
    with np.errstate(all="ignore"):
        overflow = np.asarray([np.inf], "float32").astype(dtype).view("uint8")
    return bounds.astype("float32"), np.append(codes, overflow)


def _just_below(values: np.ndarray) -> np.ndarray:
    return np.nextafter(values.astype("float32"), np.float32(-np.inf))


def _looked_up(bb: relax.BlockBuilder, codes: np.ndarray, place: relax.Expr) -> relax.Expr:
    return bb.emit(relax.op.take(relax.const(codes, STORED_AS), place, 0, mode="clip"))


def _whole(bb: relax.BlockBuilder, x: relax.Expr, kind: str) -> relax.Expr:
    """The low bits of what is before the point, with the sign in all the bits above them."""
    bits = _BITS[kind]
    wide = bb.emit(relax.op.astype(x, "int32"))
    low = bb.emit(relax.op.bitwise_and(wide, scalar((1 << bits) - 1, wide)))
    if kind.startswith("int"):
        sign = scalar(1 << (bits - 1), wide)
        low = bb.emit(relax.op.subtract(relax.op.bitwise_xor(low, sign), sign))
    return bb.emit(relax.op.astype(relax.op.bitwise_and(low, scalar(255, wide)), STORED_AS))
