"""Functions that OpenCL C is generated for."""

from __future__ import annotations

from tvm import tirx

__all__ = ["is_opencl"]


def is_opencl(func: tirx.PrimFunc) -> bool:
    """Return whether a kernel is for an OpenCL device."""
    target = None if func.attrs is None else func.attrs.get("target")
    return target is not None and target.kind.name == "opencl"
