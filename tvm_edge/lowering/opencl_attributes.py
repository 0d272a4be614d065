"""Attributes of OpenCL kernels: the size of their sub-groups, and of their work-groups.

TVM's code generator for OpenCL writes no attribute of a kernel: what a kernel requires stands in
its body as calls, which are moved before it in the source.
"""

from __future__ import annotations

import re

import tvm
from tvm import tirx

from tvm_edge.lowering.opencl_functions import is_opencl
from tvm_edge.schedules.accesses import constant, nodes_in
from tvm_edge.schedules.gpu.subgroup_calls import PIN

__all__ = ["RequireWorkGroups", "with_attributes"]

_WORK_GROUP = "tvm_edge_work_group_size"

_ATTRIBUTES = {PIN: "intel_reqd_sub_group_size", _WORK_GROUP: "reqd_work_group_size"}

_MARK = re.compile(rf"^[ \t]*({'|'.join(_ATTRIBUTES)})\(([\d, ]+)\);\n", re.MULTILINE)
# Its definition, not its declaration.
_KERNEL = re.compile(r"\b__kernel\b(?=[^;{]*\{)")


@tirx.transform.prim_func_pass(opt_level=0, name="RequireWorkGroups")
class RequireWorkGroups:
    """Mark kernels with the work-group that they are launched in, if it is always the same.

    A driver then builds them for that size, and tells if it cannot run it
    (:func:`tvm_edge.opencl.too_large_kernels`). Runs on the kernels that ``SplitHostDevice`` made.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        sizes = {
            str(attribute.node.thread_tag): constant(attribute.value)
            for attribute in nodes_in(func.body, tirx.AttrStmt)
            if attribute.attr_key == "thread_extent"
        }
        if not is_opencl(func) or not sizes:
            return func
        group = [sizes.get(f"threadIdx.{axis}", 1) for axis in "xyz"]
        if None in group:
            return func
        mark = tirx.Evaluate(tirx.call_extern("int32", _WORK_GROUP, *group))
        return func.with_body(tirx.SeqStmt([mark, func.body]))


def with_attributes(source: str) -> str:
    """Return the source of one kernel with attributes before it for the marks in it.

    Examples
    --------
    ``__kernel void f(…) { tvm_edge_sub_group_size(16); … }`` becomes
    ``__kernel __attribute__((intel_reqd_sub_group_size(16))) void f(…) { … }``.
    """
    required: dict[str, str] = {}
    for mark, size in _MARK.findall(source):
        if required.setdefault(mark, size) != size:
            raise ValueError(f"a kernel has {mark} of {required[mark]} and of {size}")
    if not required:
        return source
    attributes = [f"__attribute__(({_ATTRIBUTES[mark]}({required[mark]})))" for mark in required]
    return _KERNEL.sub(" ".join(["__kernel", *sorted(attributes)]), _MARK.sub("", source))
