"""Floating-point constants of OpenCL sources, exactly.

TVM's generator writes seven digits. The scale of quantised tensors is off by some 1e-7 then, and
what a model's author put in the middle between two numbers is rounded the other way: of a picture,
whose values are a grid too, a quarter of all numbers.
"""

from __future__ import annotations

from math import isfinite

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tvm_edge.lowering.opencl_functions import is_opencl

__all__ = ["ExactConstants"]

# Integers of the same size, and OpenCL's function that takes their bits.
_BITS = {"float32": ("int32", "as_float"), "float64": ("int64", "as_double")}


@tirx.transform.prim_func_pass(opt_level=0, name="ExactConstants")
class ExactConstants:
    """Give constants that seven digits do not tell as their bits.

    Runs last: nothing is calculated with such constants while compiling.

    Examples
    --------
    ``x / 0.1f`` stays, ``x / 0.123456789f`` becomes ``x / as_float(1039980266)``.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        if not is_opencl(func):
            return func
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.FloatImm, _exact)))


def _exact(constant: tirx.FloatImm) -> tirx.Expr:
    dtype, value = str(constant.ty.dtype), float(constant.value)
    if dtype not in _BITS or not isfinite(value):
        return constant
    stored = np.asarray(value, dtype)
    if np.asarray(f"{value:e}", dtype) == stored:
        return constant
    bits, function = _BITS[dtype]
    return tirx.call_pure_extern(dtype, function, tirx.const(int(stored.view(bits)), bits))
