"""``compare``: it names the node, the kernel and the pass of a fault, and writes it out."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.marks import in_full, needs_opencl
from tests.onnx_models import conv_relu, make_model, random_input, reference, relative_error
from tests.workflow import faults
from tests.workflow.networks import network
from tvm_edge import InputError, MissingDependencyError, Picture, TvmEdgeWarning
from tvm_edge.compiler.driver import compile_with
from tvm_edge.compiler.pipeline import PIPELINE
from tvm_edge.hardware import resolve_target
from tvm_edge.workflow import compare, quantize
from tvm_edge.workflow.comparison import error_of
from tvm_edge.workflow.node_groups import Graph
from tvm_edge.workflow.references import runtime_session


def test_a_right_model_is_within(tmp_path: Path) -> None:
    found = compare(network(), "llvm", tuning_logs=False, bisect_passes=True, dump=tmp_path)
    assert found.within and found.first is None and found.culprit is None
    assert [node.node for node in found.nodes] == [node.name for node in network().graph.node]
    assert all(output.same for output in found.outputs) and not found.other_kernels
    assert not found.passes and not found.dumped, "there is nothing to look for"
    inside = {node.node for node in found.nodes if node.error is None}
    assert {"stem", "stem/bn", "depth"} <= inside, "they are in kernels with activations"
    assert all(node.alone is not None and node.alone < 1e-5 for node in found.nodes)


def test_names_the_kernel_of_a_wrong_schedule(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    faults.in_kernel(monkeypatch, "window_blocked")
    found = compare(network(), "llvm", tuning_logs=False, bisect_passes=True, dump=tmp_path)
    assert not found.within
    assert found.first is not None and found.first.node == "depth/relu"
    assert found.first.found == "made here"
    assert found.culprit is found.first and found.culprit.rule == "window_blocked"
    assert "depthwise" in found.culprit.kernel
    later = {node.node: node.found for node in found.nodes}
    assert later["point/relu"] == "inherited" and later["logits"] == "inherited"
    # Without blocks another schedule computes it.
    assert "BlockLayout" in [trial.name for trial in found.passes if trial.gone]
    assert "FoldAffine" not in [trial.name for trial in found.passes if trial.gone]
    model = onnx.load(tmp_path / "depth_relu.onnx")
    assert [node.op_type for node in model.graph.node] == ["Conv", "Relu"]
    inputs = dict(np.load(tmp_path / "depth_relu.inputs.npz"))
    expected = dict(np.load(tmp_path / "depth_relu.expected.npz"))
    for name, value in reference(model, inputs).items():
        assert relative_error(value, expected[name]) < 1e-6


@pytest.mark.full
def test_names_a_kernel_of_mobilenet(monkeypatch: pytest.MonkeyPatch) -> None:
    faults.in_kernel(monkeypatch, "window_blocked", "T.int64(56), T.int64(56), T.int64(16)")
    found = compare("zoo:mobilenet_v2", "llvm", tuning_logs=False)
    assert found.culprit is not None and found.culprit.rule == "window_blocked"
    assert found.culprit.node == "stage2/block0/depthwise/relu6"


def test_a_quantised_model(monkeypatch: pytest.MonkeyPatch) -> None:
    data = [{"x": random_input((1, 3, 48, 48), seed)} for seed in range(4)]
    model = quantize(network(), data).model
    right = compare(model, "llvm", tuning_logs=False, inputs=data[0])
    assert right.within and right.tolerance == 0.1
    rows = [node for node in right.nodes if node.op_type == "QuantizeLinear" and node.kernel]
    stored = [node.error for node in rows if node.error is not None]
    assert len(stored) >= 3 and max(stored) < 0.05
    assert "conv2d_int8" in {node.rule for node in rows} or "int8" in str(rows)


def test_activations_that_became_a_table_are_inside_of_their_kernel() -> None:
    random = np.random.default_rng(2)
    weights = {
        "w": (random.standard_normal((32, 16, 3, 3)) / 12).astype("float32"),
        "w2": (random.standard_normal((16, 32, 1, 1)) / 6).astype("float32"),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1] * 4),
        helper.make_node("HardSigmoid", ["c"], ["h"], name="gate"),
        helper.make_node("Mul", ["c", "h"], ["m"], name="mul"),
        helper.make_node("Conv", ["m", "w2"], ["y"], name="last"),
    ]
    data = [{"x": random_input((1, 16, 24, 24), seed)} for seed in range(4)]
    model = quantize(make_model(nodes, {"x": (1, 16, 24, 24)}, ["y"], weights), data).model
    found = compare(model, "llvm", tuning_logs=False, inputs=data[0])
    assert found.within and found.first is None
    rows = {node.node: node for node in found.nodes}
    kernels = {rows[name].kernel for name in ("conv", "c_QuantizeLinear", "gate", "mul")}
    if resolve_target("llvm").spec.byte_tables:
        assert len(kernels) == 1 and "byte_table" in kernels.pop()
        assert rows["c_QuantizeLinear"].error is None and rows["gate"].alone is not None


def test_a_part_has_no_two_nodes_of_one_name() -> None:
    """Nodes that two groups need are in each; ONNX Runtime refuses models with one name twice."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="shared"),
        helper.make_node("Neg", ["r"], ["y"], name="left"),
        helper.make_node("Exp", ["r"], ["z"], name="right"),
    ]
    graph = Graph(make_model(nodes, {"x": (2, 3)}, ["y", "z"]))
    known = {"x": random_input((2, 3))}
    groups = [graph.closed(graph.group([number]), known) for number in (1, 2)]
    part = graph.part(groups, known, typed=False)
    names = [node.name for node in part.model.graph.node]
    assert len(names) == 4 == len(set(names))
    found = dict(zip(part.outputs, runtime_session(part.model).run(None, part.inputs), strict=True))
    np.testing.assert_allclose(found["y"], -np.maximum(known["x"], 0))


def test_names_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    faults.in_pass(monkeypatch, "FoldAffine")
    found = compare(network(), "llvm", tuning_logs=False, bisect_passes=True)
    assert [trial.name for trial in found.passes if trial.gone] == ["FoldAffine"]
    assert found.culprit is not None and found.culprit.node == "stem"
    assert "the error is gone without: FoldAffine" in found.verdict()


@pytest.mark.parametrize(
    ("model", "precision"), [(network(), "bfloat16"), *in_full(("zoo:shapes_ssd", "mixed"))]
)
def test_images_in_channel_blocks_are_compared_as_such(model: Any, precision: str) -> None:
    """Whatever kernel wrote them: products of pairs, and a cast beside a convolution."""
    found = compare(model, "llvm", precision=precision, tuning_logs=False)
    assert found.within and found.first is None


def test_names_a_float16_overflow() -> None:
    inputs = {"x": 100 * random_input((1, 3, 48, 48))}
    options = {"tuning_logs": False, "precision": "float16"}
    with pytest.warns(TvmEdgeWarning, match="infinity or NaN"):
        found = compare(network(1000.0), "llvm", inputs=inputs, **options)
    loud = next(node for node in found.nodes if "float16 overflow" in node.remark)
    assert loud.node == "louder" and loud.high is not None and loud.high > 65504
    assert f"{loud.high:.6g}" in loud.remark
    assert found.culprit is not None and found.culprit.kernel == loud.kernel
    assert any("louder" in line and "65504" in line for line in found.verdict())
    assert "in float32 with: precision_exceptions=['louder'" in "\n".join(found.verdict())


def test_names_an_overflow_of_the_model_itself() -> None:
    model = make_model(
        [
            helper.make_node("Cast", ["x"], ["h"], name="to_half", to=TensorProto.FLOAT16),
            helper.make_node("Mul", ["h", "h"], ["s"], name="square"),
            helper.make_node("Cast", ["s"], ["y"], name="to_float", to=TensorProto.FLOAT),
        ],
        {"x": (4,)},
        ["y"],
    )
    found = compare(model, "llvm", inputs={"x": np.asarray([1, 2, 3, 300], "float32")})
    row = next(node for node in found.nodes if node.node == "square")
    assert "the reference itself has infinity" in row.remark and "float16 overflow" in row.remark


def test_a_model_that_onnx_runtime_refuses_is_compared_with_llvm() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], name="narrow", to=TensorProto.BFLOAT16),
        helper.make_node("Tanh", ["b"], ["t"], name="tanh"),
        helper.make_node("Cast", ["t"], ["y"], name="wide", to=TensorProto.FLOAT),
    ]
    found = compare(make_model(nodes, {"x": (2, 8)}, ["y"]), "llvm", tolerance=1e-2)
    assert found.reference.startswith("float32 llvm without layouts")
    assert any("ONNX Runtime refuses the model" in note for note in found.notes)
    assert found.within and found.nodes[-1].error is not None


def test_a_target_as_reference() -> None:
    found = compare(conv_relu(), "llvm", reference="llvm", tuning_logs=False)
    assert found.reference == "float32 llvm" and found.within
    assert max(node.error or 0 for node in found.nodes) == 0


@needs_opencl
def test_a_gpu_says_where_operators_run() -> None:
    found = compare(conv_relu(), "opencl", fallback="none")
    assert found.within and found.first is None
    assert all(output.same for output in found.outputs)
    assert found.notes == ("opencl 3/3 operators, 1 partition, 0 copies",)
    assert found.notes[0] in found.text()


def test_an_output_without_a_number() -> None:
    """It is the model's own: nothing is made here, and the node is named."""
    nodes = [
        helper.make_node("Sqrt", ["x"], ["root"], name="root"),
        helper.make_node("Relu", ["root"], ["y"], name="relu"),
    ]
    model = make_model(nodes, {"x": (1, 4)}, ["y"])
    found = compare(model, "llvm", inputs={"x": np.full((1, 4), -1, "float32")})
    assert found.within and found.culprit is None
    assert all("the reference itself has NaN" in row.remark for row in found.nodes)
    assert "the reference itself has NaN" in found.text()


def test_a_dynamic_model_is_compared_at_its_inputs() -> None:
    model = conv_relu()
    dims = model.graph.input[0].type.tensor_type.shape.dim
    lengths = [dim.dim_value for dim in dims]
    dims[0].dim_param = "n"
    data = random_input((3, *lengths[1:]))
    found = compare(model, "llvm", inputs={model.graph.input[0].name: data})
    assert found.within and all(output.same for output in found.outputs)


def test_kernels_share_launches_beside_lengths_that_a_run_tells() -> None:
    """All results are handed out after the last cast of lengths, those of a pair, too."""
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["values", "indices"], name="top"),
        helper.make_node("Relu", ["x"], ["positive"], name="relu"),
        helper.make_node("NonZero", ["positive"], ["places"], name="places"),
        helper.make_node("Cast", ["places"], ["found"], name="cast", to=TensorProto.FLOAT),
    ]
    names, dtypes = ["values", "indices", "found"], {"indices": TensorProto.INT64}
    model = make_model(nodes, {"x": (3, 40)}, names, {"k": np.array([9])}, dtypes=dtypes)
    found = compare(model, "llvm", tuning_logs=False, parallel_fusion=True)
    assert found.within and all(output.same for output in found.outputs)


def test_pictures_are_prepared_on_both_sides() -> None:
    camera = Picture(size=(60, 80), color="BGR→RGB", resize="letterbox", std=255.0)
    frame = np.random.default_rng(0).integers(0, 256, (1, 60, 80, 3), dtype="uint8")
    how = {"tuning_logs": False, "preprocess": {"x": camera}}
    found = compare(network(), "llvm", inputs={"x": frame}, **how)
    assert found.reference.startswith("ONNX Runtime") and found.within and found.first is None
    prepared = [node for node in found.nodes if node.node.startswith("x/preprocess/")]
    assert any(node.error is not None for node in prepared)


def test_needs_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, *arguments: object) -> object:
        if name == "onnxruntime":
            raise ModuleNotFoundError(name=name)
        return real(name, *arguments)  # type: ignore[arg-type]

    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingDependencyError, match=r"tvm-edge\[compare\]"):
        compare(conv_relu(), "llvm")


@pytest.mark.parametrize("name", PIPELINE.optional)
def test_each_optional_pass_can_be_left_out(name: str) -> None:
    data = random_input((1, 3, 48, 48))
    outputs = compile_with(network(), "llvm", {}, without=[name]).run({"x": data})
    assert relative_error(outputs["y"], reference(network(), {"x": data})["y"]) < 1e-4


def test_a_pass_that_is_needed_cannot_be_left_out() -> None:
    with pytest.raises(InputError, match="'LegalizeOps' cannot be left out"):
        compile_with(network(), "llvm", {}, without=["LegalizeOps"])


@pytest.mark.parametrize("tolerance", [-1, float("nan"), "small"])
def test_bad_tolerances(tolerance: object) -> None:
    with pytest.raises(InputError, match="tolerance"):
        compare(conv_relu(), "llvm", tolerance=tolerance)  # type: ignore[arg-type]


def test_several_models_are_refused() -> None:
    with pytest.raises(InputError, match="one by one"):
        compare({"a": conv_relu()}, "llvm")


def test_errors_of_numbers_that_are_not_finite() -> None:
    infinite = np.asarray([1, np.inf], "float32")
    assert error_of(infinite, infinite) == 0
    assert error_of(np.asarray([1, np.nan], "float32"), infinite) == float("inf")
    assert error_of(infinite, np.asarray([1, 2], "float32")) == float("inf")
    assert error_of(np.zeros((0, 3)), np.zeros((0, 3))) == 0
    assert error_of(np.zeros((2, 3)), np.zeros((3, 2))) == float("inf")
