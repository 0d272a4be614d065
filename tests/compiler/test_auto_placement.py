"""``fallback="auto"``: operators leave the GPU where that saves time, copies counted."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import relax

import tvm_edge
from tests.compiler.steps import simplified
from tests.onnx_models import make_model, reference, relative_error
from tvm_edge import zoo
from tvm_edge.compiler.auto_placement import placement_problem
from tvm_edge.compiler.placement import place
from tvm_edge.frontend import load_model
from tvm_edge.hardware import resolve_target
from tvm_edge.hardware.presets import PRESETS
from tvm_edge.relay_passes.place.label_operators import CPU, GPU, Policy, label_operators
from tvm_edge.relay_passes.solvers.minimum_cut import PlacementProblem
from tvm_edge.report import CompileReport


@cache
def detector() -> onnx.ModelProto:
    return zoo.build("ssd_mobilenet_v1", image_size=160, width=0.25)


def classifier() -> onnx.ModelProto:
    """Half of the kernels of `detector`, for what is built; in blocks with many cores, too."""
    return zoo.build("squeezenet1_0", image_size=96, width=0.5)


def convolution() -> onnx.ModelProto:
    """37 MFLOP, which a slow device takes longer for than the CPU and the copies."""
    weights = np.random.default_rng(0).standard_normal((32, 16, 3, 3)).astype("float32")
    return make_model(
        [helper.make_node("Conv", ["data", "w"], ["out"], name="conv", pads=[1] * 4)],
        {"data": (1, 16, 64, 64)},
        ["out"],
        {"w": weights},
    )


def devices(report: CompileReport) -> set[str]:
    return {placement.device for placement in report.placements if placement.device}


def problem_of(model: onnx.ModelProto, target: str) -> tuple[PlacementProblem, list[str]]:
    """The costs of a model's placements, and the operators in their order."""
    resolved = resolve_target(target)
    with resolved.cpu.target:
        main = simplified(load_model(model, None).module)["main"]
    labels = label_operators(main, Policy("named"), {})
    problem, variables = placement_problem(main, labels, resolved)
    made = {b.var: b.value for block in main.body.blocks for b in block.bindings}
    return problem, ["host", *(str(made[var].op.name) for var in variables.values())]


# --------------------------------------------------------------------------- what leaves, and stays


def test_a_slow_device_is_left(slow_gpu: None) -> None:
    report = tvm_edge.analyze(detector(), "mali-g76")
    assert devices(report) == {"llvm"}
    assert not report.copies
    (reason,) = {p.reason for p in report.placements if p.device}
    assert reason.startswith("by cost: saves some ")


def test_a_slow_device_is_left_in_the_run(slow_gpu: None) -> None:
    model = classifier()
    compiled = tvm_edge.compile(model, "opencl")
    assert devices(compiled.report) == {"llvm"}
    alone = tvm_edge.analyze(model, "llvm")
    assert compiled.report.layouts == alone.layouts != {}, "as for a CPU without a GPU"
    assert compiled.report.memory == alone.memory
    inputs = zoo.sample_input(model)
    actual, expected = compiled.run(inputs), reference(model, inputs)
    for name, value in expected.items():
        assert relative_error(actual[name], value) < 1e-4, name


def test_an_opencl_device_that_is_the_cpu_is_left() -> None:
    """Placement on such a device is no gain: LLVM's schedules run on the same cores."""
    if not resolve_target("opencl").spec.on_cpu:
        pytest.skip("no OpenCL device here, or a GPU")
    report = tvm_edge.analyze(detector(), "opencl")
    assert devices(report) == {"llvm"}
    sorting = conv_and_top_k(64)
    kept = tvm_edge.analyze(sorting, "opencl", fallback="none")
    assert devices(kept) == {"opencl"}
    assert {
        p.device for p in tvm_edge.analyze(sorting, "opencl").placements if p.op_type == "TopK"
    } == {"llvm"}


def test_float16_stays_with_the_gpu_that_has_it(slow_gpu: None) -> None:
    """The CPU has no kernels of it, and costs are of float32."""
    model = convolution()
    assert devices(tvm_edge.analyze(model, "mali-g76")) == {"llvm"}
    report = tvm_edge.compile(model, "mali-g76", host="llvm", precision="mixed").report
    assert devices(report) == {"opencl"}
    assert report.precision is not None and "float16" in report.precision.operators.values()


@pytest.mark.parametrize(
    ("fallback", "device"),
    [("auto", "llvm"), ("list", "opencl"), ("none", "opencl"), ("error", "opencl")],
)
def test_only_auto_looks_at_costs(fallback: str, device: str, slow_gpu: None) -> None:
    report = tvm_edge.analyze(convolution(), "mali-g76", fallback=fallback)
    assert devices(report) == {device}


def test_a_fast_device_keeps_all() -> None:
    report = tvm_edge.analyze("zoo:squeezenet1_0", "jetson-orin-nano")
    assert devices(report) == {"cuda"}
    assert {p.reason for p in report.placements if p.device} == {"the target is this device"}


def conv_and_top_k(size: int) -> onnx.ModelProto:
    """A convolution with a tail, a view of it, and two results."""
    weights = np.random.default_rng(0).standard_normal((16, 3, 3, 3)).astype("float32")
    return make_model(
        [
            helper.make_node("Conv", ["data", "w"], ["c"], name="conv", pads=[1] * 4),
            helper.make_node("Relu", ["c"], ["r"], name="relu"),
            helper.make_node("Reshape", ["r", "flat"], ["f"], name="view"),
            helper.make_node("TopK", ["f", "k"], ["values", "indices"], name="top", axis=1),
            helper.make_node("Neg", ["values"], ["out"], name="negative"),
        ],
        {"data": (1, 3, size, size)},
        ["out", "indices"],
        {"w": weights, "flat": np.int64([1, -1]), "k": np.int64([10])},
        dtypes={"indices": onnx.TensorProto.INT64},
    )


def search_behind_a_convolution(size: int) -> tvm.IRModule:
    """A convolution, and a search for each of its results, which a GPU does badly."""
    weights = np.random.default_rng(0).standard_normal((16, 32, 5, 5)).astype("float32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 32, size, size), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            image = builder.emit(relax.op.nn.conv2d(x, relax.const(weights), padding=2))
            edges = relax.const(np.linspace(-1, 1, 9, dtype="float32"))
            result = builder.emit_output(
                relax.op.bucketize(builder.emit(relax.op.tanh(image)), edges)
            )
        builder.emit_func_output(result)
    return builder.get()


def test_what_a_gpu_does_badly_leaves_alone() -> None:
    report = tvm_edge.analyze(search_behind_a_convolution(640), "intel-hd505")
    placed = {p.op_type: (p.device, p.reason) for p in report.placements}
    assert placed["nn.conv2d"][0] == placed["tanh"][0] == "opencl"
    assert placed["bucketize"][0] == "llvm"
    assert "by cost" in placed["bucketize"][1]
    assert [(c["source"], c["destination"]) for c in report.copies] == [("opencl", "llvm")]


def test_a_small_partition_stays() -> None:
    """Moving a search of 256 numbers to the CPU would save only some microseconds."""
    report = tvm_edge.analyze(search_behind_a_convolution(4), "mali-t860")
    assert devices(report) == {"opencl"}


def test_a_model_with_branches_goes_by_the_list(slow_gpu: None) -> None:
    """Costs are of what every run takes."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2048, 2048), "float32"))
    condition = relax.Var("condition", relax.TensorType((), "bool"))
    with builder.function("main", [x, condition]):
        rows = builder.emit(relax.op.sort(x))
        chosen = relax.If(condition, relax.op.exp(rows), relax.op.sqrt(rows))
        builder.emit_func_output(builder.emit(chosen))
    model = relax.transform.Normalize()(builder.get())
    assert devices(tvm_edge.analyze(convolution(), "mali-g76")) == {"llvm"}  # costs would say
    assert devices(tvm_edge.analyze(model, "mali-g76")) == {"opencl"}


# --------------------------------------------------------------------------------------- the costs


def test_a_tail_costs_nothing_behind_its_kernel() -> None:
    problem, operators = problem_of(conv_and_top_k(64), "mali-g76")
    conv, relu = operators.index("relax.nn.conv2d"), operators.index("relax.nn.relu")
    assert problem.us[relu] == (0.0, 0.0)
    (seam,) = (seam for seam in problem.seams if seam.consumer == relu)
    assert seam.producer == conv
    assert min(seam.us) > 0
    whole = [GPU] * len(operators)
    cut = list(whole)
    cut[relu] = CPU
    (there,) = (t.us[CPU] for t in problem.transfers if relu in t.readers)
    (back,) = (t.us[GPU] for t in problem.transfers if relu == t.producer)
    assert problem.total(cut) == pytest.approx(problem.total(whole) + seam.us[CPU] + there + back)


def test_what_a_crossing_costs_where_memory_is_only_mapped() -> None:
    """The CPU reads the GPU's tensors where they are; what it writes is copied."""
    problem, operators = problem_of(conv_and_top_k(64), "mali-g76")
    relu = operators.index("relax.nn.relu")
    (made,) = (t for t in problem.transfers if relu == t.producer)
    latency = PRESETS["mali-g76"].spec.copy_latency_us
    assert made.us[CPU] == latency < made.us[GPU]


def test_a_phone_has_one_memory_for_both() -> None:
    """The CPU of an RK3399 is not given the bandwidth of its six cores' data sheets."""
    model = make_model(
        [helper.make_node("Transpose", ["data"], ["out"], name="turn", perm=[0, 1, 3, 2])],
        {"data": (1, 8, 512, 512)},
        ["out"],
    )
    problem, operators = problem_of(model, "mali-t860")
    least = 2 * 4 * 8 * 512**2 / resolve_target("mali-t860").spec.bandwidth_gbs / 1e3
    assert problem.us[operators.index("relax.permute_dims")][CPU] >= least


def test_what_has_no_operand_stays() -> None:
    """Its kernel would have nothing to say that it is the CPU's."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1 << 20,), "float32"))
    with builder.function("main", [x]):
        made = builder.emit(relax.op.full((1 << 20,), relax.const(2.0), "float32"))
        builder.emit_func_output(builder.emit(relax.op.add(x, made)))
    main = builder.get()["main"]
    labels = label_operators(main, Policy("named"), {})
    resolved = resolve_target("mali-g76")
    problem, _ = placement_problem(main, labels, resolved)
    assert problem.fixed == {0: CPU, 1: GPU}


def test_items_of_tuples_are_tensors_of_their_own() -> None:
    """Half of a split goes through a tuple of a tensor and a shape, under another name."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 8), "float32"))
    with builder.function("main", [x]):
        halves = builder.emit(relax.op.split(x, 2, axis=1))
        shape = builder.emit(relax.op.shape_of(x))
        mixed = builder.emit(relax.Tuple([shape, relax.TupleGetItem(halves, 1)]))
        second = builder.emit(relax.TupleGetItem(mixed, 1))
        builder.emit_func_output(builder.emit(relax.op.sort(second)))
    main = builder.get()["main"]
    labels = label_operators(main, Policy("named"), {})
    problem, variables = placement_problem(main, labels, resolve_target("mali-g76"))
    number = {var.name: operator for operator, var in variables.items()}
    result = max(number.values())
    read = [t for t in problem.transfers if t.producer == number[halves.name]]
    assert [t.readers for t in read] == [(result,)]


def test_inputs_come_from_the_host_and_results_go_there() -> None:
    problem, operators = problem_of(conv_and_top_k(64), "mali-g76")
    ends = [t for t in problem.transfers if 0 in (t.producer, *t.readers)]
    assert [(t.producer, t.readers) for t in ends if t.producer == 0] == [
        (0, (operators.index("relax.nn.conv2d"),))
    ]
    assert len(ends) == 3  # the image, the values, the indices


# ------------------------------------------------------------------- copies are as few as can be


def joined() -> tvm.IRModule:
    """Items of a tuple that several operators read, one of them twice."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            halves = builder.emit(relax.op.split(builder.emit(relax.op.exp(x)), 2, axis=1))
            whole = builder.emit(relax.op.concat(halves, axis=1))
            first = builder.emit(relax.TupleGetItem(halves, 0))
            twice = builder.emit(relax.op.add(first, first))
            again = builder.emit(relax.op.concat(halves, axis=0))
            result = builder.emit_output(relax.Tuple([whole, twice, again]))
        builder.emit_func_output(result)
    return builder.get()


def copies_for(model: object, fallback: list[str]) -> list[str]:
    resolved = resolve_target("mali-g76")
    imported = load_model(model, None)
    with resolved.cpu.target:
        simple = simplified(imported.module)
    placed = place(simple, imported, resolved, fallback).module["main"]
    return [
        str(b.value.args[0])
        for block in placed.body.blocks
        for b in block.bindings
        if isinstance(b.value, relax.Call) and str(b.value.op.name) == "relax.to_vdevice"
    ]


def test_an_item_of_a_tuple_is_copied_once_for_all_readers() -> None:
    assert len(copies_for(joined(), ["concat"])) == 2
    # The first half by itself is the same tensor under another name.
    assert len(copies_for(joined(), ["concat", "add"])) <= 3


@pytest.mark.full  # SSD is cut so in test_gpu_models.py, and runs
def test_yolov3_by_hand() -> None:
    """Boxes and scores to the CPU; what is chosen comes back for the gathers of the result."""
    model = zoo.build("yolov3", image_size=64, width=0.25)
    report = tvm_edge.analyze(model, "mali-g76", fallback=["NonMaxSuppression"])
    on_cpu = {p.op_type for p in report.placements if p.device == "llvm"}
    assert on_cpu == {"NonMaxSuppression"}
    ways = [(c["source"], c["destination"]) for c in report.copies]
    assert ways == [("opencl", "llvm"), ("opencl", "llvm"), ("llvm", "opencl")]


def test_a_kernel_by_the_name_of_an_operator_has_a_place() -> None:
    """The importer hands Einsum on as a kernel: it has no equation to count by."""
    node = helper.make_node("Einsum", ["a", "b"], ["c"], "contraction", equation="bij,bjk->bik")
    model = make_model([node], {"a": (2, 3, 4), "b": (2, 4, 5)}, ["c"])
    report = tvm_edge.analyze(model, "mali-t860")
    assert [placement.operator for placement in report.placements] == ["contraction"]
