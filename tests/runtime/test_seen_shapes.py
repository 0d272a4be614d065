"""Memory of a process that runs images of many sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

import tvm_edge


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_shapes_that_are_not_run_any_more_have_no_memory() -> None:
    """Each shape has blocks of 8 to 12 MB of its own: 150 of them would be 1.5 GB."""
    steps = [helper.make_node("Tile", ["x", "often"], ["t"])]
    steps += [helper.make_node("ReduceSum", ["t", "axes"], ["y"], keepdims=0)]
    graph = helper.make_graph(
        steps,
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["w"])],
        [
            helper.make_tensor("often", TensorProto.INT64, [2], [1000, 1]),
            helper.make_tensor("axes", TensorProto.INT64, [1], [0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    compiled = tvm_edge.compile(model, "llvm", num_threads=1)
    before = _resident_bytes()
    for width in range(2000, 3000, 7):
        row = np.full((1, width), 1.0, "float32")
        np.testing.assert_array_equal(compiled.run({"x": row})["y"], np.full(width, 1000.0))
    assert _resident_bytes() - before < 600e6
