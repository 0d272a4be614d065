"""A budget of memory for models with open dimensions: planned for their largest lengths."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model, random_input, reference, relative_error
from tests.runtime.support import run_python
from tvm_edge import Dim, InputError, MemoryBudgetError, opencl

MIB = 1 << 20
LARGEST = (2, 8, 320, 384)
BOUNDED = {"x": (Dim("n", max=2), 8, Dim("h", max=320), Dim("w", min=8, max=390, multiple=8))}
SHAPES = [(1, 8, 16, 16), (1, 8, 320, 8), LARGEST, (2, 8, 33, 200), (1, 8, 77, 384), LARGEST]


def network() -> onnx.ModelProto:
    """Tensors of 7.5 MiB an image where it is largest, Winograd's algorithm, a small result."""
    random = np.random.default_rng(0)
    nodes, weights, value = [], {}, "x"
    for index in range(5):
        weights[f"w{index}"] = (
            random.standard_normal((16, 8 if not index else 16, 3, 3)) / 9
        ).astype("float32")
        nodes.append(helper.make_node("Conv", [value, f"w{index}"], [f"y{index}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"y{index}"], [f"z{index}"]))
        value = f"z{index}"
    nodes.append(helper.make_node("MaxPool", [value], ["p"], kernel_shape=[2, 2], strides=[2, 2]))
    nodes.append(helper.make_node("Resize", ["p", "", "twice"], ["r"], mode="nearest"))
    nodes.append(helper.make_node("Relu", ["r"], ["s"]))
    nodes.append(helper.make_node("GlobalAveragePool", ["s"], ["mean"]))
    weights["twice"] = np.array([1, 1, 2, 2], "float32")
    return make_model(nodes, {"x": ("n", 8, "h", "w")}, ["mean"], weights)


@pytest.mark.parametrize(
    ("given", "named", "hint"),
    [
        (None, ["'h'", "'n'", "'w'"], "Dim('n', max=...), 8, Dim('h', max=...), Dim('w', max=...)"),
        (("n", 8, Dim("h", max=64), 48), ["'n'"], "Dim('n', max=...), 8, Dim('h', max=64), 48"),
    ],
)
def test_what_needs_a_bound_is_named(given: Any, named: list[str], hint: str) -> None:
    shapes = None if given is None else {"x": given}
    with pytest.raises(InputError, match=re.escape(f"input_shapes={{'x': ({hint},)}}")) as caught:
        tvm_edge.analyze(network(), "llvm", input_shapes=shapes, memory_budget="1GiB")
    assert f"dimension{'s' * (len(named) > 1)} {', '.join(named)} of" in str(caught.value)


@pytest.mark.parametrize("target", ["llvm", "mali-t860"])
def test_memory_is_that_of_the_largest_shape(target: str) -> None:
    report = tvm_edge.analyze(network(), target, input_shapes=BOUNDED, memory_budget="1GiB")
    memory = report.memory
    assert memory is not None
    image = 4 * int(np.prod(LARGEST))
    assert memory.inputs_outputs == image + 4 * 2 * 16
    # Two tensors of 16 channels at a time.
    assert memory.activations >= 2 * 2 * image
    assert max(memory.over_time[""]) <= memory.activations


def test_a_budget_that_only_smaller_shapes_fit() -> None:
    small = tuple(Dim(d.name, max=8) if isinstance(d, Dim) else d for d in BOUNDED["x"])
    report = tvm_edge.analyze(network(), "llvm", input_shapes={"x": small}, memory_budget="1GiB")
    assert report.memory is not None
    enough = report.memory.peak + MIB
    with pytest.raises(MemoryBudgetError) as caught:
        tvm_edge.analyze(network(), "llvm", input_shapes=BOUNDED, memory_budget=enough)
    assert caught.value.smallest_feasible > enough + 20 * MIB
    tvm_edge.analyze(network(), "llvm", input_shapes={"x": small}, memory_budget=enough)


RUNS = """
import json, sys
from pathlib import Path
import numpy as np
import tvm_edge

def anonymous():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(fields[key].split()[0]) for key in ("RssAnon", "RssShmem")) << 10

model = tvm_edge.load(sys.argv[1])
peak, means = 0, []
for shape in json.loads(sys.argv[2]):
    x = np.empty(shape, "float32")
    x[...] = np.random.default_rng(sum(shape)).standard_normal((*shape[:2], 1, shape[3]))
    means.append(model.run({"x": x})["mean"].reshape(-1).tolist())
    peak = max(peak, anonymous())
    del x
print(json.dumps({"peak": peak, "means": means}))
"""


def test_runs_of_many_shapes_keep_to_it(tmp_path: Path) -> None:
    enough = tvm_edge.analyze(network(), "llvm", input_shapes=BOUNDED, memory_budget="1GiB")
    assert enough.memory is not None
    budget = enough.memory.peak + MIB
    model = tvm_edge.compile(
        network(), "llvm", input_shapes=BOUNDED, memory_budget=budget, num_threads=1
    )
    path = model.export(tmp_path / "model.tvme")
    shapes = [*SHAPES, *((1, 8, 40, width) for width in range(8, 200, 8)), *SHAPES]
    environment = {"TVM_USE_RUNTIME_LIB": "1"}
    told = json.loads(
        run_python(RUNS, path, json.dumps(shapes), environment=environment).splitlines()[-1]
    )
    assert told["peak"] < budget + 4 * MIB
    for shape, means in zip(SHAPES, told["means"], strict=False):
        x = np.empty(shape, "float32")
        x[...] = np.random.default_rng(sum(shape)).standard_normal((*shape[:2], 1, shape[3]))
        (expected,) = reference(network(), {"x": x}).values()
        assert relative_error(np.reshape(means, expected.shape), expected) < 1e-4


def test_tensors_of_a_device_keep_to_it(on_opencl: None) -> None:
    """Whatever the order of shapes; a model without a budget would keep memory of each."""
    bounded = {"x": (1, 8, Dim("h", max=40), Dim("w", max=48))}
    model = tvm_edge.compile(network(), "opencl", input_shapes=bounded, memory_budget="100MiB")
    memory = model.report.memory
    assert memory is not None
    before = opencl.memory()["in_use"]
    opencl.reset_peak()
    for height, width in [(8, 8), (40, 8), (17, 48), (40, 48), (9, 31), (40, 48), (24, 24)]:
        inputs = {"x": random_input((1, 8, height, width))}
        (expected,) = reference(network(), inputs).values()
        assert relative_error(model.run(inputs)["mean"], expected) < 1e-4
    planned = memory.activations + memory.inputs_outputs + memory.rounding
    assert opencl.memory()["peak"] - before <= planned + memory.weights


def test_with_a_budget_no_shape_is_recorded(on_opencl: None) -> None:
    """Its memory would come on top."""
    small = {"x": (1, 8, Dim("h", max=16), 8)}
    model = tvm_edge.compile(network(), "opencl", input_shapes=small, memory_budget="1GiB")
    before = opencl.command_buffers()
    for seed in range(4):
        inputs = {"x": random_input((1, 8, 16, 8), seed)}
        (expected,) = reference(network(), inputs).values()
        assert relative_error(model.run(inputs)["mean"], expected) < 1e-4
    assert opencl.command_buffers()["recorded"] == before["recorded"]
