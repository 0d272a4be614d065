"""Networks of the zoo that ONNX Runtime's tool quantises."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.onnx_models import make_model, random_input
from tvm_edge import zoo
from tvm_edge.errors import InputError, MissingDependencyError
from tvm_edge.hardware import resolve_target
from tvm_edge.tuning.tunable import convolutions_of
from tvm_edge.zoo import quantized

NAMES = ("mobilenet_v2_int8", "resnet50_v1_int8")


def test_the_names() -> None:
    assert zoo.quantized_names() == NAMES
    assert not set(NAMES) & set(zoo.names()), "which are of float32"
    for name in NAMES:
        assert zoo.entry(name) == zoo.entry(name.removesuffix("_int8"))
    with pytest.raises(InputError, match="resnet50_v1_int8"):
        zoo.build("resnet50_int8")
    with pytest.raises(InputError, match="at least 32") as caught:
        zoo.sample_input(NAMES[0], image_size=8)
    assert caught.value.name == "image_size"


def test_inputs_are_those_of_float32() -> None:
    (value,) = zoo.sample_input(NAMES[0], seed=3, image_size=40).values()
    (same,) = zoo.sample_input("mobilenet_v2", seed=3, image_size=40).values()
    np.testing.assert_array_equal(value, same)


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_without_the_tool_the_pip_command_is_named(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingDependencyError, match=rf"'{missing}'.*'tvm-edge\[compare\]'"):
        zoo.save(NAMES[1], tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_reading_the_names_needs_neither_onnx_nor_its_runtime() -> None:
    code = (
        "import sys; sys.modules['onnx'] = sys.modules['onnxruntime'] = None\n"
        "from tvm_edge import zoo; zoo.sample_input(zoo.quantized_names()[0])"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.full
def test_one_is_built_and_is_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduced, and calibrated by one picture; again it is the same."""
    monkeypatch.setattr(quantized, "CALIBRATION", range(100, 101))
    model = zoo.build(NAMES[0], image_size=32, width=0.5)
    onnx.checker.check_model(model)
    kinds = Counter(node.op_type for node in model.graph.node)
    assert kinds["Conv"] == 52 and kinds["QuantizeLinear"] > 52 and not kinds["BatchNormalization"]
    types = {tensor.data_type for tensor in model.graph.initializer}
    assert {onnx.TensorProto.INT8, onnx.TensorProto.UINT8} <= types
    cpu = resolve_target("llvm")
    if cpu.spec.dot_product:
        found = convolutions_of(model, cpu)
        of_bytes = sum(count for workload, count in found.items() if workload.is_bytes)
        assert of_bytes >= 45, "but for those of few filters"


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_the_networks_are_the_same_every_time(name: str, tmp_path: Path) -> None:
    first, second = (zoo.build(name, image_size=64, width=0.25, seed=2) for _ in range(2))
    assert first.SerializeToString() == second.SerializeToString()
    saved = onnx.load(zoo.save(name, tmp_path / "model.onnx", image_size=64, width=0.25, seed=2))
    assert saved.SerializeToString() == first.SerializeToString()


def test_batch_normalisations_are_folded_whatever_the_tool_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """onnxruntime 1.30's preparation leaves them, and its quantiser rounds in front of each."""
    from onnxruntime.quantization import shape_inference

    monkeypatch.setattr(shape_inference, "quant_pre_process", lambda *_, **__: None)
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((4, 3, 3, 3)).astype("float32")}
    for name in ("scale", "shift", "mean", "variance"):
        weights[name] = random.uniform(0.5, 1.5, 4).astype("float32")
    nodes = [
        onnx.helper.make_node("Conv", ["data", "w"], ["sums"]),
        onnx.helper.make_node("BatchNormalization", ["sums", *list(weights)[1:]], ["out"]),
    ]
    model = make_model(nodes, {"data": (1, 3, 8, 8)}, ["out"], weights)
    pictures = ({"data": random_input((1, 3, 8, 8), seed)} for seed in range(4))
    made = Counter(node.op_type for node in quantized.quantize(model, pictures).graph.node)
    assert made["Conv"] == 1 and not made["BatchNormalization"]
    assert made["QuantizeLinear"] == 2  # what goes in and what comes out
