"""Operators leave the GPU, each tensor is copied once, and nothing mixes devices."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax, te

import tvm_edge
from tests.compiler.steps import fuse_kernels, legalized, simplified
from tests.onnx_models import make_model, random_input, reference, relative_error
from tests.relay_passes.two_devices import without_copies
from tests.schedules.harness import Graph
from tvm_edge.compiler.placement import Placed, place
from tvm_edge.frontend import load_model
from tvm_edge.hardware import resolve_target
from tvm_edge.relay_passes.instructions.lower_copies import LowerCopies
from tvm_edge.relay_passes.ir.vdevices import is_same, vdevice_of, vdevices_of
from tvm_edge.relay_passes.place.insert_copies import insert_copies
from tvm_edge.relay_passes.place.label_operators import CPU, GPU, Label, Policy, label_operators
from tvm_edge.relay_passes.place.verify_placement import VerifyPlacement


def branches() -> onnx.ModelProto:
    """A convolution read by three branches; two results and a view of it are joined again."""
    generator = np.random.default_rng(0)
    return make_model(
        [
            helper.make_node("Conv", ["data", "w"], ["c"], name="conv", pads=[1] * 4),
            helper.make_node("Sigmoid", ["c"], ["left"], name="left"),
            helper.make_node("Tanh", ["c"], ["middle"], name="middle"),
            helper.make_node("Split", ["c"], ["s0", "s1"], name="split", axis=1),
            helper.make_node("Concat", ["s1", "s0"], ["swapped"], name="swap", axis=1),
            helper.make_node("Add", ["left", "middle"], ["sum"], name="sum"),
            helper.make_node("Mul", ["sum", "swapped"], ["out"], name="product"),
        ],
        {"data": (1, 3, 8, 8)},
        ["out", "left"],
        {"w": generator.standard_normal((6, 3, 3, 3)).astype("float32")},
    )


def placed(
    model: onnx.ModelProto, fallback: str | list[str] = "list", target: str = "mali-t860"
) -> Placed:
    resolved = resolve_target(target, "llvm")
    imported = load_model(model, None)
    with resolved.cpu.target:
        return place(simplified(imported.module), imported, resolved, fallback)


def copies(mod: tvm.IRModule) -> list[relax.Call]:
    values = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    return [
        value
        for value in values
        if isinstance(value, relax.Call)
        and isinstance(value.op, tvm.ir.Op)
        and value.op.name == "relax.to_vdevice"
    ]


def test_a_model_that_stays_has_no_virtual_devices() -> None:
    result = placed(branches())
    assert result.kinds == ("opencl",)
    assert result.inputs == (0,)
    assert not vdevices_of(result.module)


def test_a_tensor_with_two_readers_is_copied_once() -> None:
    result = placed(branches(), ["left", "middle"])
    assert result.kinds == ("opencl", "llvm")
    found = copies(result.module)
    # conv to the CPU for both readers, and both results back.
    assert len(found) == 3
    gpu, cpu = vdevices_of(result.module)
    there = [value for value in found if is_same(vdevice_of(value.ty), cpu)]
    back = [value for value in found if is_same(vdevice_of(value.ty), gpu)]
    assert (len(there), len(back)) == (1, 2)


def test_items_of_a_tuple_are_copied_one_by_one() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 6, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            halves = builder.emit(relax.op.split(x, 2, axis=1))
            joined = builder.emit_output(relax.op.concat(halves, axis=1))
        builder.emit_func_output(joined)
    mod = builder.get()
    made = {b.var.name: b.var for block in mod["main"].body.blocks for b in block.bindings}
    labels = {made[halves.name]: Label(GPU, ""), made[joined.name]: Label(CPU, "")}
    resolved = resolve_target("mali-t860", "llvm")
    targets = [resolved.target, resolved.cpu.target]
    result = insert_copies(mod, labels, [GPU], targets)
    shapes = [tuple(int(d) for d in value.ty.shape) for value in copies(result)]
    assert shapes == [(1, 3, 8), (1, 3, 8)]


def test_a_kernel_of_the_frontend_has_the_device_of_its_label() -> None:
    """Its type is written down, not inferred, and so is that of what follows it."""
    x = te.placeholder((2, 3), "float32", "x")
    func = te.create_prim_func([x, te.compute((2, 3), lambda i, j: x[i, j] + 1, "y")])
    bb = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((2, 3), "float32"))
    kernel = bb.add_func(func.without_attr("global_symbol"), "add_one")
    with bb.function("main", [data]):
        with bb.dataflow():
            made = bb.emit(relax.call_tir(kernel, [data], relax.TensorType((2, 3), "float32")))
            view = bb.emit(relax.op.reshape(made, (6,)))
            result = bb.emit_output(relax.op.nn.relu(view))
        bb.emit_func_output(result)
    resolved = resolve_target("mali-t860", "llvm")
    mod = bb.get()
    bindings = mod["main"].body.blocks[0].bindings
    labels = {binding.var: Label(CPU, "") for binding in bindings}
    on_cpu = insert_copies(mod, labels, [CPU], [resolved.target, resolved.cpu.target])
    _, cpu = vdevices_of(on_cpu)
    for binding in on_cpu["main"].body.blocks[0].bindings:
        assert is_same(vdevice_of(binding.var.ty), cpu)


def test_an_input_that_only_the_cpu_reads_stays_on_it() -> None:
    result = placed(branches(), ["Conv"])
    assert result.inputs == (1,)
    assert len(copies(result.module)) == 1


def test_an_input_that_both_read_crosses_once() -> None:
    model = make_model(
        [
            helper.make_node("Exp", ["data"], ["a"], name="first"),
            helper.make_node("Tanh", ["data"], ["b"], name="second"),
        ],
        {"data": (1, 3, 8, 8)},
        ["a", "b"],
    )
    there = placed(model, ["second"], "cuda")
    assert there.inputs == (1,), "it comes from the host"
    gpu, cpu = vdevices_of(there.module)
    assert [is_same(vdevice_of(value.ty), gpu) for value in copies(there.module)] == [True]
    shared = placed(model, ["second"])
    assert shared.inputs == (0,), "the CPU reads it there"
    gpu, cpu = vdevices_of(shared.module)
    assert [is_same(vdevice_of(value.ty), cpu) for value in copies(shared.module)] == [True]


def test_all_on_the_cpu() -> None:
    names = ["Conv", "Sigmoid", "Tanh", "Split", "Concat", "Add", "Mul"]
    assert copies(placed(branches(), names).module) == []


def test_every_kernel_has_the_device_of_its_tensors() -> None:
    mod = placed(branches(), ["conv", "sum", "product"]).module
    resolved = resolve_target("mali-t860", "llvm")
    with resolved.target:
        legal = legalized(mod, resolved)
        fused = fuse_kernels(legal, resolved)  # VerifyPlacement is its last
    targets = {
        gvar.name_hint: func.attrs.get("target")
        for gvar, func in fused.functions_items()
        if isinstance(func, tvm.tirx.PrimFunc)
    }
    on_cpu = {name for name, target in targets.items() if target and target.kind.name == "llvm"}
    convolution, tail = sorted(on_cpu)
    assert convolution.startswith("conv2d")
    assert tail.startswith("fused_add")
    assert len(targets) > len(on_cpu)


def test_a_lost_copy_is_found() -> None:
    resolved = resolve_target("mali-t860", "llvm")
    with resolved.target:
        legal = legalized(placed(branches(), ["left"]).module, resolved)
    VerifyPlacement()(legal)
    with pytest.raises(RuntimeError, match="lost a copy"):
        VerifyPlacement()(without_copies(legal))


def test_copies_name_no_device_number() -> None:
    """A model loaded on ``opencl:1`` copies to that device."""
    lowered = LowerCopies()(placed(branches(), ["left"]).module)
    script = lowered["main"].script()
    assert script.count("runtime.TVMTensorCopyFromTo") == 2
    assert "to_vdevice(" not in script


# ------------------------------------------------------------------------------------ the policy


def searching() -> tvm.IRModule:
    """A search between two operators that a GPU does well."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((6, 5), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            edges = relax.const(np.float32([-0.5, 0.25, 0.75]), "float32")
            found = builder.emit(relax.op.bucketize(builder.emit(relax.op.nn.relu(x)), edges))
            result = builder.emit_output(relax.op.negative(found))
        builder.emit_func_output(result)
    return builder.get()


def test_listed_operators_leave() -> None:
    report = tvm_edge.analyze(searching(), "mali-t860", fallback="list")
    on_cpu = {p.op_type: p.reason for p in report.placements if p.device == "llvm"}
    assert set(on_cpu) == {"bucketize"}
    assert on_cpu["bucketize"].startswith("left out of the list")
    assert [(c["source"], c["destination"]) for c in report.copies] == [
        ("opencl", "llvm"),
        ("llvm", "opencl"),
    ]
    assert [device for device, _ in report.partitions] == ["opencl", "llvm", "opencl"]


def test_error_refuses_what_would_leave() -> None:
    with pytest.raises(tvm_edge.PlacementError, match=r"1 operator cannot stay.*fallback='list'"):
        label_operators(searching()["main"], Policy("error"), {})
    placed(branches(), "error")


def test_what_a_gpu_cannot_run_leaves() -> None:
    report = tvm_edge.analyze(lengths().model(), "mali-t860")
    assert {p.device for p in report.placements if p.op_type == "Relu"} == {"opencl"}
    assert [c["destination"] for c in report.copies] == ["llvm", "opencl"]
    for mode in ("none", "error"):
        with pytest.raises(tvm_edge.PlacementError, match="depends on data"):
            placed(lengths().model(), mode)


def test_a_type_that_the_device_lacks_leaves() -> None:
    graph = Graph()
    graph.output(graph.op("Exp", graph.input(8, dtype="float64")), TensorProto.DOUBLE)
    report = tvm_edge.analyze(graph.model(), "mali-g76")
    assert [(p.device, p.reason) for p in report.placements] == [
        ("llvm", "the device does not calculate in float64")
    ]


# --------------------------------------------------------------------------------- and it is right


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("seed", range(6))
def test_any_placement_gives_the_same_result(seed: int, gpu: str) -> None:
    model = branches()
    names = [node.name for node in model.graph.node]
    generator = np.random.default_rng(seed)
    on_cpu = [name for name in names if generator.random() < 0.5] or names[:1]
    compiled = tvm_edge.compile(model, gpu, fallback=on_cpu)
    placements = {p.operator: p.device for p in compiled.report.placements if p.device}
    assert {name for name, device in placements.items() if device == "llvm"} <= set(on_cpu)
    inputs = {"data": random_input((1, 3, 8, 8), seed)}
    actual, expected = compiled.run(inputs), reference(model, inputs)
    for name, value in expected.items():
        assert relative_error(actual[name], value) < 1e-5, (name, on_cpu)


def lengths() -> Graph:
    graph = Graph()
    found = graph.op("Unique", graph.op("Relu", graph.input(4, 5)))
    graph.output(graph.op("Neg", found))
    return graph


def test_operators_that_leave_are_right(gpu: str) -> None:
    graph = lengths()
    model = graph.model()
    compiled = tvm_edge.compile(model, gpu)
    assert "llvm" in {c["destination"] for c in compiled.report.copies}
    actual, expected = compiled.run(graph.values), reference(model, graph.values)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5)


def test_a_listed_operator_that_leaves_is_right(gpu: str) -> None:
    compiled = tvm_edge.compile(searching(), gpu, fallback="list")
    assert {p.op_type for p in compiled.report.placements if p.device == "llvm"} == {"bucketize"}
    values = random_input((6, 5))
    (found,) = compiled.run({"x": values}).values()
    np.testing.assert_array_equal(
        found, -np.searchsorted(np.float32([-0.5, 0.25, 0.75]), np.maximum(values, 0))
    )


def sorting() -> Graph:
    graph = Graph()
    data = graph.op("Relu", graph.input(4, 50))
    values, indices = graph.ops("TopK", 2, data, graph.constant([5]), axis=1)
    graph.output(graph.op("Neg", values))
    graph.output(indices, TensorProto.INT64)
    graph.output(graph.op("CumSum", data, graph.constant(1)))
    return graph


def test_sorts_and_scans_stay(gpu: str) -> None:
    graph = sorting()
    compiled = tvm_edge.compile(graph.model(), gpu, fallback="list")
    assert {p.device for p in compiled.report.placements} == {gpu}
    actual, expected = compiled.run(graph.values), reference(graph.model(), graph.values)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5)


def test_sorting_on_the_cpu_beside_a_gpu(gpu: str) -> None:
    graph = sorting()
    compiled = tvm_edge.compile(graph.model(), gpu, fallback=["TopK"])
    assert {p.device for p in compiled.report.placements if p.op_type == "TopK"} == {"llvm"}
    actual, expected = compiled.run(graph.values), reference(graph.model(), graph.values)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5)
