"""``analyze`` answers on any machine and for any valid model."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.onnx_models import conv_relu, unsupported_model
from tests.runtime.support import run_python
from tvm_edge import (
    CompileReport,
    InputError,
    InvalidModelError,
    PlacementError,
    UnsupportedOperatorError,
)
from tvm_edge.frontend import GivenInputs, survey_model


def test_unsupported_operators_are_listed_together() -> None:
    """Those without an implementation and those of which one form has none, with their nodes."""
    report = tvm_edge.analyze(unsupported_model(), "mali-t860")
    found = {u.op_type: u for u in report.unsupported}
    assert found["com.example.Mystery"].operators == ("first", "second")
    assert "rewrite the model" in found["com.example.Mystery"].reason
    assert found["NonMaxSuppression"].operators == ("nms",)
    assert "max_output_boxes_per_class" in found["NonMaxSuppression"].reason
    assert len(report.unsupported) == 2
    with pytest.raises(UnsupportedOperatorError):
        tvm_edge.compile(unsupported_model(), "llvm")


def test_the_other_operators_are_counted() -> None:
    report = tvm_edge.analyze(unsupported_model(), "llvm")
    operators = {o.name: o for o in report.operators}
    assert set(operators) == {n.name for n in unsupported_model().graph.node}
    for name in ("conv", "other"):
        assert operators[name].flops == 2 * (4 * 36) * 27
        assert operators[name].weight_bytes == 4 * 4 * 27
    assert operators["relu"].flops == 4 * 36
    assert operators["first"].flops is None
    assert operators["first"].input_bytes == 4 * 4 * 36
    assert operators["constant"].constant
    assert report.flops == 2 * 2 * (4 * 36) * 27 + 4 * 36
    reasons = {p.operator: p.reason for p in report.placements}
    assert reasons["first"] == reasons["nms"] == "no implementation"
    assert reasons["conv"].startswith("open")
    assert all(p.device == "" for p in report.placements)
    assert report.kernels == () and report.memory is None


def test_a_report_with_unsupported_operators_is_read_and_written() -> None:
    report = tvm_edge.analyze(unsupported_model(), "llvm")
    assert CompileReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    text = report.summary()
    for fragment in ("cannot be compiled", "com.example.Mystery ×2", "first, second", "nms"):
        assert fragment in text


def test_an_attribute_that_is_not_implemented() -> None:
    """The operator exists; TVM's converter refuses this form of it with a ValueError."""
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("LRN", ["x"], ["a"], name="flat", size=3),
                helper.make_node("Relu", ["a"], ["y"], name="relu"),
            ],
            "test",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    with pytest.raises(UnsupportedOperatorError, match="LRN"):
        tvm_edge.compile(model, "llvm")
    (missing,) = tvm_edge.analyze(model, "llvm").unsupported
    assert (missing.op_type, missing.operators) == ("LRN", ("flat",))
    assert "3D or 4D" in missing.reason


def test_an_operator_inside_of_a_function() -> None:
    """Functions are expanded first; a known name in a foreign domain is not taken for ONNX's."""
    function = helper.make_function(
        "local",
        "Twice",
        ["p"],
        ["q"],
        [
            helper.make_node("Relu", ["p"], ["t"], name="relu"),
            helper.make_node("Relu", ["t"], ["q"], name="deep", domain="com.example"),
        ],
        [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)],
    )
    graph = helper.make_graph(
        [helper.make_node("Twice", ["x"], ["y"], name="call", domain="local")],
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8])],
    )
    imports = [helper.make_opsetid(d, v) for d, v in (("", 17), ("local", 1), ("com.example", 1))]
    model = helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=8)
    with pytest.raises(UnsupportedOperatorError) as caught:
        tvm_edge.compile(model, "llvm")
    assert caught.value.operators == ("com.example.Relu",)
    report = tvm_edge.analyze(model, "llvm")
    assert [u.op_type for u in report.unsupported] == ["com.example.Relu"]
    assert report.flops == 16


def test_invalid_models_are_still_refused() -> None:
    broken = unsupported_model()
    broken.graph.node[2].input[0] = "nowhere"
    with pytest.raises(InvalidModelError, match="nowhere"):
        tvm_edge.analyze(broken, "llvm")


def test_costs_are_those_of_typical_lengths() -> None:
    model = unsupported_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    for shapes, batch in (
        (None, 1),
        ({"x": (2, 3, 8, 8)}, 2),
        ({"x": (tvm_edge.Dim("n", typical=5), 3, 8, 8)}, 5),
    ):
        report = tvm_edge.analyze(model, "llvm", input_shapes=shapes)
        assert {o.name: o.flops for o in report.operators}["conv"] == 2 * batch * (4 * 36) * 27


def test_an_input_that_is_no_tensor_has_no_report() -> None:
    """It is not about an operator: there is nothing to list."""
    graph = helper.make_graph(
        [helper.make_node("SequenceLength", ["s"], ["n"])],
        "test",
        [helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("n", TensorProto.INT64, [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedOperatorError, match="'s'"):
        tvm_edge.analyze(model, "llvm")


def test_an_operator_inside_of_a_branch() -> None:
    """It is listed at the If that holds it."""
    value = helper.make_tensor_value_info
    branches = {
        f"{side}_branch": helper.make_graph(
            [helper.make_node(op_type, ["x"], [side], **attributes)],
            side,
            [],
            [value(side, TensorProto.FLOAT, [2, 8])],
        )
        for side, op_type, attributes in (("then", "LRN", {"size": 3}), ("else", "Relu", {}))
    }
    graph = helper.make_graph(
        [
            helper.make_node("If", ["c"], ["a"], name="choice", **branches),
            helper.make_node("Exp", ["a"], ["y"], name="exp"),
        ],
        "test",
        [value("x", TensorProto.FLOAT, [2, 8]), value("c", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, [2, 8])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    report = tvm_edge.analyze(model, "llvm")
    (missing,) = report.unsupported
    assert (missing.op_type, missing.operators) == ("LRN", ("choice",))
    assert "LRN" in missing.reason
    assert {o.name: o.flops for o in report.operators} == {"choice": None, "exp": 16}


@pytest.mark.parametrize("operators", [[], ["Conv"]])
def test_a_failure_after_the_import_is_raised(operators: list[str]) -> None:
    """All operators can be imported: a report would claim that all is well, or blame one."""
    failure = UnsupportedOperatorError("the compiler fails on this model", operators)
    with pytest.raises(UnsupportedOperatorError) as caught:
        survey_model(conv_relu(), GivenInputs(), failure)
    assert caught.value is failure


def test_the_options_of_compile() -> None:
    model = conv_relu()
    report = tvm_edge.analyze(model, "mali-t860", fallback=["pool"], host="arm/rk3399")
    assert {o.name: o.device for o in report.operators} == {
        "conv": "opencl",
        "relu": "opencl",
        "pool": "llvm",
    }
    with pytest.raises(PlacementError, match="did you mean 'pool'"):
        tvm_edge.analyze(model, "mali-t860", fallback=["pol"])
    with pytest.raises(InputError, match="auto, list, none, error"):
        tvm_edge.analyze("/no/such/model.onnx", "llvm", fallback="x")
    with pytest.raises(InputError, match="leave host out"):
        tvm_edge.analyze(model, "llvm", host="llvm")


WITHOUT_DEVICES = """
import json, sys
import tvm_edge
reports = {t: tvm_edge.analyze(sys.argv[1], t) for t in sys.argv[2:]}
print(json.dumps({t: [r.target, r.flops, r.placement_line()] for t, r in reports.items()}))
"""


def test_no_device_and_no_compiler_for_one_is_needed(tmp_path: Path) -> None:
    """Neither an OpenCL library nor nvcc nor a CUDA device."""
    path, empty = tmp_path / "model.onnx", tmp_path / "bin"
    empty.mkdir()
    onnx.save(conv_relu(), path)
    targets = ("opencl", "cuda", "mali-t860", "jetson-orin-nano")
    absent = str(tmp_path / "absent")
    environment = {
        "TVM_EDGE_OPENCL_LIBRARY": absent,
        "PATH": str(empty),
        "CUDA_HOME": absent,
        "CUDA_PATH": absent,
        "CUDA_VISIBLE_DEVICES": "",
    }
    output = run_python(WITHOUT_DEVICES, path, *targets, environment=environment)
    reports = json.loads(output.splitlines()[-1])
    for target in targets:
        _, flops, line = reports[target]
        assert flops == 2 * (8 * 256 * 27) + 2 * 8 * 256
        assert line.startswith(
            "cuda 3/3" if target in ("cuda", "jetson-orin-nano") else "opencl 3/3"
        )
    assert "Mali-T860" in reports["mali-t860"][0]
    assert "none is here" in reports["opencl"][0]
