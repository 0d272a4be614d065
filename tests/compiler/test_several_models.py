"""Several models in one artifact: together, alone, and some of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper
from tvm import relax, te

import tvm_edge
from tests.compiler.several_models import assert_close, check, expected_of, inputs_of
from tests.compiler.steps import lowered as lowered_model
from tests.marks import in_full
from tests.onnx_models import conv_relu, make_model, random_input
from tests.relay_passes.concatenations import fire
from tests.runtime.support import rewrite_artifact
from tests.schedules.harness import Graph
from tvm_edge import ArtifactError
from tvm_edge.relay_passes.instructions.separate_models import with_models

# ------------------------------------------------------------------------------ together and alone


def test_on_a_cpu(both: tvm_edge.CompiledModel, models: dict[str, onnx.ModelProto]) -> None:
    assert both.models == ("detector", "pose")
    assert [spec.name for spec in both.inputs] == ["detector/data", "pose/in0"]
    assert both.outputs[0].name == "detector/pooled" and len(both.outputs) == 3
    check(both, models, range(3))
    # The same kernels on the same weights, whoever runs.
    values = inputs_of(models)
    whole = both.run(values)
    for name in models:
        for tensor, value in both.run(values, models=[name]).items():
            assert np.array_equal(value, whole[tensor])


def test_operators_that_write_several_outputs_keep_their_names() -> None:
    graph = Graph()
    for kind in ("Tanh", "Sigmoid"):
        graph.output(graph.op(kind, graph.input(1, 4, 6)))
    model = graph.model()
    report = tvm_edge.analyze({"one": model, "two": model}, "llvm")
    computed = [operator for kernel in report.kernels for operator in kernel.operators]
    assert computed == [
        f"{name}/{node.output[0]}" for name in ("one", "two") for node in model.graph.node
    ]


def test_what_runs_is_what_was_asked_for(both: tvm_edge.CompiledModel) -> None:
    """The idle model's kernels are not launched."""
    for number, name in enumerate(both.models):
        rows = both.profile(models=[name], repeat=1).kernels
        alone = both.report.models[number]
        assert alone.name == name
        assert [row.name for row in rows] == [kernel.name for kernel in alone.kernels]
        assert rows and all(op.startswith(f"{name}/") for row in rows for op in row.operators)
    everything = both.profile(repeat=1).kernels
    assert [row.name for row in everything] == [kernel.name for kernel in both.report.kernels]
    assert len(everything) == sum(len(model.kernels) for model in both.report.models)


def test_on_a_gpu_kernels_of_different_models_share_launches(
    models: dict[str, onnx.ModelProto], gpu: str, large_gpu: None
) -> None:
    compiled = tvm_edge.compile(models, gpu, fallback="none", parallel_fusion=True)
    owners = [
        {operator.partition("/")[0] for operator in kernel.operators}
        for kernel in compiled.report.kernels
        if kernel.rule.startswith("parallel")
    ]
    assert {"detector", "pose"} in owners
    for model in compiled.report.models:
        for kernel in model.kernels:
            assert {op.partition("/")[0] for op in kernel.operators} == {model.name}
    # Alone a model's own branches still share one.
    assert any(k.rule.startswith("parallel") for k in compiled.report.models[1].kernels)
    check(compiled, models, range(2))


@pytest.mark.parametrize("fusion", in_full(False, True, "auto"))
def test_on_this_gpu(models: dict[str, onnx.ModelProto], gpu: str, fusion: str | bool) -> None:
    compiled = tvm_edge.compile(models, gpu, fallback="none", parallel_fusion=fusion)
    check(compiled, models, range(2))


def test_some_of_three() -> None:
    three = {name: conv_relu(seed) for seed, name in enumerate(("detector", "pose", "third"))}
    compiled = tvm_edge.compile(three, "llvm", num_threads=1)
    values = inputs_of(three)
    expected = expected_of(three, values)
    wanted = {n: v for n, v in expected.items() if not n.startswith("pose/")}
    given = {n: v for n, v in values.items() if not n.startswith("pose/")}
    # In the order of the artifact, whatever that of the names; named twice is named.
    assert_close(compiled.run(given, models=["third", "detector", "third"]), wanted)
    assert_close(compiled.run(values, models=three), expected)
    (output,) = compiled.run(values, models=["third", "pose"], outputs=["third/pooled"])
    assert output == "third/pooled"


def test_one_model_with_a_name() -> None:
    models = {"only": conv_relu()}
    compiled = tvm_edge.compile(models, "llvm")
    assert compiled.models == ("only",) and compiled.report.models == ()
    check(compiled, models, [0])


def test_devices_beside_each_other(models: dict[str, onnx.ModelProto], gpu: str) -> None:
    """One model on the CPU, the other on the GPU."""
    compiled = tvm_edge.compile(models, gpu, fallback=["detector/conv", "detector/relu"])
    device = {p.operator: p.device for p in compiled.report.placements}
    assert device["detector/conv"] == "llvm"
    assert gpu in {d for operator, d in device.items() if operator.startswith("pose/")}
    check(compiled, models, range(2))


# --------------------------------------------------------------------- what models may be made of


def shifting(shift: float) -> tvm.IRModule:
    """A Relax module that brings a kernel of its own along, called the same whatever it does."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 5), "float32"))

    def shifted(a: te.Tensor) -> te.Tensor:
        return te.compute(a.shape, lambda i, j: a[i, j] + np.float32(shift), name="shifted")

    with builder.function("main", [x]):
        with builder.dataflow():
            moved = builder.emit(builder.call_te(shifted, x, primfunc_name_hint="shifted"))
            doubled = builder.emit(relax.op.add(moved, moved))
            result = builder.emit_output(relax.Tuple([moved, doubled]))
        builder.emit_func_output(result)
    return builder.get()


def test_relax_modules() -> None:
    """Kernels of one name that do different things, and one module twice."""
    twice = shifting(1.0)
    compiled = tvm_edge.compile({"a": twice, "b": shifting(-3.0), "c": twice}, "llvm")
    x = {name: random_input((3, 5), seed) for seed, name in enumerate("abc")}
    found = compiled.run({f"{name}/x": value for name, value in x.items()})
    for name, shift in (("a", 1.0), ("b", -3.0), ("c", 1.0)):
        expected = x[name] + np.float32(shift)
        np.testing.assert_array_equal(found[f"{name}/output_0"], expected)
        np.testing.assert_array_equal(found[f"{name}/output_1"], expected + expected)
        alone = compiled.run({f"{name}/x": x[name]}, models=[name])
        np.testing.assert_array_equal(alone[f"{name}/output_1"], expected + expected)


def branching() -> onnx.ModelProto:
    """``If`` the mean is positive ``x + 1``, else ``x * 2``."""

    def branch(name: str, kind: str, number: float) -> onnx.GraphProto:
        value = helper.make_tensor("n", TensorProto.FLOAT, [], [number])
        return helper.make_graph(
            [
                helper.make_node("Constant", [], [f"{name}_n"], value=value),
                helper.make_node(kind, ["x", f"{name}_n"], [f"{name}_out"]),
            ],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [4])],
        )

    return make_model(
        [
            helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
            helper.make_node("Greater", ["mean", "zero"], ["positive"]),
            helper.make_node(
                "If",
                ["positive"],
                ["y"],
                then_branch=branch("up", "Add", 1.0),
                else_branch=branch("down", "Mul", 2.0),
            ),
        ],
        {"x": (4,)},
        ["y"],
        {"zero": np.float32(0.0).reshape(())},
    )


def lengths() -> onnx.ModelProto:
    """A length that only the run knows."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["at"]),
        helper.make_node("Cast", ["at"], ["out"], to=TensorProto.FLOAT),
    ]
    return make_model(nodes, {"x": (3, 4)}, ["out"])


def test_branches_and_lengths_that_only_the_run_knows() -> None:
    models = {"if": branching(), "at": lengths(), "conv": conv_relu(), "more": lengths()}
    compiled = tvm_edge.compile(models, "llvm")
    for seed in range(3):
        check(compiled, models, [seed])
    values = inputs_of(models)
    values["at/x"] = np.eye(3, 4, dtype="float32")
    values["more/x"] = np.ones((3, 4), "float32")
    assert_close(compiled.run(values), expected_of(models, values))


@pytest.mark.full
def test_from_files_bytes_and_the_zoo(tmp_path: Path) -> None:
    onnx.save(conv_relu(), tmp_path / "model.onnx")
    models: dict[str, Any] = {
        "file": tmp_path / "model.onnx",
        "bytes": conv_relu(1).SerializeToString(),
        "zoo": "zoo:shapes_ssd",
    }
    report = tvm_edge.analyze(models, "llvm")
    assert report.model == "file + bytes + zoo"
    owners = dict.fromkeys(o.name.partition("/")[0] for o in report.operators)
    assert list(owners) == list(models)
    assert [model.name for model in report.models] == list(models)


# --------------------------------------------------------------------------------- weights, memory


def test_models_alike_have_their_weights_once(
    compiled_small: tvm_edge.CompiledModel,
) -> None:
    model = conv_relu()
    alone = compiled_small
    models = {"left": model, "right": model}
    twice = tvm_edge.compile(models, "llvm")
    assert twice.report.memory and alone.report.memory
    assert twice.report.memory.weights == alone.report.memory.weights
    check(twice, models, [0])


def test_memory_is_of_the_run_that_needs_most(both: tvm_edge.CompiledModel) -> None:
    memory = both.report.memory
    assert memory is not None and len(both.report.models) == 2
    for model in both.report.models:
        assert 0 < model.memory.activations <= memory.activations
        assert model.memory.weights < memory.weights
    assert sum(m.memory.weights for m in both.report.models) == memory.weights
    assert sum(m.memory.inputs_outputs for m in both.report.models) == memory.inputs_outputs
    assert "alone" in both.report.summary() and "detector: " in both.report.summary()


def test_nothing_changes_for_one_model(small_model: onnx.ModelProto) -> None:
    """Neither in the code nor in the report."""
    plan = lowered_model(small_model, "llvm", "auto")
    assert [g.name_hint for g in plan.module.get_global_vars() if "main" in g.name_hint] == ["main"]
    assert plan.report.models == ()


# -------------------------------------------------------------------------- everything that runs it


@pytest.fixture(scope="module")
def artifact(both: tvm_edge.CompiledModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return both.export(tmp_path_factory.mktemp("several") / "both.tvme")


def test_artifact(
    both: tvm_edge.CompiledModel, models: dict[str, onnx.ModelProto], artifact: Path
) -> None:
    loaded = tvm_edge.load(artifact)
    assert (loaded.models, loaded.inputs, loaded.outputs) == (
        both.models,
        both.inputs,
        both.outputs,
    )
    assert loaded.report.models == both.report.models
    values = inputs_of(models)
    for chosen in (None, ["pose"], ["detector"]):
        expected = both.run(values, models=chosen)
        found = loaded.run(values, models=chosen)
        assert list(found) == list(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m["models"].pop(),
        lambda m: m["models"].reverse(),
        lambda m: m["models"][0].update(inputs=[0, 1]),
        lambda m: m["models"][0].update(outputs=[9]),
        lambda m: m["models"][0].update(name="pose"),
        lambda m: m["models"][0].update(name=7),
        lambda m: m["models"][0].pop("outputs"),
        lambda m: m["report"]["models"].pop(),
        lambda m: m["report"]["models"][0].update(kernels=[{"name": "x"}]),
    ],
)
def test_damaged_artifacts(
    artifact: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    with pytest.raises(ArtifactError, match="damaged"):
        tvm_edge.load(rewrite_artifact(artifact, tmp_path / "damaged.tvme", edit))


def test_an_artifact_without_the_code_of_a_model(
    compiled_small: tvm_edge.CompiledModel, tmp_path: Path
) -> None:
    """Its manifest says that there is one."""
    path = compiled_small.export(tmp_path / "one.tvme")

    def claim(manifest: dict[str, Any]) -> None:
        for spec in (*manifest["inputs"], *manifest["outputs"]):
            spec["name"] = f"x/{spec['name']}"
        manifest["models"] = [
            {"name": "x", "inputs": [0], "outputs": [0]},
            {"name": "y", "inputs": [], "outputs": []},
        ]
        memory = manifest["report"]["memory"]
        manifest["report"]["models"] = [
            {"name": name, "kernels": [], "memory": memory} for name in "xy"
        ]

    lying = tvm_edge.load(rewrite_artifact(path, tmp_path / "lying.tvme", claim))
    with pytest.raises(ArtifactError, match="no function 'main_1'"):
        lying.run({}, models=["y"])


def test_async_warmup_benchmark(
    both: tvm_edge.CompiledModel, models: dict[str, onnx.ModelProto]
) -> None:
    both.warmup()
    both.warmup(models=["pose"])
    values = inputs_of(models)
    expected = both.run(values)
    futures = [both.run_async(values, models=chosen) for chosen in (None, ["pose"], ["detector"])]
    for future in futures:
        for name, value in future.result(timeout=60).items():
            np.testing.assert_array_equal(value, expected[name])
    for chosen in (None, ["detector"]):
        assert both.benchmark(models=chosen, warmup=1, repeat=2).device.min > 0


@pytest.mark.full
@pytest.mark.usefixtures("pocl_as_written")
def test_kernels_of_concatenations_are_cut_out_whole(gpu: str, large_gpu: None) -> None:
    """Branches that write into one tensor, in two models of which one runs."""
    models = {}
    for name in ("left", "right"):
        graph = Graph(len(name))
        fire(graph)
        models[name] = graph.model()
    compiled = tvm_edge.compile(models, gpu, fallback="none", parallel_fusion=True)
    check(compiled, models, range(2))


def calling(number: float) -> tvm.IRModule:
    """``main`` calls a kernel ``shifted``, which adds `number`."""
    module = shifting(number)
    names = {g.name_hint for g in module.get_global_vars()}
    assert names == {"main", "shifted"}
    return module


def kernel_of(module: tvm.IRModule, function: str) -> Any:
    """Return the callee of the first call in a function."""
    (block,) = module[function].body.blocks
    return module[block.bindings[0].value.args[0]]


def test_kernels_of_one_name_are_told_apart() -> None:
    """Those that are equal are there once."""
    whole = with_models(calling(1.0), [calling(1.0), calling(2.0), calling(2.0)])
    for function, like in (("main", 1.0), ("main_0", 1.0), ("main_1", 2.0), ("main_2", 2.0)):
        found, expected = kernel_of(whole, function), kernel_of(calling(like), "main")
        assert tvm_ffi.structural_equal(found.body, expected.body, map_free_vars=True)
    assert kernel_of(whole, "main").same_as(kernel_of(whole, "main_0"))
    assert not kernel_of(whole, "main").same_as(kernel_of(whole, "main_1"))


def test_recorded_regions_are_each_models_own(models: dict[str, onnx.ModelProto]) -> None:
    """CUDA graphs of different entries have memory and launches of their own."""
    lowered = lowered_model(models, "jetson-orin-nano", "none").module
    regions = [g for g in lowered.get_global_vars() if "cuda_graph" in g.name_hint]
    called: dict[str, set[str]] = {}
    for gvar, func in lowered.functions_items():
        name = str(gvar.name_hint)
        if not isinstance(func, relax.Function) or gvar in regions:
            continue
        found: set[str] = set()
        relax.analysis.post_order_visit(
            func,
            lambda e, found=found: (
                found.add(str(e.name_hint)) if isinstance(e, tvm.ir.GlobalVar) else None
            ),
        )
        called[name] = found & {str(region.name_hint) for region in regions}
    entries = ("main", "main_0", "main_1")
    assert set(called) == {*entries, *(f"{name}_kernel_by_kernel" for name in entries)}
    assert called["main"] and called["main_1"]
    assert not called["main"] & called["main_1"]
    assert not any(called[f"{name}_kernel_by_kernel"] for name in entries)
