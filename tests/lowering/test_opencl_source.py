"""Sources rewritten on their way to the driver, and TVM as it was."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm
import tvm_ffi

from tests.schedules.gpu.harness import opencl_source
from tests.schedules.gpu.subgroup_cases import conv
from tvm_edge import zoo
from tvm_edge.lowering.opencl_source import sources_rewritten, without_declarations
from tvm_edge.schedules.gpu.subgroup_calls import PIN

HOOK = "tvm_callback_opencl_postproc"
GENERATOR = "target.build.opencl"


def test_the_hook_is_gone_after_a_compilation() -> None:
    assert tvm_ffi.get_global_func(HOOK, allow_missing=True) is None
    with pytest.raises(RuntimeError, match="in between"), sources_rewritten():
        with sources_rewritten():
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


def test_kernels_are_generated_one_by_one_and_joined() -> None:
    """TVM's generator declares all kernels of a module for each: its time goes by their square."""
    generate = tvm_ffi.get_global_func(GENERATOR)
    sizes: list[int] = []

    def counting(mod: tvm.IRModule, target: Any) -> Any:
        sizes.append(len(mod.functions))
        return generate(mod, target)

    tvm_ffi.register_global_func(GENERATOR, counting, override=True)
    try:
        made = opencl_source(zoo.build("squeezenet1_0", image_size=64, width=0.25), "mali-g76")
        assert len(sizes) > 20 and set(sizes) == {1}
        assert made.count("// Function: ") == made.count("__kernel") == len(sizes)
        sizes.clear()
        tvm_ffi.get_global_func(GENERATOR)(tvm.IRModule({}), tvm.target.Target("opencl"))
        assert sizes == [0], "afterwards TVM is as it was"
    finally:
        tvm_ffi.register_global_func(GENERATOR, generate, override=True)


def test_modules_of_others_are_not_joined() -> None:
    join = tvm_ffi.get_global_func("tvm_edge.opencl.join")
    host = tvm_ffi.get_global_func("target.build.llvm")(tvm.IRModule({}), tvm.target.Target("llvm"))
    with pytest.raises(TypeError, match="of kind 'llvm' cannot be joined with OpenCL modules"):
        join([host])


def test_a_kernel_declares_none() -> None:
    declared = "__kernel void {}(__global float* restrict a,\n __global int* b);\n"
    defined = "__kernel void own(__global float* restrict a) {\n  a[0] = 1;\n}\n"
    every = "".join(declared.format(name) for name in ("other", "own_1", "own"))
    assert without_declarations(every + defined) == defined
    made = opencl_source(conv(1, 4, 6, 24, outputs=4, kernel=(3, 3)).model(), "mali-t860")
    # By them equal kernels of two models would be two programs.
    assert re.findall(r"__kernel[^;{]*([;{])", made) == ["{"]
