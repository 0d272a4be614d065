"""The source of kernels in OpenCL C, between TVM's code generator and the driver.

TVM hands each kernel's source to the global function ``tvm_callback_opencl_postproc``, if there is
one, and declares all kernels of a module before each. For 120 kernels with 20 parameters that is
nine times the latency of generating the kernels. They are generated one by one, and joined.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm
import tvm_ffi

from tvm_edge.lowering.opencl_accesses import with_vector_accesses
from tvm_edge.lowering.opencl_attributes import with_attributes
from tvm_edge.lowering.opencl_extensions import with_extensions
from tvm_edge.lowering.opencl_splats import with_splats

__all__ = ["sources_rewritten", "without_declarations"]

_HOOK = "tvm_callback_opencl_postproc"
_GENERATOR = "target.build.opencl"
_JOIN = "tvm_edge.opencl.join"

_DECLARATION = re.compile(r"^__kernel void \w+\([^;{]*\);\n", re.MULTILINE)

# TVM's functions are the process's: compilations at the same time share them.
_lock = threading.Lock()
_users = 0
_before: dict[str, Any] = {}


@contextmanager
def sources_rewritten() -> Iterator[None]:
    """Have TVM's code generator rewrite what it writes, before what others registered.

    Afterwards TVM is as it was.
    """
    global _users
    with _lock:
        if _users == 0:
            for name, function in ((_HOOK, _rewrite), (_GENERATOR, _generate)):
                _before[name] = tvm_ffi.get_global_func(name, allow_missing=True)
                tvm_ffi.register_global_func(name, function, override=True)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                for name, function in _before.items():
                    if function is None:
                        tvm_ffi.registry.remove_global_func(name)
                    else:
                        tvm_ffi.register_global_func(name, function, override=True)
                _before.clear()


def without_declarations(source: str) -> str:
    """The source of one kernel without declarations of its module's, of which none calls another.

    By them equal kernels of two models would be two programs.
    """
    return _DECLARATION.sub("", source)


def _rewrite(source: str, target: Any) -> str:
    alone = with_splats(without_declarations(str(source)))
    made = with_extensions(with_vector_accesses(with_attributes(alone)))
    others = _before[_HOOK]
    return made if others is None else others(made, target)


def _generate(mod: tvm.IRModule, target: Any) -> tvm.runtime.Module:
    generate = _before[_GENERATOR]
    join = tvm_ffi.get_global_func(_JOIN, allow_missing=True)
    if join is None:  # TVM has an OpenCL runtime of its own
        return generate(mod, target)
    alone = (tvm.IRModule({gvar: func}) for gvar, func in mod.functions_items())
    return join([generate(one, target) for one in alone])
