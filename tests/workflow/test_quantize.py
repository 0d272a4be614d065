"""``quantize``: settings, data, what it costs, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model
from tests.workflow.networks import network
from tvm_edge import InputError, InvalidModelError, Picture
from tvm_edge.frontend import read_model
from tvm_edge.workflow import BoxLabels, quantize
from tvm_edge.workflow.references import runtime_session
from tvm_edge.zoo import shapes
from tvm_edge.zoo.average_precision import mean_average_precision


def yolo_lines(scene: shapes.Scene) -> str:
    lines = []
    for kind, (top, left, bottom, right) in zip(scene.classes, scene.boxes, strict=True):
        centre, size = ((left + right) / 2, (top + bottom) / 2), (right - left, bottom - top)
        lines.append(" ".join(map(str, (kind, *centre, *size))))
    return "\n".join(lines)


def runtime_outputs(model: Any, scene: shapes.Scene) -> dict[str, np.ndarray]:
    session = runtime_session(read_model(model))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"image": shapes.network_input(scene)}), strict=True))


def precision_of(
    outputs: Sequence[Mapping[str, np.ndarray]], scenes: Sequence[shapes.Scene]
) -> float:
    detections = [(each["boxes"], each["scores"], each["classes"]) for each in outputs]
    return mean_average_precision(detections, [(s.boxes, s.classes) for s in scenes])


def samples(count: int = 8) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(3)
    return [{"x": random.standard_normal((1, 3, 48, 48)).astype("float32")} for _ in range(count)]


@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
def test_it_runs_in_int8(method: str) -> None:
    found = quantize(network(), samples(), method=method)
    assert found.samples == 8 and found.method == method
    (output,) = found.outputs
    assert output.name == "y" and output.error < 0.2 and output.agreement is not None
    assert found.drop == pytest.approx(1 - output.agreement)
    assert {layer.node for layer in found.layers} >= {"stem", "depth", "point"}
    assert all(layer.error < 0.1 for layer in found.layers)
    weights = {t.name: t.data_type for t in found.model.graph.initializer}
    assert onnx.TensorProto.INT8 in weights.values()
    model = tvm_edge.compile(found.model, "llvm", tuning_logs=False)
    data = samples(1)[0]
    exact = tvm_edge.compile(network(), "llvm", tuning_logs=False).run(data)["y"]
    assert np.abs(model.run(data)["y"] - exact).max() < 0.1 * np.abs(exact).max()


def test_nodes_that_are_left_out() -> None:
    found = quantize(network(), samples(), exclude=["depth"])
    assert found.excluded == ("depth",)
    node = next(n for n in found.model.graph.node if n.name == "depth")
    made = {name: n.op_type for n in found.model.graph.node for name in n.output}
    assert made.get(node.input[1]) != "DequantizeLinear"
    automatic = quantize(network(), samples(), exclude="auto", max_drop=1)
    assert automatic.excluded == (), "the drop is allowed"


def test_what_comes_after_the_last_product_stays_float32() -> None:
    """Its activation is one with the product, and is quantised with it."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["doubled"], name="before"),
        helper.make_node("Conv", ["doubled", "w"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Mul", ["r", "two"], ["m"], name="after"),
        helper.make_node("Softmax", ["m"], ["y"], name="softmax", axis=1),
    ]
    weights = {"w": np.ones((8, 3, 1, 1), "float32"), "two": np.asarray(2, "float32")}
    model = make_model(nodes, {"x": (1, 3, 48, 48)}, ["y"], weights, opset=17)
    found = quantize(model, samples(2))
    made = {name: node for node in found.model.graph.node for name in node.output}
    reads = {node.name: made.get(node.input[0]) for node in made.values()}
    assert reads["before"].op_type == reads["conv"].op_type == "DequantizeLinear"
    assert reads["softmax"].name == "after" and reads["after"].op_type == "DequantizeLinear"
    assert found.excluded == ()


def test_auto_leaves_out_what_loses_most() -> None:
    """One channel is a thousand times as loud: no scale suits it and the others."""
    model = network()
    (gain,) = (t for t in model.graph.initializer if t.name == "k")
    loud = np.ones((64, 1, 1), "float32")
    loud[7] = 3000
    gain.CopyFrom(onnx.numpy_helper.from_array(loud, "k"))
    plain = quantize(model, samples(16))
    better = quantize(model, samples(16), exclude="auto", max_drop=0.0)
    assert better.drop <= plain.drop
    assert better.excluded or plain.drop == 0


def test_a_folder_of_pictures_keeps_the_detectors_accuracy(tmp_path: Path) -> None:
    from PIL import Image

    labels = tmp_path / "labels"
    labels.mkdir()
    drawn = [shapes.draw(index, "train") for index in range(24)]
    for index, scene in enumerate(drawn):
        Image.fromarray(scene.pixels).save(tmp_path / f"{index}.png")
        (labels / f"{index}.txt").write_text(yolo_lines(scene))
    objects = BoxLabels(labels, "yxyx", relative=True)
    found = quantize("zoo:shapes_ssd", tmp_path, picture=Picture(std=255.0), labels=objects)
    lost = found.average_precision
    assert found.samples == 24 and lost is not None and lost.pictures == 24
    assert found.drop == max(lost.float32 - lost.int8, 0) < 0.05
    runtime = [runtime_outputs("zoo:shapes_ssd", scene) for scene in drawn]
    assert lost.float32 == pytest.approx(precision_of(runtime, drawn), abs=1e-6)
    assert f"mAP {lost.float32:.4f} in float32" in found.text()
    scenes = [shapes.draw(index, "held-out") for index in range(60)]

    def accuracy(model: Any) -> float:
        compiled = tvm_edge.compile(model, "llvm", tuning_logs=False)
        each = [compiled.run({"image": shapes.network_input(scene)}) for scene in scenes]
        return precision_of(each, scenes)

    assert accuracy(found.model) > accuracy("zoo:shapes_ssd") - 0.02


def test_an_archive_of_arrays(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.concatenate([each["x"] for each in samples(5)]))
    assert quantize(network(), path, count=3).samples == 3
    np.savez(path, image=np.zeros((2, 3)))
    with pytest.raises(InputError, match="an array for each of x"):
        quantize(network(), path)


def test_data_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no pictures"):
        quantize(network(), tmp_path)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG no")
    with pytest.raises(InputError, match=r"cannot read the picture .*broken\.png"):
        quantize(network(), tmp_path)
    with pytest.raises(InputError, match="cannot read samples"):
        quantize(network(), tmp_path / "none.npz")
    with pytest.raises(InputError, match="no samples"):
        quantize(network(), [])
    with pytest.raises(InputError, match="name the arrays as the inputs"):
        quantize(network(), [{"z": np.zeros(3)}])
    with pytest.raises(InvalidModelError, match="cannot run the model with the data"):
        quantize(network(), [{"x": np.zeros((1, 4, 48, 48), "float32")}])
    with pytest.raises(InputError, match="no finite number"):
        quantize(network(), [{"x": np.full((1, 3, 48, 48), np.nan, "float32")}])


def test_models_that_are_quantised_already() -> None:
    found = quantize(network(), samples(2))
    with pytest.raises(InvalidModelError, match="quantised already"):
        quantize(found.model, samples(2))


def test_a_model_whose_batch_is_open() -> None:
    model = network()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    found = quantize(model, samples(2))
    compiled = tvm_edge.compile(found.model, "llvm", tuning_logs=False)
    assert compiled.inputs[0].shape[0] == "n"
    data = samples(1)[0]["x"]
    (one, two) = (compiled.run({"x": np.concatenate([data] * n)})["y"] for n in (1, 2))
    np.testing.assert_array_equal(two, np.concatenate([one, one]))


def test_a_model_whose_pictures_have_any_size(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (64, 48)).save(tmp_path / "one.png")
    model = network()
    for axis in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = "hw"[axis - 2]
    with pytest.raises(InputError, match="its height and width are open: h×w; choose"):
        quantize(model, tmp_path)


def test_an_old_operator_set_is_converted() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")]
    weight = np.random.default_rng(0).standard_normal((5, 3, 48, 48)).astype("float32")
    model = make_model(nodes, {"x": (1, 3, 48, 48)}, ["y"], {"w": weight}, opset=11)
    assert quantize(model, samples(2)).outputs[0].agreement is not None


@pytest.mark.parametrize(
    "options", [{"method": "best"}, {"exclude": "all"}, {"exclude": ["none"]}, {"max_drop": 2}]
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        quantize(network(), samples(1), **options)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    found = quantize(network(), samples(1))
    with pytest.raises(InputError, match="choose another path"):
        found.save(tmp_path / "no" / "model.onnx")
