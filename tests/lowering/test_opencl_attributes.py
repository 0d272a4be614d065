"""The size of sub-groups in front of kernels, and TVM as it was."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm_ffi

from tests.schedules.gpu.harness import opencl_source
from tests.schedules.gpu.subgroup_cases import conv
from tvm_edge.lowering.opencl_attributes import attributes_in_front, with_attributes
from tvm_edge.schedules.gpu.subgroup_calls import PIN

HOOK = "tvm_callback_opencl_postproc"


def test_a_source_gets_the_size_that_it_is_marked_with() -> None:
    others = "__kernel void f(int a);\n__kernel void g(int a);\n"
    source = f"{others}__kernel void f(int a) {{\n  {PIN}(16);\n  a = 1;\n}}\n"
    required = "__kernel __attribute__((intel_reqd_sub_group_size(16))) void f(int a)"
    assert with_attributes(source) == f"{others}{required} {{\n  a = 1;\n}}\n"
    plain = "__kernel void g() {}\n"
    assert with_attributes(plain) == plain
    with pytest.raises(ValueError, match="16 and of 8"):
        with_attributes(source.replace("a = 1;", f"\n  {PIN}(8);\n"))


def test_kernels_require_the_groups_that_they_are_launched_in() -> None:
    """Each of a function's kernels its own; none where the length of a grid is found in the run."""
    text = opencl_source(
        conv(1, 4, 7, 9, outputs=4, kernel=(3, 3), pads=[1] * 4).model(), "mali-t860"
    )
    definitions = [line for line in text.splitlines() if line.endswith("{") and "__kernel" in line]
    sizes = [re.findall(r"reqd_work_group_size\((\d+), (\d+), (\d+)\)", d) for d in definitions]
    assert len(definitions) == 2 and all(len(size) == 1 for size in sizes)
    assert sizes[0] != sizes[1]


def test_the_hook_is_gone_after_a_compilation() -> None:
    assert tvm_ffi.get_global_func(HOOK, allow_missing=True) is None
    with pytest.raises(RuntimeError, match="in between"), attributes_in_front():
        with attributes_in_front():
            assert tvm_ffi.get_global_func(HOOK, allow_missing=True) is not None
        assert tvm_ffi.get_global_func(HOOK, allow_missing=True) is not None
        raise RuntimeError("in between")
    assert tvm_ffi.get_global_func(HOOK, allow_missing=True) is None


def test_the_hook_of_another_user_is_called_and_stays() -> None:
    def other(source: str, _target: Any) -> str:
        return f"/* of another user */\n{source}"

    tvm_ffi.register_global_func(HOOK, other)
    try:
        graph = conv(1, 4, 6, 24, outputs=4, kernel=(3, 3))
        made = opencl_source(graph.model(), "intel-hd505")
        assert "of another user" in made and "intel_reqd_sub_group_size" in made
        assert "of another user" in tvm_ffi.get_global_func(HOOK)("", None)
        assert "reqd" not in tvm_ffi.get_global_func(HOOK)(
            f"__kernel void f() {{\n{PIN}(8);\n}}", None
        )
    finally:
        tvm_ffi.registry.remove_global_func(HOOK)
