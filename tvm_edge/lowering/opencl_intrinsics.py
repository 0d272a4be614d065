"""Mathematical functions by the names that OpenCL C has for them.

TVM has OpenCL rules for some twenty functions. All others fall to its rule for C, which appends an
``f`` for float32: ``atan2f``, ``tanf``, ``log1pf``. OpenCL C has one overloaded name for all types.

What is read as bits of another type is ``as_float(x)`` there. TVM's rule for C takes an address,
and the bits that a bfloat16 becomes are a value that has none.
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

_TYPES = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    **{
        f"{sign}int{bits}": f"{sign}{name}"
        for sign in ("", "u")
        for bits, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))
    },
}


@functools.cache
def register() -> None:
    """Add the rules to TVM's registry, once in a process."""
    for name, function in RENAMED.items():
        tirx.register_intrin_lowering(
            f"tirx.{name}", target="opencl", f=functools.partial(_call, function), level=99
        )

    tirx.register_intrin_lowering("tirx.reinterpret", target="opencl", f=_as_bits, level=99)


def _as_bits(call: tvm.ir.Call) -> tirx.Expr:
    # Of types without a name here, such as eight bits of a float, TVM's own rule remains.
    kind = tvm.DataType(str(call.ty.dtype))
    lanes = "" if kind.lanes == 1 else str(kind.lanes)
    name = _TYPES.get(str(kind.with_lanes(1)))
    return (
        call
        if name is None
        else tirx.call_pure_extern(str(kind), f"as_{name}{lanes}", call.args[0])
    )


def _call(function: str, call: tvm.ir.Call) -> tirx.Expr:
    return tirx.call_pure_extern(str(call.ty.dtype), function, *call.args)
