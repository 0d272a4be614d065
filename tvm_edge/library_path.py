"""Place of the native runtime's shared library.

TVM's import comes by here: of tvm_edge and of TVM nothing is imported.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
from functools import cache
from pathlib import Path

__all__ = ["library_path", "native_library"]

_NAME = "libtvm_edge_runtime.so.0"


def library_path() -> Path:
    """The runtime's shared library.

    Raises
    ------
    FileNotFoundError
        The package was copied or installed without being built.
    """
    chosen = os.environ.get("TVM_EDGE_RUNTIME")
    here = Path(__file__).parent / "native" / "lib" / _NAME
    # An editable install leaves Python files in the checkout and puts what it builds here.
    installed = Path(sysconfig.get_path("platlib"), "tvm_edge", "native", "lib", _NAME)
    candidates = [Path(chosen)] if chosen else [here, installed]
    for path in candidates:
        if path.is_file():
            return path
    advice = "install tvm-edge again: pip install --force-reinstall tvm-edge"
    if chosen:
        advice = "TVM_EDGE_RUNTIME names it: unset that, or name the library"
    raise FileNotFoundError(
        f"{' and '.join(map(str, candidates))}: not there, so nothing runs models; {advice}"
    )


@cache
def native_library() -> ctypes.CDLL:
    """Load the library, and have it register its functions for models.

    Raises
    ------
    FileNotFoundError
    """
    library = ctypes.CDLL(str(library_path()))
    library.TvmEdgeNativeRegister()
    return library
