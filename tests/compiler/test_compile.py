"""Properties of compile() itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model, random_input, reference, relative_error
from tvm_edge import zoo


def test_equal_models_give_equal_files(small_model: onnx.ModelProto, tmp_path: Path) -> None:
    first, second = (
        tvm_edge.compile(small_model, "llvm").export(tmp_path / name) for name in ("a", "b")
    )
    assert first.read_bytes() == second.read_bytes()


def test_every_way_to_hand_in_a_model(small_model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(small_model, path)
    data = {"data": random_input((1, 3, 16, 16))}
    expected = tvm_edge.compile(small_model, "llvm").run(data)["pooled"]
    for model in (path, str(path), path.read_bytes(), bytearray(path.read_bytes())):
        np.testing.assert_array_equal(tvm_edge.compile(model, "llvm").run(data)["pooled"], expected)


def test_report_knows_the_model_by_name(tmp_path: Path, small_model: onnx.ModelProto) -> None:
    path = tmp_path / "detector.v2.onnx"
    onnx.save(small_model, path)
    assert tvm_edge.analyze(path, "llvm").model == "detector.v2"
    assert tvm_edge.analyze(small_model, "llvm").model == "test"


def test_batch_above_one() -> None:
    model = zoo.build("squeezenet1_0", image_size=48, width=0.25, batch=3)
    inputs = zoo.sample_input(model)
    outputs = tvm_edge.compile(model, "llvm").run(inputs)["logits"]
    assert relative_error(outputs, reference(model, inputs)["logits"]) < 1e-4
    assert len({row.tobytes() for row in outputs}) == 3, "pictures of a batch are independent"


def test_integer_and_boolean_tensors() -> None:
    model = make_model(
        [
            helper.make_node("Mul", ["i", "i"], ["square"], name="mul"),
            helper.make_node("Less", ["i", "square"], ["less"], name="less"),
            helper.make_node("Not", ["less"], ["y"], name="not"),
        ],
        {"i": (5,)},
        ["square", "y"],
        dtypes={"i": 7, "square": 7, "y": 9},
    )
    inputs = {"i": np.asarray([-(2**40), -1, 0, 1, 2**31], "int64")}
    ours = tvm_edge.compile(model, "llvm").run(inputs)
    for name, expected in reference(model, inputs).items():
        assert ours[name].dtype == expected.dtype
        np.testing.assert_array_equal(ours[name], expected)


def test_integer_factors_are_not_folded_through_floating_point() -> None:
    """2**53 + 1 has no float64; a scale of floats would fold, one of integers must not."""
    model = make_model(
        [
            helper.make_node("Mul", ["i", "three"], ["t"], name="first"),
            helper.make_node("Mul", ["t", "large"], ["y"], name="second"),
        ],
        {"i": (2,)},
        ["y"],
        {"three": np.asarray(3, "int64"), "large": np.asarray(2**53 + 1, "int64")},
        dtypes={"i": 7, "y": 7},
    )
    y = tvm_edge.compile(model, "llvm").run({"i": np.asarray([1, -5], "int64")})["y"]
    assert y.tolist() == [3 * (2**53 + 1), -15 * (2**53 + 1)]


_OPERATORS = {
    "conv": helper.make_node("Conv", ["{x}", "w"], ["{y}"], pads=[1, 1, 1, 1]),
    "relu": helper.make_node("Relu", ["{x}"], ["{y}"]),
    "sigmoid": helper.make_node("Sigmoid", ["{x}"], ["{y}"]),
    "max": helper.make_node("MaxPool", ["{x}"], ["{y}"], kernel_shape=[3, 3], pads=[1] * 4),
    "average": helper.make_node("AveragePool", ["{x}"], ["{y}"], kernel_shape=[3, 3], pads=[1] * 4),
    "softmax": helper.make_node("Softmax", ["{x}"], ["{y}"], axis=1),
    "add": helper.make_node("Add", ["{x}", "{other}"], ["{y}"]),
    "scale": helper.make_node("Mul", ["{x}", "s"], ["{y}"]),
    "norm": helper.make_node("BatchNormalization", ["{x}", "g", "b", "m", "v"], ["{y}"]),
    "shuffle": helper.make_node("Transpose", ["{x}"], ["{y}"], perm=[0, 1, 3, 2]),
}


_CHAINS = given(
    chain=st.lists(st.sampled_from(sorted(_OPERATORS)), min_size=1, max_size=7),
    taps=st.lists(st.integers(0, 6), min_size=7, max_size=7),
    seed=st.integers(0, 2**31),
)


# Two names of one node, of which the second has digits appended.
@example(chain=["add", "conv", "norm", "norm"], taps=[0] * 7, seed=0)
@settings(max_examples=4, deadline=None)
@_CHAINS
def test_random_chains(chain: list[str], taps: list[int], seed: int) -> None:
    """Any order of operators, with residual connections to any earlier tensor."""
    check_chain(chain, taps, seed)


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@_CHAINS
def test_many_random_chains(chain: list[str], taps: list[int], seed: int) -> None:
    check_chain(chain, taps, seed)


def check_chain(chain: list[str], taps: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    nodes, names = [], ["x"]
    for index, kind in enumerate(chain):
        node = onnx.NodeProto()
        node.CopyFrom(_OPERATORS[kind])
        other = names[taps[index] % len(names)]
        for field in (node.input, node.output):
            field[:] = [n.format(x=names[-1], y=f"t{index}", other=other) for n in field]
        node.name = f"{kind}{index}"
        nodes.append(node)
        names.append(f"t{index}")
    used = {name for node in nodes for name in node.input}
    channel = (4,)
    parameters = {
        "w": generator.standard_normal((4, 4, 3, 3)).astype("float32") / 6,
        "s": generator.standard_normal((4, 1, 1)).astype("float32"),
        "g": generator.standard_normal(channel).astype("float32"),
        "b": generator.standard_normal(channel).astype("float32"),
        "m": generator.standard_normal(channel).astype("float32"),
        "v": generator.random(channel, "float32") + 0.5,
    }
    model = make_model(
        nodes, {"x": (1, 4, 6, 6)}, [names[-1]], {k: v for k, v in parameters.items() if k in used}
    )
    inputs = {"x": generator.standard_normal((1, 4, 6, 6)).astype("float32")}
    compiled = tvm_edge.compile(model, "llvm")
    expected = reference(model, inputs)[names[-1]]
    assert relative_error(compiled.run(inputs)[names[-1]], expected) < 1e-4
    assert {o for k in compiled.report.kernels for o in k.operators} <= {n.name for n in nodes}


@pytest.mark.parametrize("size", [1, 7, 55])
def test_awkward_widths(size: int) -> None:
    model = make_model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[0, 1, 0, 1]),
            helper.make_node("Relu", ["c"], ["y"], name="relu"),
        ],
        {"x": (1, 3, 5, size)},
        ["y"],
        {"w": random_input((17, 3, 1, 3))},
    )
    inputs = {"x": random_input((1, 3, 5, size), 1)}
    ours = tvm_edge.compile(model, "llvm").run(inputs)["y"]
    assert relative_error(ours, reference(model, inputs)["y"]) < 1e-5


def test_an_override_that_names_nothing(small_model: onnx.ModelProto) -> None:
    with pytest.raises(tvm_edge.PlacementError, match="did you mean 'Relu'"):
        tvm_edge.compile(small_model, "llvm", fallback=["Rleu"])
    assert tvm_edge.compile(small_model, "llvm", fallback=["conv", "Relu"]).report.placements
