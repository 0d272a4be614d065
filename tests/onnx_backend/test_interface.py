"""Calls of a program that knows only ``onnx.backend.base``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_edge
from tests.onnx_models import conv_relu, make_model, random_input, reference
from tests.runtime.support import run_python
from tvm_edge import DeviceUnavailableError, InputError, InvalidModelError, UnsupportedOperatorError
from tvm_edge import onnx_backend as backend
from tvm_edge.frontend.onnx_forming_inputs import forming_inputs


def scale_model(**shapes: tuple[Any, ...]) -> onnx.ModelProto:
    """``y = x · s``, ``s`` an input that an initializer defaults to 2."""
    model = make_model(
        [helper.make_node("Mul", ["x", "s"], ["y"], name="mul")],
        {"x": (3,), "s": (1,), **shapes},
        ["y"],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.asarray([2], "float32"), "s"))
    return model


def test_it_is_a_backend() -> None:
    assert issubclass(backend.TvmEdgeBackend, onnx.backend.base.Backend)
    assert isinstance(backend.prepare(conv_relu()), onnx.backend.base.BackendRep)


def test_outputs_by_index_attribute_and_name() -> None:
    model, data = conv_relu(), random_input((1, 3, 16, 16))
    outputs = backend.prepare(model, "CPU", num_threads=1).run([data])
    expected = tvm_edge.compile(model, "llvm").run({"data": data})["pooled"]
    for value in (outputs[0], outputs.pooled, outputs["pooled"]):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(
    "form", [lambda x: [x], lambda x: (x,), lambda x: {"data": x}, lambda x: x]
)
def test_inputs_as_sequence_mapping_or_bare_array(form: Any) -> None:
    data = random_input((1, 3, 16, 16))
    (pooled,) = backend.run_model(conv_relu(), form(data))
    np.testing.assert_allclose(pooled, reference(conv_relu(), {"data": data})["pooled"], rtol=1e-4)


def test_each_shape_of_a_dynamic_model_is_compiled_once() -> None:
    prepared = backend.prepare(conv_relu(batch="N"))
    for batch in (1, 3, 1):
        data = random_input((batch, 3, 16, 16), batch)
        (pooled,) = prepared.run([data])
        expected = reference(conv_relu(batch="N"), {"data": data})["pooled"]
        np.testing.assert_allclose(pooled, expected, rtol=1e-4, atol=1e-6)
    assert len(prepared._compiled) == 2


def test_a_shape_is_an_input() -> None:
    """Reshape's second operand: the code is made for its value."""
    model = make_model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        {"x": (2, 6), "shape": (2,)},
        ["y"],
        dtypes={"shape": TensorProto.INT64},
    )
    prepared = backend.prepare(model)
    x = random_input((2, 6))
    for shape in ((3, 4), (12, 1), (3, -1)):
        (y,) = prepared.run([x, np.asarray(shape, "int64")])
        np.testing.assert_array_equal(y, x.reshape(shape))
    with pytest.raises(InputError, match="float32"):
        prepared.run([x, np.asarray([3, 4], "float32")])


def test_variants_are_bounded() -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("N",)}, ["y"])
    prepared = backend.prepare(model)
    for length in range(1, 20):
        assert prepared.run([np.ones(length, "float32")])[0].shape == (length,)
    assert len(prepared._compiled) == 16


@pytest.mark.parametrize(
    ("inputs", "factor"),
    [
        (lambda x, s: [x], 2),
        (lambda x, s: [x, s], 5),
        (lambda x, s: {"x": x, "s": s}, 5),
        (lambda x, s: {"s": s, "x": x}, 5),
        (lambda x, s: {"x": x}, 2),
    ],
)
def test_inputs_with_a_default(inputs: Any, factor: int) -> None:
    x, s = random_input((3,)), np.asarray([5], "float32")
    (y,) = backend.prepare(scale_model()).run(inputs(x, s))
    np.testing.assert_array_equal(y, x * np.float32(factor))


def test_a_tensor_without_dimensions() -> None:
    model = make_model([helper.make_node("Add", ["a", "b"], ["y"])], {"a": (), "b": ()}, ["y"])
    (y,) = backend.run_model(model, [np.float32(1.5), np.asarray(2, "float32")])
    assert y.shape == () and y == 3.5


def test_an_optional_input_left_out() -> None:
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    x = random_input((8,))
    (y,) = backend.run_node(node, [x, np.asarray(0.25, "float32")])
    np.testing.assert_array_equal(y, np.minimum(x, np.float32(0.25)))


def test_an_output_left_out() -> None:
    node = helper.make_node("Dropout", ["x"], ["y", ""])
    (y,) = backend.run_node(node, [random_input((8,))])
    np.testing.assert_array_equal(y, random_input((8,)))


def test_run_node_with_an_opset_and_outputs_info() -> None:
    node = helper.make_node("ReduceSum", ["x"], ["y"], axes=[1])
    x = random_input((2, 3))
    (y,) = backend.run_node(
        node, [x], opset_version=11, outputs_info=[(np.dtype("float32"), (2, 1))]
    )
    np.testing.assert_allclose(y, x.sum(1, keepdims=True), rtol=1e-6)
    with pytest.raises(InvalidModelError, match="ReduceSum"):
        backend.run_node(node, [x])  # since opset 13 the axes are an input


@pytest.mark.parametrize(
    ("inputs", "fragment"),
    [
        ([], "'data'"),
        ([1, 2], "'data'"),
        ({"dta": np.ones(1)}, "did you mean 'data'"),
        ({}, "missing"),
        ([3.5], "NumPy array"),
        (["text"], "NumPy array"),
        ([np.ones((1, 3, 16, 16))], "float64"),
        ([np.ones((1, 3, 16, 15), "float32")], "(N, 3, 16, 16)"),
        ([np.ones((3, 16, 16), "float32")], "(N, 3, 16, 16)"),
        ([np.ones((0, 3, 16, 16), "float32")], "at least 1"),
    ],
)
def test_wrong_inputs(inputs: Any, fragment: str) -> None:
    with pytest.raises(InputError) as caught:
        backend.prepare(conv_relu(batch="N")).run(inputs)
    assert fragment in str(caught.value)


def test_unknown_options() -> None:
    with pytest.raises(InputError, match="did you mean 'num_threads'"):
        backend.prepare(conv_relu(), num_thread=1)
    with pytest.raises(InputError, match="input_shapes"):
        backend.prepare(conv_relu(), input_shapes={})
    with pytest.raises(InputError, match="run\\(\\) takes no option 'x'"):
        backend.prepare(conv_relu()).run([random_input((1, 3, 16, 16))], x=1)


@pytest.mark.parametrize("batch", [1, "N"])
def test_what_cannot_run_is_refused_by_prepare(batch: Any) -> None:
    """Also where no code can be generated yet."""
    unknown = conv_relu(batch=batch)
    unknown.graph.node[1].op_type, unknown.graph.node[1].domain = "Mystery", "com.example"
    unknown.opset_import.append(helper.make_opsetid("com.example", 1))
    broken = conv_relu(batch=batch)
    broken.graph.node[1].input[0] = "nowhere"
    for model, error in ((unknown, UnsupportedOperatorError), (broken, InvalidModelError)):
        assert not backend.is_compatible(model)
        with pytest.raises(error):
            backend.prepare(model)
    assert backend.is_compatible(conv_relu(batch=batch))


@pytest.mark.parametrize("kind", ["strings", "a sequence of strings"])
def test_other_than_tensors_of_numbers(kind: str) -> None:
    make = (
        helper.make_tensor_value_info
        if kind == "strings"
        else helper.make_tensor_sequence_value_info
    )
    value, output = (make(name, TensorProto.STRING, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert not backend.is_compatible(model)
    with pytest.raises(UnsupportedOperatorError, match="'x' is"):
        backend.prepare(model)


@pytest.mark.parametrize("device", ["CPU:1", "CPU:x", "CUDA:99", "OPENCL:99", "TPU", "cpu", ""])
def test_devices_that_are_not_here(device: str) -> None:
    assert not backend.supports_device(device)
    assert not backend.is_compatible(conv_relu(), device)
    with pytest.raises(DeviceUnavailableError, match="tvm-edge doctor"):
        backend.prepare(conv_relu(), device)


@pytest.mark.parametrize("suffix", ["", ":0"])
def test_on_a_gpu(gpu: str, suffix: str) -> None:
    device = gpu.upper() + suffix
    assert backend.supports_device(device)
    data = random_input((1, 3, 16, 16))
    (pooled,) = backend.run_model(conv_relu(), [data], device)
    np.testing.assert_allclose(pooled, reference(conv_relu(), {"data": data})["pooled"], rtol=1e-4)


def test_on_the_second_gpu(gpu: str) -> None:
    device = f"{gpu.upper()}:1"
    if not backend.supports_device(device):
        pytest.skip(f"one {gpu} device on this machine")
    data = random_input((1, 3, 16, 16))
    (pooled,) = backend.run_model(conv_relu(), [data], device)
    np.testing.assert_allclose(pooled, reference(conv_relu(), {"data": data})["pooled"], rtol=1e-4)


def test_without_onnx_the_message_names_the_extra(tmp_path: Path) -> None:
    code = """
import tvm_edge
try:
    import tvm_edge.onnx_backend
except tvm_edge.MissingDependencyError as err:
    print(err)
"""
    assert "pip install 'tvm-edge[onnx]'" in run_python(code, blocked=("onnx",))


def test_a_network_of_the_zoo_by_name() -> None:
    """``zoo:NAME`` wherever a path goes."""
    assert backend.is_compatible("zoo:squeezenet1_0")
    with pytest.raises(InputError, match="did you mean 'squeezenet1_0'"):
        backend.prepare("zoo:squeezenet1")


def test_a_shape_that_is_calculated_from_an_input() -> None:
    """The input's value is code; the data of the other input is not, and has its own kind."""
    nodes = [
        helper.make_node("Mul", ["rows", "two"], ["twice"]),
        helper.make_node("Concat", ["twice", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    constants = {"two": np.asarray([2], "int64"), "rest": np.asarray([-1], "int64")}
    shapes = {"x": (4, 6), "rows": (1,)}
    model = make_model(nodes, shapes, ["y"], constants, dtypes={"rows": TensorProto.INT64})
    prepared = backend.prepare(model)
    assert prepared.kind == "specialised"
    x = random_input((4, 6))
    for rows in (1, 3, 6, 3):
        (y,) = prepared.run([x, np.asarray([rows], "int64")])
        np.testing.assert_array_equal(y, x.reshape(2 * rows, -1))
    assert len(prepared._compiled) == 3
    assert backend.prepare(conv_relu()).kind == "static"
    assert backend.prepare(conv_relu(batch="N")).kind == "dynamic"


def test_a_shape_that_depends_on_data_is_not_compiled_for_each() -> None:
    """The number of non-zero elements is known after the data, which is a picture."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Shape", ["places"], ["lengths"]),
        helper.make_node("Expand", ["one", "lengths"], ["y"]),
    ]
    model = make_model(nodes, {"x": (3, 4)}, ["y"], {"one": np.ones(1, "float32")})
    assert forming_inputs(model) == []


@pytest.mark.parametrize(("operator", "expected"), [("ReduceSum", 0.0), ("ReduceMin", np.inf)])
def test_data_without_elements(operator: str, expected: float) -> None:
    """A length of 0 that the model declares is meant when the data say it too."""
    node = helper.make_node(operator, ["x", "axes"], ["y"])
    axes = {"axes": np.asarray([1], "int64")}
    model = make_model([node], {"x": (2, 0, 3)}, ["y"], axes, opset=18)
    (y,) = backend.run_model(model, [np.ones((2, 0, 3), "float32")])
    np.testing.assert_array_equal(y, np.full((2, 1, 3), expected, "float32"))
    with pytest.raises(InputError, match="at least 1"):
        tvm_edge.compile(model, "llvm")
