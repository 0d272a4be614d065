"""Mathematical functions by the names that OpenCL C has for them.

TVM has OpenCL rules for some twenty functions. All others fall to its rule for C, which appends an
``f`` for float32: ``atan2f``, ``tanf``, ``log1pf``. OpenCL C has one overloaded name for all types.
"""

from __future__ import annotations

import functools

import tvm
from tvm import tirx

__all__ = ["RENAMED", "register"]

RENAMED = {
    **{
        name: name
        for name in (
            "acos",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atan2",
            "atanh",
            "copysign",
            "hypot",
            "ldexp",
            "log1p",
            "nextafter",
            "tan",
        )
    },
    "nearbyint": "rint",  # OpenCL C has one name for the two
}
"""TVM's name → OpenCL's."""


@functools.cache
def register() -> None:
    """Add the rules to TVM's registry, once in a process."""
    for name, function in RENAMED.items():
        tirx.register_intrin_lowering(
            f"tirx.{name}", target="opencl", f=functools.partial(_call, function), level=99
        )


def _call(function: str, call: tvm.ir.Call) -> tirx.Expr:
    return tirx.call_pure_extern(str(call.ty.dtype), function, *call.args)
