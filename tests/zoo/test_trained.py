"""The network that ships trained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tvm_edge import zoo
from tvm_edge.errors import InputError
from tvm_edge.zoo import shapes, trained

NAME = "shapes_ssd"


def test_the_file() -> None:
    path = trained.model_path(NAME)
    assert path.stat().st_size < 2e6
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [o.version for o in model.opset_import] == [17]
    metadata = {p.key: p.value for p in model.metadata_props}
    assert metadata["classes"].split(",") == list(shapes.CLASSES)
    assert 0.85 <= float(metadata["mAP@0.5"]) < 1
    assert {"seed", "recipe"} <= set(metadata)
    assert [i.name for i in model.graph.input] == ["image"]
    assert [o.name for o in model.graph.output] == ["boxes", "scores", "classes"]


def test_it_has_nothing_of_training_in_it() -> None:
    kinds = {node.op_type for node in zoo.build(NAME).graph.node}
    assert not kinds & {"BatchNormalization", "Dropout", "Identity"}
    assert "NonMaxSuppression" in kinds


def test_a_name_like_the_others(tmp_path: Path) -> None:
    assert zoo.trained_names() == (NAME,)
    assert NAME not in zoo.names()  # which have published counts, and take a size and a width
    saved = zoo.save(NAME, tmp_path / "model.onnx")
    assert onnx.load(saved) == zoo.build(NAME) == trained.load(NAME)
    with pytest.raises(InputError, match=NAME):
        zoo.build("shape_ssd")


def test_sample_inputs_are_pictures_of_shapes() -> None:
    (name, value), *rest = zoo.sample_input(NAME, seed=2).items()
    assert (name, rest) == ("image", [])
    np.testing.assert_array_equal(value, shapes.network_input(shapes.draw(2)))


@pytest.mark.parametrize(
    ("argument", "value"), [("image_size", 256), ("width", 0.5), ("batch", 2), ("seed", 1)]
)
def test_what_cannot_be_chosen_is_refused(argument: str, value: Any) -> None:
    with pytest.raises(InputError, match="trained") as caught:
        zoo.build(NAME, **{argument: value})
    assert caught.value.name == argument


def test_an_unknown_name() -> None:
    with pytest.raises(InputError, match=NAME):
        trained.model_path("resnet50_v1")


def test_drawing_inputs_needs_no_onnx() -> None:
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        f"from tvm_edge import zoo; zoo.sample_input({NAME!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
