"""Rounding of bounded float32 by additions, on NVIDIA GPUs.

An instruction that converts between types runs at an eighth of the rate of an addition, and int8
epilogues have one to three of them for each result. Where ``|x|`` is below 2**22, the sum
``x + 1.5 * 2**23`` has no bits for a fraction: it is rounded to even, and its lowest bits are the
integer.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.backend.cuda.op import cuda_func_call

__all__ = ["rounded_by_additions"]

_NEARBYINT = ir.Op.get("tirx.nearbyint")
_MOST = float(1 << 22)
_SOURCE = """
__device__ __forceinline__ int tvm_edge_nearest_int(float x) {
  return __float_as_int(__fadd_rn(x, 12582912.0f)) - 0x4B400000;
}
"""
_SOURCE_OF_FLOAT = """
__device__ __forceinline__ float tvm_edge_nearest(float x) {
  return __fadd_rn(__fadd_rn(x, 12582912.0f), -12582912.0f);
}
"""


def rounded_by_additions(expr: Any) -> Any:
    """Rewrite ``nearbyint`` of what is between two constants, and its conversion to int32."""

    def on_cast(cast: tirx.Cast) -> Any:
        value = _bounded(cast.value) if str(cast.ty.dtype) == "int32" else None
        if value is None:
            return cast
        return cuda_func_call(
            "tvm_edge_nearest_int", value, source_code=_SOURCE, return_type="int32"
        )

    def on_call(call: ir.Call) -> Any:
        value = _bounded(call)
        if value is None:
            return call
        return cuda_func_call(
            "tvm_edge_nearest", value, source_code=_SOURCE_OF_FLOAT, return_type="float32"
        )

    expr = tvm_ffi.structural_map(expr, (tirx.Cast, on_cast))
    return tvm_ffi.structural_map(expr, (ir.Call, on_call))


def _bounded(expr: Any) -> Any:
    """Return what `expr` rounds, if that is known to be small; ``None`` of all else."""
    if not isinstance(expr, ir.Call) or not expr.op.same_as(_NEARBYINT):
        return None
    (value,) = expr.args
    sides: list[Any] = [value, *_sides(value)]
    sides += [inner for side in _sides(value) for inner in _sides(side)]
    kinds = {type(side) for side in sides if isinstance(side, (tirx.Min, tirx.Max))}
    limits = [side.value for side in sides if isinstance(side, tirx.FloatImm)]
    known = kinds == {tirx.Min, tirx.Max} and len(limits) == 2
    return value if known and all(abs(limit) < _MOST for limit in limits) else None


def _sides(expr: Any) -> list[Any]:
    return [expr.a, expr.b] if isinstance(expr, (tirx.Min, tirx.Max)) else []
