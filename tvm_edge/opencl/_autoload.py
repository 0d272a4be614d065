"""The ``tvm.backends`` entry point: TVM calls :func:`autoload` while it is being imported.

Nothing else of tvm_edge is imported here, and of TVM nothing at all: it is not ready yet.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
from pathlib import Path

__all__ = ["autoload", "library_path"]

_NAME = "libtvm_edge_runtime.so.0"


def library_path() -> Path:
    """The runtime's shared library.

    Raises
    ------
    FileNotFoundError
        The package was copied or installed without being built.
    """
    chosen = os.environ.get("TVM_EDGE_RUNTIME")
    here = Path(__file__).parents[1] / "native" / "lib" / _NAME
    # An editable install leaves Python files in the checkout and puts what it builds here.
    installed = Path(sysconfig.get_path("platlib"), "tvm_edge", "native", "lib", _NAME)
    candidates = [Path(chosen)] if chosen else [here, installed]
    for path in candidates:
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"{' and '.join(map(str, candidates))}: not there, so there are no models and no OpenCL; "
        "install tvm-edge again: pip install --force-reinstall tvm-edge"
    )


def autoload() -> bool:
    """Make ``tvm.opencl()`` and the worker pool work; does not look for devices yet.

    Returns
    -------
    bool
        False if this TVM was built with OpenCL and keeps its own.
    """
    library = ctypes.CDLL(str(library_path()))
    library.TvmEdgeNativeRegister()
    return bool(library.TvmEdgeOpenCLRegister())
