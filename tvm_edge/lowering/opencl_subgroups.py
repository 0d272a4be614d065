"""Sizes of sub-groups in front of the kernels that require them.

TVM's code generator for OpenCL writes no attribute of a kernel. It does hand each kernel's source
to the global function ``tvm_callback_opencl_postproc``, if there is one.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm_ffi

from tvm_edge.schedules.gpu.subgroup_calls import PIN

__all__ = ["pinned_sub_groups", "with_pinned_size"]

_HOOK = "tvm_callback_opencl_postproc"

_PINNED = re.compile(rf"^[ \t]*{PIN}\((\d+)\);\n", re.MULTILINE)
_KERNEL = re.compile(r"\b__kernel\b")

# The hook is the process's: compilations at the same time share it.
_lock = threading.Lock()
_users = 0
_before: Any = None


def with_pinned_size(source: str) -> str:
    """The source of one kernel with ``intel_reqd_sub_group_size`` in front, if it has a mark.

    Examples
    --------
    ``__kernel void f(…) { tvm_edge_sub_group_size(16); … }`` becomes
    ``__kernel __attribute__((intel_reqd_sub_group_size(16))) void f(…) { … }``.
    """
    sizes = set(_PINNED.findall(source))
    if not sizes:
        return source
    if len(sizes) > 1:
        raise ValueError(f"a kernel requires sub-groups of {' and of '.join(sorted(sizes))}")
    attribute = f"__attribute__((intel_reqd_sub_group_size({sizes.pop()})))"
    return _KERNEL.sub(f"__kernel {attribute}", _PINNED.sub("", source))


@contextmanager
def pinned_sub_groups() -> Iterator[None]:
    """Have TVM's code generator call :func:`with_pinned_size`, before what others registered.

    Sources without a mark are not changed, and afterwards TVM is as it was.
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


def _rewrite(source: str, target: Any) -> str:
    made = with_pinned_size(str(source))
    return made if _before is None else _before(made, target)
