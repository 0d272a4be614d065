"""CUDA kernels that are launched early wait for those in front of them before they do anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm
from tvm import tirx

import tvm_edge
from tests.lowering.members import conv, product
from tests.onnx_models import ladder, make_model, random_input, reference, relative_error
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.lowering import cuda_pipeline
from tvm_edge.lowering.dependent_launches import DependentLaunches
from tvm_edge.lowering.parallel_members import compose

EARLY = "tirx.use_programtic_dependent_launch"
CALLS = [("wait", "")]


def kernels(func: tirx.PrimFunc, arch: str) -> list[tirx.PrimFunc]:
    """What is launched of a scheduled function."""
    target = resolve_target({"kind": "cuda", "arch": arch}).target
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with target:
        mod = tirx.transform.BindTarget(target)(mod)
        mod = tvm.transform.Sequential(cuda_pipeline.PASSES)(mod)
    return [one for _, one in mod.functions_items() if "tirx.kernel_launch_params" in one.attrs]


def first_calls(kernel: tirx.PrimFunc) -> list[tuple[str, ...]]:
    """Of PTX's ``griddepcontrol``, as the first statements of a kernel."""
    found = []
    for statement in kernel.body.seq if isinstance(kernel.body, tirx.SeqStmt) else ():
        if not isinstance(statement, tirx.Evaluate):
            break
        if getattr(statement.value.op, "name", None) == "tirx.ptx.griddepcontrol":
            found.append(tuple(arg.value for arg in statement.value.args))
    return found


def spec(arch: str) -> DeviceSpec:
    return resolve_target({"kind": "cuda", "arch": arch}).spec


def two_launches() -> tirx.PrimFunc:
    """A product whose summed axis is cut: what its parts add up to is a launch of its own."""
    return product(2, 33, 700, 40).scheduled(replace(spec("sm_87"), max_work_group_size=64))


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a", "sm_100", "sm_121"])
def test_every_kernel_waits_first(arch: str) -> None:
    found = kernels(two_launches(), arch)
    assert len(found) == 2
    for kernel in found:
        assert first_calls(kernel) == CALLS
        assert list(kernel.attrs["tirx.kernel_launch_params"]).count(EARLY) == 1


def test_merged_kernels() -> None:
    members = [conv(1, 4, 9, 8, 3), product(2, 33, 70, 40)]
    merged = compose([member.scheduled(spec("sm_90")) for member in members])
    found = kernels(merged, "sm_90")
    assert found and all(first_calls(kernel) == CALLS for kernel in found)


@pytest.mark.parametrize("arch", ["sm_75", "sm_87", "sm_89"])
def test_older_devices_have_no_such_instruction(arch: str) -> None:
    found = kernels(two_launches(), arch)
    assert len(found) == 2
    for kernel in found:
        assert not first_calls(kernel)
        assert EARLY not in list(kernel.attrs["tirx.kernel_launch_params"])


def test_the_size_of_local_memory_stays_the_last_parameter() -> None:
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    launched = ["blockIdx.x", "threadIdx.x", "tirx.use_dyn_shared_memory"]
    kernel = tirx.PrimFunc([], tirx.Evaluate(0)).with_attrs(
        {"target": target, "tirx.kernel_launch_params": launched}
    )
    mod = DependentLaunches()(tvm.IRModule({"kernel": kernel}))
    assert list(mod["kernel"].attrs["tirx.kernel_launch_params"]) == [EARLY, *launched]


def test_functions_of_the_host_stay() -> None:
    func = tirx.PrimFunc([], tirx.Evaluate(0)).with_attr(
        "target", tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    )
    assert DependentLaunches()(tvm.IRModule({"host": func}))["host"].same_as(func)


def test_kernels_read_what_those_in_front_wrote() -> None:
    """Small ones, each of which is launched while the one in front of it runs."""
    if not tvm.runtime.enabled("cuda") or not tvm.cuda(0).exist:
        pytest.skip("no CUDA device on this machine")
    nodes, weights, last = ladder(20)
    onnx_model = make_model(nodes, {"data": (1, 8, 14, 14)}, [last], weights)
    model = tvm_edge.compile(onnx_model, "cuda", fallback="none")
    for seed in range(100):
        inputs = {"data": random_input((1, 8, 14, 14), seed)}
        (expected,) = reference(onnx_model, inputs).values()
        (found,) = model.run(inputs).values()
        assert relative_error(found, expected) <= 1e-4
