"""Schedules of CPUs as launches, on an OpenCL device that is a CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto

from tests.onnx_models import reference
from tests.schedules.blocked_harness import (
    OPENCL_SPECS,
    Compiled,
    Conv,
    check_convs,
    compile_as,
    direct,
)
from tests.schedules.gpu.harness import check_gpu
from tests.schedules.graphs import network
from tests.schedules.harness import Graph, assert_close, kernels_of
from tvm_edge.hardware import DeviceSpec, resolve_target
from tvm_edge.lowering import opencl_pipeline
from tvm_edge.schedules.base import workspace_of
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.blocked_knobs import Knobs
from tvm_edge.schedules.grid import GRID, as_grid, schedule
from tvm_edge.schedules.knobs import knobs_as_text

WIDEST = OPENCL_SPECS[0]

any_spec = pytest.mark.parametrize("spec", OPENCL_SPECS, ids=lambda spec: spec.key)


@pytest.fixture
def on_cpu(on_opencl: None) -> DeviceSpec:
    """An OpenCL device of this machine that is a CPU; skips where there is none."""
    spec = resolve_target("opencl").spec
    if not spec.on_cpu:
        pytest.skip(f"{spec.name} is no CPU")
    return spec


def winograd(workload: ConvWorkload, spec: DeviceSpec) -> ConvConfig:
    """Winograd's algorithm with tiles of 4x4."""
    return ConvConfig("winograd", spec.lanes(), 4)


def check(graph: Graph, spec: DeviceSpec) -> Compiled:
    """Compare a graph on this machine's OpenCL with ONNX Runtime."""
    model = graph.model()
    compiled = compile_as(model, spec)
    actual = compiled.model.run(graph.values)
    for name, expected in reference(model, graph.values).items():
        assert_close(actual[name], expected, f"{name} of\n{onnx.printer.to_text(model.graph)}")
    return compiled


# ------------------------------------------------------------------------- without a device


def test_every_kernel_of_a_network_is_launched() -> None:
    """By the rules that schedule it for LLVM; none is left to the rules of GPUs."""
    kernels = kernels_of(network().model())
    assert len(kernels) > 8
    for kernel in kernels:
        made = schedule(kernel.func, WIDEST)
        assert made.rule == kernel.scheduled.rule
        assert made.func.attrs.get(GRID, False), kernel.name
        assert as_grid(made.func) is not None


def test_what_launches_share_is_workspace_and_the_rest_is_private() -> None:
    compiled = compile_as(conv_model(Conv(channels=32, filters=32)), WIDEST, winograd)
    (kernel,) = (k for k in compiled.kernels.values() if k.scheduled.rule == "winograd")
    grid = as_grid(kernel.scheduled.func)
    assert grid is not None
    # Transformed inputs and products.
    assert [len(buffer.shape) for buffer in workspace_of(grid)] == [4, 4]
    private = list(grid.body.block.alloc_buffers)
    assert private and {buffer.scope() for buffer in private} == {"local"}


def test_private_memory_is_bounded() -> None:
    """Lines padded for a task of very many channels outgrow a thread's stack."""
    spec = replace(WIDEST, l2_cache=1 << 30)
    few, many = (
        compile_as(conv_model(conv), spec, task_padding)
        for conv in (
            Conv(channels=64, image=(3, 40), epilogue="none"),
            Conv(channels=4096, image=(3, 40), epilogue="none"),
        )
    )
    assert few.rules_of("conv") == {"conv2d_blocked"}
    assert "conv2d_blocked" not in many.rules_of("conv")


def task_padding(workload: ConvWorkload, spec: DeviceSpec) -> ConvConfig:
    return ConvConfig("direct", spec.lanes(), 0, knobs_as_text(Knobs(1, 8, 1, "lines", "task")))


def conv_model(conv: Conv) -> onnx.ModelProto:
    graph = Graph()
    graph.output(conv.build(graph))
    return graph.model()


# -------------------------------------------------------------------------------- on pocl


@any_spec
def test_convolutions_with_every_epilogue(spec: DeviceSpec, on_cpu: DeviceSpec) -> None:
    """Remainders of tiles in both directions, strides, groups, few channels, depthwise."""
    lanes = spec.lanes()
    convs = [
        Conv(channels=2 * lanes, filters=3 * lanes, image=(7, 29), epilogue="bias"),
        Conv(channels=lanes, filters=2 * lanes, image=(15, 17), strides=(2, 2), epilogue="silu"),
        Conv(channels=2 * lanes, filters=lanes, kernel=(1, 1), pads=(0,) * 4, epilogue="residual"),
        Conv(channels=3, filters=lanes, image=(21, 19), kernel=(7, 7), strides=(2, 2)),
        Conv(channels=2 * lanes, filters=2 * lanes, groups=2, epilogue="clip"),
    ]
    compiled = check_convs(convs, spec, direct)
    for i, _ in enumerate(convs):
        assert compiled.rules_of(f"conv{i}") == {"conv2d_blocked"}


@any_spec
def test_depthwise(spec: DeviceSpec, on_cpu: DeviceSpec) -> None:
    lanes = spec.lanes()
    count = 3 * lanes
    conv = Conv(channels=count, filters=count, groups=count, image=(13, 11), strides=(1, 2))
    assert check_convs([conv], spec, direct).rules_of("conv0") == {"window_blocked"}


@any_spec
def test_winograd(spec: DeviceSpec, on_cpu: DeviceSpec) -> None:
    """Tiles that reach beyond the image; the operand of a residual is overwritten in place."""
    lanes = spec.lanes()
    convs = [
        Conv(channels=2 * lanes, filters=3 * lanes, image=(11, 14), epilogue="residual"),
        Conv(channels=2 * lanes, filters=lanes, image=(8, 8), epilogue="silu"),
    ]
    compiled = check_convs(convs, spec, winograd)
    assert {rule for i in (0, 1) for rule in compiled.rules_of(f"conv{i}")} == {"winograd"}


def test_a_concatenation_written_in_place(on_cpu: DeviceSpec) -> None:
    """Kernels with workspace write into a larger result."""
    lanes = on_cpu.lanes()
    graph = Graph()
    first = Conv(channels=lanes, filters=2 * lanes, kernel=(1, 1), pads=(0,) * 4)
    data = first.build(graph, "squeeze")
    beside = Conv(channels=2 * lanes, filters=lanes, kernel=(1, 1), pads=(0,) * 4)
    expand = Conv(channels=2 * lanes, filters=2 * lanes)
    parts = [beside.build(graph, "beside", data), expand.build(graph, "expand", data)]
    joined = graph.op("Concat", *parts, axis=1)
    last = Conv(channels=3 * lanes, filters=lanes, kernel=(1, 1), pads=(0,) * 4)
    graph.output(last.build(graph, "last", joined))
    model = graph.model()
    compiled = compile_as(model, on_cpu, winograd_where_it_can)
    assert compiled.rules_of("expand") == {"winograd"}
    assert not any("concat" in kernel.name for kernel in compiled.report.kernels)
    actual = compiled.model.run(graph.values)
    for name, expected in reference(model, graph.values).items():
        assert_close(actual[name], expected, name)


def test_channels_picked_out_of_blocks(on_cpu: DeviceSpec) -> None:
    """A shuffle of channels is a kernel written with the loops of a CPU."""
    lanes = on_cpu.lanes()
    graph = Graph()
    first = Conv(channels=lanes, filters=2 * lanes).build(graph, "first")
    groups = graph.op("Reshape", first, graph.constant(np.array([1, 2, lanes, 9, 9], "int64")))
    mixed = graph.op("Transpose", groups, perm=[0, 2, 1, 3, 4])
    joined = graph.op("Reshape", mixed, graph.constant(np.array([1, 2 * lanes, 9, 9], "int64")))
    graph.output(Conv(channels=2 * lanes, filters=lanes).build(graph, "last", joined))
    compiled = check(graph, on_cpu)
    assert "handwritten" in {kernel.rule for kernel in compiled.report.kernels}
    for kernel in compiled.kernels.values():
        assert kernel.scheduled.func.attrs.get(GRID, False), kernel.name


def winograd_where_it_can(workload: ConvWorkload, spec: DeviceSpec) -> ConvConfig:
    choose = winograd if workload.kernel == (3, 3) else direct
    return choose(workload, spec)


@pytest.mark.parametrize("columns", [1, 5, 16, 37, 16007])
def test_truth_values_and_choices(columns: int, on_cpu: DeviceSpec) -> None:
    """Comparisons, their conversion, choices by lane and by line, remainders of any length."""
    graph = Graph()
    a, b, line = graph.input(3, columns), graph.input(3, columns), graph.input(3, 1)
    less = graph.op("Less", a, b)
    graph.output(less, TensorProto.BOOL)
    graph.output(graph.op("Where", less, a, graph.op("Mul", b, b)))
    graph.output(graph.op("Where", graph.op("Greater", line, graph.constant(0.0)), a, b))
    graph.output(graph.op("Cast", graph.op("Not", less), to=TensorProto.FLOAT))
    graph.output(graph.op("Softmax", a, axis=-1))
    check(graph, on_cpu)


def test_plain_kernels_use_the_rules_of_cpus(on_cpu: DeviceSpec) -> None:
    """Products, pools and reductions with remainders, as this machine's OpenCL compiles them."""
    graph = Graph()
    graph.output(graph.op("MatMul", graph.input(37, 70), graph.input(70, 45)))
    graph.output(graph.op("MatMul", graph.input(1, 300), graph.constant(np.ones((300, 1000)))))
    image = graph.input(1, 5, 19, 23)
    graph.output(graph.op("MaxPool", image, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4))
    graph.output(graph.op("ReduceMean", image, axes=[3], keepdims=1))
    graph.output(graph.op("Transpose", image, perm=[0, 2, 3, 1]))
    kernels = check_gpu(graph, "opencl")
    assert {kernel.rule for kernel in kernels} >= {"dense", "pool", "reduce", "elementwise"}
    assert {kernel.origin for kernel in kernels} == {"heuristic"}


@pytest.mark.parametrize("found", [0, 1, 700])
def test_lengths_that_the_data_decide(found: int, on_cpu: DeviceSpec) -> None:
    """A grid of no work-groups is not launched."""
    graph = Graph()
    values = np.zeros((20, 50), "float32")
    values.ravel()[:found] = 1
    places = graph.op("Cast", graph.op("NonZero", graph.given(values)), to=TensorProto.FLOAT)
    graph.output(graph.op("Mul", places, graph.constant(0.5)))
    check_gpu(graph, "opencl")


def test_a_remainder_of_a_parallel_loop_is_a_launch_of_its_own(on_cpu: DeviceSpec) -> None:
    (kernel,) = kernels_of(relu(4, 160007))
    made = as_grid(schedule(kernel.func, on_cpu).func)
    assert made is not None
    module = tvm.IRModule({"main": made.with_attr("global_symbol", "main")})
    opencl_pipeline.register()
    built = tvm.tirx.build(module, resolve_target("opencl").target, opencl_pipeline.OPENCL)
    source = built.imports[0].inspect_source()
    assert source.count("// Function: ") == 2
    assert "vload16" in source or on_cpu.lanes() < 16


def test_a_parallel_loop_without_a_grid_is_refused(on_cpu: DeviceSpec) -> None:
    """It would run on the host."""
    (kernel,) = kernels_of(relu(4, 160007))
    module = tvm.IRModule({"main": kernel.scheduled.func.with_attr("global_symbol", "main")})
    opencl_pipeline.register()
    with pytest.raises(ValueError, match="'main' has a parallel loop outside of a grid"):
        tvm.tirx.build(module, resolve_target("opencl").target, opencl_pipeline.OPENCL)


def relu(*shape: int) -> onnx.ModelProto:
    graph = Graph()
    graph.output(graph.op("Relu", graph.input(*shape)))
    return graph.model()
