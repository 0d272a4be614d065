"""ReLU and clips in epilogues on tensor cores."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model
from tvm_edge.compiler import driver
from tvm_edge.compiler.build import build
from tvm_edge.compiler.options import Options
from tvm_edge.errors import TvmEdgeWarning
from tvm_edge.lowering.deep_stack import on_deep_stack


def clipped(channels: int, bounds: tuple[float, float] | None) -> onnx.ModelProto:
    """A convolution of `channels`, and what bounds its results."""
    weights = {"w": np.ones((64, channels, 3, 3), "float32")}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1] * 4)]
    if bounds is None:
        nodes.append(helper.make_node("Relu", ["c"], ["y"]))
    else:
        weights |= {"low": np.float32(bounds[0]), "high": np.float32(bounds[1])}
        nodes.append(helper.make_node("Clip", ["c", "low", "high"], ["y"]))
    return make_model(nodes, {"x": (1, channels, 12, 12)}, ["y"], weights)


@pytest.mark.parametrize(
    ("bounds", "calls"),
    [
        (None, ["tvm_edge_at_least"]),
        ((0.0, 6.0), ["tvm_edge_at_least", "tvm_edge_at_most"]),
    ],
    ids=["relu", "relu6"],
)
def test_bounds_are_one_instruction(bounds: tuple[float, float] | None, calls: list[str]) -> None:
    options = Options(precision="float16", fallback="none")
    done = driver.lowered(clipped(64, bounds), "jetson-orin-nano", options)
    (source,) = on_deep_stack(lambda: build(done.module, done.resolved)).device_sources()
    kernel = source[source.rindex("tvm_edge_tensor_conv<") :].split("__global__", 1)[0]
    assert all(f"{name}(" in kernel for name in calls)
    assert "condval" not in kernel, "a choice between two values"


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
@pytest.mark.parametrize("bounds", [None, (-1.0, 6.0)], ids=["relu", "clip"])
def test_nan_is_kept(gpu: str, bounds: tuple[float, float] | None) -> None:
    compiled = tvm_edge.compile(clipped(8, bounds), gpu, precision="float16", fallback="none")
    image = np.zeros((1, 8, 12, 12), "float32")
    image[0, 3, 5, 5], image[0, 0, 0, 0], image[0, 0, 11, 11] = np.nan, -100, 100
    with pytest.warns(TvmEdgeWarning, match="infinity or NaN"):
        result = compiled.run({"x": image})["y"]
    assert np.isnan(result[:, :, 4:7, 4:7]).all() and np.isnan(result).sum() == 64 * 9
    low, high = (0, 100) if bounds is None else bounds
    assert result[0, 0, 0, 0] == low and result[0, 0, 11, 11] == high
