"""The sizes of sub-groups and work-groups in front of kernels."""

from __future__ import annotations

import re

import pytest

from tests.schedules.gpu.harness import opencl_source
from tests.schedules.gpu.subgroup_cases import conv
from tvm_edge.lowering.opencl_attributes import with_attributes
from tvm_edge.schedules.gpu.subgroup_calls import PIN


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
