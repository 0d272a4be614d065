"""Models with open dimensions: one compilation, any shape, against ONNX Runtime."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tvm import tirx

import tvm_edge
from tests.onnx_models import make_model, random_input, session
from tvm_edge import Dim, InputError

TOLERANCE = 1e-4  # of each tensor's largest value, as DESIGN says

node = helper.make_node


def weight(*shape: int, seed: int = 0, scale: float = 0.3) -> np.ndarray:
    return random_input(shape, seed) * np.float32(scale)


def picture_network() -> onnx.ModelProto:
    """Pads and sizes that depend on whether a length is odd; a branch that is enlarged again."""
    nodes = [
        node("Conv", ["x", "w0"], ["a"], auto_pad="SAME_UPPER", strides=[2, 2]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1], group=8),
        node("MaxPool", ["c"], ["d"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["d", "w2"], ["e"], auto_pad="SAME_LOWER"),
        node("Shape", ["c"], ["size"], start=2),
        node("Shape", ["e"], ["lead"], end=2),
        node("Concat", ["lead", "size"], ["wanted"], axis=0),
        node("Resize", ["e", "", "", "wanted"], ["f"], mode="linear"),
        node("Concat", ["c", "f"], ["g"], axis=1),
        node("ConvTranspose", ["g", "w3"], ["dense"], strides=[2, 2]),
        node("GlobalAveragePool", ["g"], ["h"]),
        node("Flatten", ["h"], ["i"]),
        node("Gemm", ["i", "w4"], ["scores"]),
    ]
    weights = {
        "w0": weight(8, 3, 3, 3),
        "w1": weight(8, 1, 3, 3, seed=1),
        "w2": weight(8, 8, 3, 3, seed=2, scale=0.1),
        "w3": weight(16, 2, 2, 2, seed=3),
        "w4": weight(16, 5, seed=4),
    }
    return make_model(nodes, {"x": ("n", 3, "h", "w")}, ["dense", "scores"], weights)


def pools() -> onnx.ModelProto:
    window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2]}
    nodes = [
        node("MaxPool", ["x"], ["largest", "places"], auto_pad="SAME_UPPER", **window),
        node("AveragePool", ["x"], ["mean"], auto_pad="SAME_LOWER", **window),
        node("AveragePool", ["x"], ["wide"], ceil_mode=1, pads=[1, 1, 1, 1], **window),
        node("LpPool", ["x"], ["norm"], auto_pad="SAME_UPPER", **window),
        # As in squeezenet: lengths of lengths, beside constants that are calculated.
        node("MaxPool", ["x"], ["half"], ceil_mode=1, **window),
        node("MaxPool", ["half"], ["quarter"], ceil_mode=1, pads=[1, 0, 1, 1], **window),
        node("Add", ["one", "one"], ["two"]),
        node("Mul", ["quarter", "two"], ["twice"]),
    ]
    names = ["largest", "places", "mean", "wide", "norm", "twice"]
    dtypes = {"places": TensorProto.INT64}
    constants = {"one": np.ones((1, 3, 1, 1), "float32")}
    return make_model(nodes, {"x": ("n", 3, "h", "w")}, names, constants, dtypes=dtypes)


def recurrent_network() -> onnx.ModelProto:
    """The head of a reader of text: both directions, states that the sequence's batch makes."""
    nodes = [
        node("Shape", ["x"], ["batch"], start=1, end=2),
        node("Concat", ["two", "batch", "hidden"], ["shape"], axis=0),
        node("ConstantOfShape", ["shape"], ["zeros"]),
        node(
            "LSTM",
            ["x", "w", "r", "b", "", "zeros", "zeros"],
            ["y", "last"],
            hidden_size=5,
            direction="bidirectional",
        ),
        node("Transpose", ["y"], ["turned"], perm=[0, 2, 1, 3]),
        node("Reshape", ["turned", "flat"], ["rows"]),
        node("GRU", ["rows", "wg", "rg"], ["z"], hidden_size=3, linear_before_reset=0),
    ]
    constants = {
        "two": np.array([2]),
        "hidden": np.array([5]),
        "flat": np.array([0, 0, -1]),
        "w": weight(2, 20, 4),
        "r": weight(2, 20, 5, seed=1),
        "b": weight(2, 40, seed=2),
        "wg": weight(1, 9, 10, seed=3),
        "rg": weight(1, 9, 3, seed=4),
    }
    return make_model(nodes, {"x": ("t", "n", 4)}, ["last", "z"], constants)


def transformer() -> onnx.ModelProto:
    """One layer of an encoder with a mask of the open length of the sequence."""
    nodes = [
        node("Gather", ["table", "ids"], ["x"]),
        node("Shape", ["ids"], ["length"], start=1, end=2),
        node("Squeeze", ["length"], ["steps"]),
        node("Range", ["zero", "steps", "one"], ["places"]),
        node("Gather", ["positions", "places"], ["p"]),
        node("Add", ["x", "p"], ["e"]),
        node("LayerNormalization", ["e", "scale", "shift"], ["norm"]),
        node("MatMul", ["norm", "wqkv"], ["qkv"]),
        node("Shape", ["ids"], ["rows"]),
        node("Concat", ["rows", "heads"], ["split"], axis=0),
        node("Reshape", ["qkv", "split"], ["parts"]),
        node("Transpose", ["parts"], ["turned"], perm=[2, 0, 3, 1, 4]),
        node("Split", ["turned"], ["q", "k", "v"], axis=0),
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 2, 4, 3]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        node("Sub", ["kept", "ones"], ["missing"]),
        node("Mul", ["missing", "many"], ["bias"]),
        node("Unsqueeze", ["bias", "axes"], ["wide"]),
        node("Add", ["scores", "wide"], ["masked"]),
        node("Softmax", ["masked"], ["attention"], axis=-1),
        node("MatMul", ["attention", "v"], ["y"]),
    ]
    constants = {
        "table": weight(50, 8),
        "positions": weight(64, 8, seed=1),
        "zero": np.array(0),
        "one": np.array(1),
        "scale": weight(8, seed=2),
        "shift": weight(8, seed=3),
        "wqkv": weight(8, 24, seed=4),
        "heads": np.array([3, 2, 4]),
        "ones": np.float32(1),
        "many": np.float32(1e4),
        "axes": np.array([1, 2]),
    }
    inputs = {"ids": ("n", "t"), "mask": ("n", "t")}
    kinds = {"ids": TensorProto.INT64, "mask": TensorProto.INT64}
    return make_model(nodes, inputs, ["y"], constants, dtypes=kinds, opset=17)


def selection() -> onnx.ModelProto:
    """Regions of a map by their scores: an open number of boxes, an open map."""
    nodes = [
        node("Shape", ["scores"], ["count"]),
        node("Min", ["count", "most"], ["k"]),
        node("TopK", ["scores", "k"], ["best", "which"]),
        node("Gather", ["boxes", "which"], ["chosen"]),
        node("Mul", ["which", "nothing"], ["picture"]),
        node("RoiAlign", ["map", "chosen", "picture"], ["y"], output_height=2, output_width=2),
    ]
    constants = {"most": np.array([6]), "nothing": np.array(0)}
    inputs = {"boxes": ("k", 4), "scores": ("k",), "map": (1, 2, "h", "w")}
    kinds = {"which": TensorProto.INT64}
    return make_model(nodes, inputs, ["best", "which", "y"], constants, dtypes=kinds)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "picture": picture_network,
    "pools": pools,
    "recurrent": recurrent_network,
    "transformer": transformer,
    "selection": selection,
}


@functools.cache
def compiled(name: str) -> tuple[tvm_edge.CompiledModel, Any]:
    """One compilation for all tests of this file; names of dimensions are the model's own."""
    model = MODELS[name]()
    return tvm_edge.compile(model, "llvm", tuning_logs=False), session(model)


def inputs_of(model: tvm_edge.CompiledModel, lengths: Mapping[str, int]) -> dict[str, np.ndarray]:
    made = {}
    for seed, spec in enumerate(model.inputs):
        shape = tuple(d if isinstance(d, int) else lengths[d] for d in spec.shape)
        random = np.random.default_rng(seed)
        if spec.dtype == "int64":
            made[spec.name] = random.integers(0, 2 if spec.name == "mask" else 50, shape)
        elif spec.name == "boxes":
            corners = random.uniform(0, 8, (*shape[:1], 2))
            boxes = np.concatenate([corners, corners + random.uniform(1, 6, corners.shape)], 1)
            made[spec.name] = boxes.astype("float32")
        else:
            made[spec.name] = random.standard_normal(shape).astype("float32")
    return made


def assert_agrees(name: str, lengths: Mapping[str, int]) -> None:
    model, peer = compiled(name)
    values = inputs_of(model, lengths)
    found = model.run(values)
    names = [output.name for output in peer.get_outputs()]
    for output, expected in zip(names, peer.run(names, values), strict=True):
        assert found[output].shape == expected.shape, output
        assert found[output].dtype == expected.dtype, output
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(found[output], expected, err_msg=output)
            continue
        limit = TOLERANCE * np.abs(expected).max(initial=0)
        np.testing.assert_allclose(found[output], expected, rtol=0, atol=limit, err_msg=output)


LENGTHS = st.fixed_dictionaries(
    {
        "n": st.integers(1, 4),
        "h": st.integers(4, 40),
        "w": st.integers(4, 40),
        "t": st.integers(1, 30),
        "k": st.integers(1, 20),
    }
)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=12, deadline=None)
@given(lengths=LENGTHS)
def test_any_shape(name: str, lengths: dict[str, int]) -> None:
    assert_agrees(name, lengths)


@pytest.mark.parametrize("name", ["picture", "pools", "recurrent", "transformer"])
def test_a_batch_of_nothing_has_empty_results(name: str) -> None:
    model, _ = compiled(name)
    batch = {spec.shape[0]: 0 for spec in model.inputs}  # of a sequence, its steps
    found = model.run(inputs_of(model, {"n": 2, "h": 9, "w": 8, "t": 3, **batch}))
    empty = [name for name, value in found.items() if 0 in value.shape]
    # A sequence without steps ends in the state that it began with.
    assert empty == (["z"] if name == "recurrent" else list(found))


def test_an_input_that_is_only_measured() -> None:
    """No kernel reads it, so it is copied to memory that its first shape does not fit."""
    nodes = [node("Shape", ["x"], ["shape"]), node("Expand", ["row", "shape"], ["y"])]
    row = weight(1, 3, 1, 1)
    network = make_model(nodes, {"x": ("n", 3, "h", "w")}, ["y"], {"row": row})
    model = tvm_edge.compile(network, "llvm", tuning_logs=False)
    for shape in ((1, 3, 4, 5), (2, 3, 9, 8), (1, 3, 2, 2), (3, 3, 1, 7)):
        found = model.run({"x": np.zeros(shape, "float32")})["y"]
        np.testing.assert_array_equal(found, np.broadcast_to(row, shape))


def test_thousands_of_shapes_keep_no_memory() -> None:
    import psutil

    model, _ = compiled("pools")

    def run(first: int, last: int) -> int:
        for i in range(first, last):
            model.run(inputs_of(model, {"n": 1, "h": 4 + i % 47, "w": 4 + i // 47}))
        return psutil.Process().memory_info().rss

    before = run(0, 300)
    assert run(300, 1500) - before < 20e6


def test_shapes_that_are_refused() -> None:
    shapes = {"x": ("n", 3, Dim("h", min=8, max=64, multiple=4), "w")}
    model = tvm_edge.compile(pools(), "llvm", input_shapes=shapes, tuning_logs=False)
    assert [dim.text for dim in model.inputs[0].dims] == ["n=0..@1", "h=8..64/4@64", "w@256"]

    def refused(*shape: int) -> str:
        with pytest.raises(InputError) as raised:
            model.run({"x": np.broadcast_to(np.float32(0), shape)})
        assert raised.value.name == "x" and raised.value.got == str(shape)
        return str(raised.value)

    for height in (4, 68, 10):
        assert "'h' takes 8 to 64, multiples of 4" in refused(1, 3, height, 8)
    assert "'w' takes 1 or more" in refused(1, 3, 8, 0)
    assert "the model takes (n, 3, h, w)" in refused(1, 2, 8, 8)
    assert "the model takes (n, 3, h, w)" in refused(3, 8, 8)
    assert "more memory than there is" in refused(1 << 20, 3, 8, 1 << 32)


def test_one_name_is_one_length() -> None:
    model, _ = compiled("transformer")
    values = {"ids": np.zeros((2, 5), "int64"), "mask": np.zeros((2, 4), "int64")}
    with pytest.raises(InputError, match="'t' is 4 here and 5 elsewhere; one name is one length"):
        model.run(values)


def test_input_shapes_that_say_two_things() -> None:
    with pytest.raises(InputError, match="the dimension 't' is t=1"):
        tvm_edge.compile(
            transformer(),
            "llvm",
            input_shapes={"ids": ("n", Dim("t", max=9)), "mask": ("n", Dim("t", 2))},
        )


@pytest.mark.parametrize(
    "shape", [(1, 3, "h"), (1, 3.5, 8, 8), (1, -2, 8, 8), "nchw", (1, 3, "", 8)]
)
def test_input_shapes_that_are_no_shapes(shape: Any) -> None:
    with pytest.raises(InputError):
        tvm_edge.compile(pools(), "llvm", input_shapes={"x": shape})


def test_numbers_and_names_beside_each_other() -> None:
    """-1 is open by the model's name; a number is fixed, and refuses others."""
    model = tvm_edge.compile(pools(), "llvm", input_shapes={"x": (1, 3, 8, -1)}, tuning_logs=False)
    assert model.inputs[0].shape == (1, 3, 8, "w")
    with pytest.raises(InputError, match=r"takes \(1, 3, 8, w\)"):
        model.run({"x": np.zeros((1, 3, 9, 8), "float32")})


def test_an_artifact_keeps_its_dimensions(tmp_path: Path) -> None:
    model, _ = compiled("picture")
    path = model.export(tmp_path / "picture.tvme")
    loaded = tvm_edge.load(path)
    assert loaded.inputs == model.inputs and loaded.outputs == model.outputs
    for height, width in ((9, 17), (32, 8)):
        values = inputs_of(model, {"n": 2, "h": height, "w": width})
        expected = model.run(values)
        for name, value in loaded.run(values).items():
            np.testing.assert_array_equal(value, expected[name])


def test_several_models_have_dimensions_of_their_own() -> None:
    small = make_model([node("Relu", ["x"], ["y"])], {"x": ("n", "w")}, ["y"])
    other = make_model([node("Neg", ["x"], ["y"])], {"x": ("n", 3)}, ["y"])
    both = tvm_edge.compile({"a": small, "b": other}, "llvm", tuning_logs=False)
    values = {"a/x": random_input((2, 5)), "b/x": random_input((4, 3))}
    found = both.run(values)
    np.testing.assert_array_equal(found["a/y"], np.maximum(values["a/x"], 0))
    np.testing.assert_array_equal(found["b/y"], -values["b/x"])


def test_a_report_is_of_the_typical_shape() -> None:
    model, _ = compiled("picture")
    fixed = tvm_edge.compile(
        picture_network(), "llvm", input_shapes={"x": (1, 3, 256, 256)}, tuning_logs=False
    )
    assert model.report.flops == pytest.approx(fixed.report.flops, rel=0.05)
    moved = [sum(kernel.bytes for kernel in each.report.kernels) for each in (model, fixed)]
    assert moved[0] == pytest.approx(moved[1], rel=0.3)  # not the same kernels
    assert model.report.summary() and model.report.to_dict()


def test_kernels_without_aliases_are_generated_alone(
    monkeypatch: pytest.MonkeyPatch, no_kernel_cache: None
) -> None:
    """Beside one that may have aliases LLVM takes every kernel's accumulators for memory."""
    built: list[list[tirx.PrimFunc]] = []
    build = tvm.tirx.build

    def spy(mod: tvm.IRModule, **options: Any) -> Any:
        built.append(list(mod.functions.values()))
        return build(mod, **options)

    monkeypatch.setattr(tvm.tirx, "build", spy)
    tvm_edge.compile(picture_network(), "llvm")
    assert "tirx.is_host_func" in {key for funcs in built for f in funcs for key in f.attrs.keys()}
    for funcs in built:
        assert len({bool(func.attrs.get("tirx.noalias", False)) for func in funcs}) == 1
