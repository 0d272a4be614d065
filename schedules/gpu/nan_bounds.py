"""Bounds of float32 that keep NaN, in one instruction on NVIDIA GPUs from Ampere on.

ONNX keeps NaN in a ReLU, which in CUDA C is a comparison and a choice; both run at half of the rate
of an addition, and an epilogue in float16 has them for each result.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call

__all__ = ["bounded_keeping_nan"]

_SOURCE = """
__device__ __forceinline__ float {name}(float x, float bound) {{
#if __CUDA_ARCH__ >= 800
  asm("{instruction}.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(bound));
  return x;
#else
  return x {comparison} bound ? bound : x;
#endif
}}
"""
_AT_LEAST = ("tvm_edge_at_least", "max", "<")
_AT_MOST = ("tvm_edge_at_most", "min", ">")


def bounded_keeping_nan(expr: Any) -> Any:
    """Rewrite ``bound if x < bound else x``, and the same for ``>``, of float32."""

    def on_select(select: tirx.Select) -> Any:
        bound, value = select.true_value, select.false_value
        comparison = select.condition
        if str(select.ty.dtype) != "float32" or not isinstance(comparison, (tirx.LT, tirx.GT)):
            return select
        ends = [comparison.a, comparison.b]
        if isinstance(comparison, tirx.GT):
            ends.reverse()
        for sides, found in (((value, bound), _AT_LEAST), ((bound, value), _AT_MOST)):
            if all(map(tvm_ffi.structural_equal, ends, sides)):
                name, instruction, symbol = found
                code = _SOURCE.format(name=name, instruction=instruction, comparison=symbol)
                return cuda_func_call(name, value, bound, source_code=code, return_type="float32")
        return select

    return tvm_ffi.structural_map(expr, (tirx.Select, on_select))
