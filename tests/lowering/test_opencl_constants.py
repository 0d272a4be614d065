"""Constants of OpenCL sources: as the model has them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvm_edge
from tests.onnx_models import reference
from tests.schedules.gpu.harness import opencl_source

SCALE = np.float32(0.0186584480106830)


def quantize(values: np.ndarray) -> onnx.ModelProto:
    """A QuantizeLinear."""
    constants = {"scale": SCALE, "zero": np.uint8(100)}
    node = helper.make_node("QuantizeLinear", ["x", *constants], ["y"])
    graph = helper.make_graph(
        [node],
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, values.shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, values.shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 19)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def test_numbers_in_the_middle_are_rounded_as_they_are(gpu: str) -> None:
    """By a scale of eight digits."""
    middle = (np.arange(-100, 150).astype("float32") + np.float32(0.5)) * SCALE
    model = quantize(middle)
    ours = tvm_edge.compile(model, gpu, fallback="none").run({"x": middle})["y"]
    assert np.array_equal(ours, reference(model, {"x": middle})["y"])


def test_only_what_seven_digits_do_not_tell_is_written_as_bits() -> None:
    text = opencl_source(quantize(np.zeros(16, "float32")), "mali-t860")
    assert f"/ as_float({SCALE.view('int32')})" in text
    assert text.count("as_float") == 1 and "-1.000000e+02f" in text
