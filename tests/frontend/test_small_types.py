"""Types of eight bits and fewer, against ml_dtypes: every value there is."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tvm_edge.ops.small_types import SMALL_TYPES

# Every float16 is among them: what lies between two neighbours of a small type, and their middles.
HALVES = np.arange(1 << 16, dtype="uint16").view("float16").reshape(256, 256)


def cast_model(
    source: int, target: int, shape: tuple[int, ...], **attributes: int
) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=target, **attributes)],
        "cast",
        [helper.make_tensor_value_info("x", source, shape)],
        [helper.make_tensor_value_info("y", target, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


def number_of(name: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, name)))


def saturated(values: np.ndarray, name: str) -> np.ndarray:
    """Clipped to the finite values first."""
    limits = ml_dtypes.finfo(name)
    inside = np.clip(values.astype("float32"), float(limits.min), float(limits.max))
    return inside.astype(getattr(ml_dtypes, name))


@pytest.mark.parametrize(
    "name", sorted(n for n in SMALL_TYPES if n.startswith(("float8_e4", "float8_e5")))
)
@pytest.mark.parametrize("saturate", [0, 1])
def test_to_floats_of_eight_bits(name: str, saturate: int) -> None:
    model = cast_model(TensorProto.FLOAT16, number_of(name), HALVES.shape, saturate=saturate)
    compiled = tvm_edge.compile(model, "llvm")
    assert compiled.outputs[0].dtype == name and compiled.outputs[0].stored_as == "uint8"
    ours = compiled.run({"x": HALVES})["y"]
    with np.errstate(all="ignore"):
        plain = HALVES.astype(getattr(ml_dtypes, name))
        expected = saturated(HALVES, name) if saturate else plain
    np.testing.assert_array_equal(ours.astype("float32"), expected.astype("float32"))


@pytest.mark.parametrize("name", sorted(SMALL_TYPES))
def test_from_small_types(name: str, tmp_path: Path) -> None:
    """Through a file: the manifest says in which type the code has the input."""
    x = np.arange(256, dtype="uint8").view(getattr(ml_dtypes, name))
    if "int" in name:  # in their own range: bits above are nobody's
        x = x.astype("int32").astype(x.dtype)
    model = cast_model(number_of(name), TensorProto.FLOAT, x.shape)
    path = tvm_edge.compile(model, "llvm").export(tmp_path / "cast.tvme")
    ours = tvm_edge.load(path).run({"x": x})["y"]
    np.testing.assert_array_equal(ours, x.astype("float32"))


def test_whole_numbers_wrap() -> None:
    x = np.arange(-20, 20).astype("float32")
    for name in ("int4", "uint4", "int2", "uint2"):
        model = cast_model(TensorProto.FLOAT, number_of(name), x.shape)
        ours = tvm_edge.compile(model, "llvm").run({"x": x})["y"]
        expected = x.astype("int32").astype(getattr(ml_dtypes, name))
        np.testing.assert_array_equal(ours.astype("int32"), expected.astype("int32"))


def test_they_are_not_calculated_with() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["t"], to=TensorProto.INT4),
            helper.make_node("Relu", ["t"], ["y"]),
        ],
        "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.INT4, [3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(tvm_edge.TvmEdgeError):
        tvm_edge.compile(model, "llvm")
