"""Captures in CUDA graphs: the artifacts whose runs may be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_edge
from benchmarks.fusion.timing import why_not_captured
from tests.onnx_models import make_model


def pointwise() -> onnx.ModelProto:
    return make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": (2, 3)}, ["y"])


def suppression(*, rows: bool) -> onnx.ModelProto:
    """A model whose number of results depends on data; without `rows` only their maximum is one."""
    nodes = [helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["y"])]
    if not rows:
        nodes.append(helper.make_node("ReduceMax", ["y"], ["last"], keepdims=1))
    inputs = {"boxes": (1, 6, 4), "scores": (1, 2, 6)}
    name = nodes[-1].output[0]
    return make_model(
        nodes, inputs, [name], {"most": np.array([3])}, dtypes={name: TensorProto.INT64}
    )


def choice() -> onnx.ModelProto:
    def branch(operator: str) -> onnx.GraphProto:
        result = helper.make_tensor_value_info(operator, TensorProto.FLOAT, [3])
        node = helper.make_node(operator, ["x"], [operator])
        return helper.make_graph([node], operator, [], [result])

    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("Abs"), else_branch=branch("Neg")
    )
    return make_model([node], {"c": (), "x": (3,)}, ["y"], dtypes={"c": TensorProto.BOOL})


@pytest.mark.parametrize(
    "model, reason",
    [
        (pointwise(), ""),
        (suppression(rows=True), "a shape depends on data"),
        (suppression(rows=False), "a shape depends on data"),
        (choice(), "a branch depends on data"),
    ],
    ids=["pointwise", "results", "within", "branch"],
)
def test_only_what_runs_without_the_host(
    model: onnx.ModelProto, reason: str, gpu: str, tmp_path: Path
) -> None:
    compiled = tvm_edge.compile(model, gpu, fallback="none", tuning_logs=False)
    compiled.export(tmp_path / "model.tvme")
    assert why_not_captured(tmp_path / "model.tvme") == reason


def test_not_what_the_cpu_has_a_part_of(gpu: str, tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["y"])]
    compiled = tvm_edge.compile(make_model(nodes, {"x": (2, 3)}, ["y"]), gpu, fallback=["Exp"])
    compiled.export(tmp_path / "model.tvme")
    assert why_not_captured(tmp_path / "model.tvme") == "a part runs on the CPU"
