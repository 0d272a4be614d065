"""The source of kernels in OpenCL C, between TVM's code generator and the driver.

TVM hands each kernel's source to the global function ``tvm_callback_opencl_postproc``, if there is
one.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm_ffi

from tvm_edge.lowering.opencl_accesses import with_vector_accesses
from tvm_edge.lowering.opencl_attributes import with_attributes
from tvm_edge.lowering.opencl_extensions import with_extensions
from tvm_edge.lowering.opencl_splats import with_splats

__all__ = ["sources_rewritten", "without_declarations"]

_HOOK = "tvm_callback_opencl_postproc"

_DECLARATION = re.compile(r"^__kernel void \w+\([^;{]*\);\n", re.MULTILINE)

# The hook is the process's: compilations at the same time share it.
_lock = threading.Lock()
_users = 0
_before: Any = None


@contextmanager
def sources_rewritten() -> Iterator[None]:
    """Have TVM's code generator rewrite what it writes, before what others registered.

    Afterwards TVM is as it was.
    """
    global _users, _before
    with _lock:
        if _users == 0:
            _before = tvm_ffi.get_global_func(_HOOK, allow_missing=True)
            tvm_ffi.register_global_func(_HOOK, _rewrite, override=True)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                if _before is None:
                    tvm_ffi.registry.remove_global_func(_HOOK)
                else:
                    tvm_ffi.register_global_func(_HOOK, _before, override=True)
                _before = None


def without_declarations(source: str) -> str:
    """The source of one kernel without the declarations of its module's.

    TVM declares all of them in front of each, and none calls another: of a network with 200 they
    are most of the text, and by them equal kernels of two models would be two programs.
    """
    return _DECLARATION.sub("", source)


def _rewrite(source: str, target: Any) -> str:
    alone = with_splats(without_declarations(str(source)))
    made = with_extensions(with_vector_accesses(with_attributes(alone)))
    return made if _before is None else _before(made, target)
