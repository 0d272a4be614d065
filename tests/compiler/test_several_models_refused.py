"""Errors about several models in one artifact, and the names in them."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.compiler.several_models import inputs_of
from tests.onnx_models import conv_relu, make_model, random_input
from tvm_edge import InputError, InvalidModelError, UnsupportedOperatorError


@pytest.mark.parametrize(
    ("models", "error", "fragment"),
    [
        ({}, InputError, "empty"),
        ({"a/b": conv_relu()}, InputError, "'a/b'.*without '/'"),
        ({"": conv_relu()}, InputError, "is called ''"),
        ({3: conv_relu()}, InputError, "is called 3"),
        ({"a\n": conv_relu()}, InputError, "is called"),
        ({"a": 3}, InvalidModelError, "the model 'a': cannot read a model from a int"),
        ({"a": {"b": conv_relu()}}, InvalidModelError, "the model 'a': cannot read .* from a dict"),
        ({"a": "/no/such.onnx"}, InvalidModelError, "the model 'a': .*/no/such.onnx"),
        ([conv_relu()], InvalidModelError, "from a list; pass .*or a dict of names"),
    ],
    ids=str,
)
def test_models_that_are_none(models: Any, error: type[Exception], fragment: str) -> None:
    with pytest.raises(error, match=fragment):
        tvm_edge.compile(models, "llvm")


def test_dynamic_inputs_are_named_as_the_user_names_them() -> None:
    models = {"fixed": conv_relu(), "batch": conv_relu(batch="n")}
    for wrong in ("data", "batsh/data"):
        with pytest.raises(InputError, match=rf"{wrong!r}.*'model/input'"):
            tvm_edge.compile(models, "llvm", input_shapes={wrong: (2, 3, 16, 16)})
    with pytest.raises(InputError, match=r"'batch/dta'.*did you mean 'data'"):
        tvm_edge.compile(models, "llvm", input_shapes={"batch/dta": (2, 3, 16, 16)})
    compiled = tvm_edge.compile(models, "llvm", input_shapes={"batch/data": (2, 3, 16, 16)})
    assert [spec.shape[0] for spec in compiled.inputs] == [1, 2]
    with pytest.raises(InputError, match=r"'batch/data' gives|gives 'batch/data'") as err:
        tvm_edge.compile(models, "llvm", input_shapes={"batch/data": ("n", 3, 16)})
    assert err.value.name == "batch/data"


def test_operators_are_named_by_model() -> None:
    models = {"a": conv_relu(), "b": conv_relu(1)}
    with pytest.raises(tvm_edge.PlacementError, match="'a/conv'"):
        tvm_edge.compile(models, "jetson-orin-nano", fallback=["conv"])


@pytest.mark.parametrize(
    ("options", "name", "fragment"),
    [
        ({"models": ["pos"]}, "models", "no model 'pos'; did you mean 'pose'"),
        ({"models": "pose"}, "models", r"pass a list of names, of 'detector', 'pose'"),
        ({"models": 3}, "models", "pass a list"),
        ({"models": []}, "models", "nothing would run"),
        ({"models": [3]}, "models", "no model '3'"),
        (
            {"models": ["pose"], "outputs": ["detector/pooled"]},
            "detector/pooled",
            "of the model 'detector', which does not run; add 'detector' to models",
        ),
        ({"models": ["pose"], "outputs": ["nothing"]}, "nothing", "no output 'nothing'"),
        ({"models": ["pose"], "outputs": "pose"}, "outputs", "is the string"),
    ],
    ids=str,
)
def test_runs_that_mean_nothing(
    both: tvm_edge.CompiledModel,
    models: dict[str, onnx.ModelProto],
    options: dict[str, Any],
    name: str,
    fragment: str,
) -> None:
    for run in (both.run, both.run_async):
        with pytest.raises(InputError, match=fragment) as err:
            run(inputs_of(models), **options)
        assert err.value.name == name


def test_inputs_of_who_runs(
    both: tvm_edge.CompiledModel, models: dict[str, onnx.ModelProto]
) -> None:
    values = inputs_of(models)
    with pytest.raises(InputError, match=r"the input pose/in0.* is missing"):
        both.run({"detector/data": values["detector/data"]})
    with pytest.raises(InputError, match=r"the input pose/in0.* is missing"):
        both.run({}, models=["pose"])
    with pytest.raises(InputError, match="no input 'posse/in0'"):
        both.run({**values, "posse/in0": values["pose/in0"]}, models=["detector"])
    # Of who does not run they are not even looked at.
    both.run({**values, "pose/in0": None}, models=["detector"])


def test_models_of_an_artifact_that_has_one(compiled_small: tvm_edge.CompiledModel) -> None:
    assert compiled_small.models == ()
    with pytest.raises(InputError, match="has one model, without a name"):
        compiled_small.run({"data": random_input((1, 3, 16, 16))}, models=["small"])


def test_what_cannot_be_imported_is_listed_by_model() -> None:
    unknown = make_model([helper.make_node("Relu", ["x"], ["y"], name="first")], {"x": (2,)}, ["y"])
    unknown.graph.node[0].op_type = "Unheard"
    unknown.graph.node[0].domain = "org.example"
    unknown.opset_import.append(helper.make_opsetid("org.example", 1))
    models = {"good": conv_relu(), "bad": unknown}
    with pytest.raises(UnsupportedOperatorError, match=r"the model 'bad': .*Unheard") as err:
        tvm_edge.compile(models, "llvm")
    assert len(err.value.operators) == 1
    report = tvm_edge.analyze(models, "llvm")
    (missing,) = report.unsupported
    assert missing.operators == ("bad/first",)
    assert {"good/conv", "bad/first"} <= {o.name for o in report.operators}
