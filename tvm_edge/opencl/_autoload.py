"""The ``tvm.backends`` entry point: TVM calls :func:`autoload` while it is being imported.

Of tvm_edge only what finds the library is imported, and of TVM nothing: it is not ready yet.
"""

from __future__ import annotations

from tvm_edge.library_path import library_path, native_library

__all__ = ["autoload", "library_path"]


def autoload() -> bool:
    """Make ``tvm.opencl()`` and the native runtime work; does not look for devices yet.

    Returns
    -------
    bool
        False if this TVM was built with OpenCL and keeps its own.
    """
    return bool(native_library().TvmEdgeOpenCLRegister())
