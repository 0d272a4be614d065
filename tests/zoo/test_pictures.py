"""Inputs look like pictures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.zoo.networks import marked
from tvm_edge import zoo
from tvm_edge.errors import InputError
from tvm_edge.zoo.pictures import pictures


@pytest.mark.parametrize("seed", range(5))
def test_pixels_are_about_unit_scale_and_vary_smoothly(seed: int) -> None:
    (picture,) = pictures(1, (224, 224), (seed,))
    assert picture.shape == (3, 224, 224)
    assert picture.dtype == np.float32
    assert np.abs(picture).max() <= 2
    assert 0.4 < picture.std() < 1.4
    assert abs(picture.mean()) < 1
    # Photographs correlate above 0.9 between neighbours (Ruderman 1994); white noise not at all.
    for left, right in ((picture[:, :-1], picture[:, 1:]), (picture[..., :-1], picture[..., 1:])):
        assert np.corrcoef(left.ravel(), right.ravel())[0, 1] > 0.8
    # Yet they have edges and noise.
    assert np.unique(picture).size > 100
    assert np.abs(np.diff(picture, axis=2)).max() > 1


def test_pixels_have_eight_bits() -> None:
    levels = (pictures(2, (40, 60), (0,)).astype(np.float64) * 0.25 + 0.5) * 255
    np.testing.assert_allclose(levels, np.round(levels), atol=1e-4)


def test_seeds_and_batches() -> None:
    one = zoo.sample_input("mobilenet_v2", image_size=(48, 64), batch=3)["data"]
    assert one.shape == (3, 3, 48, 64)
    np.testing.assert_array_equal(
        one, zoo.sample_input("mobilenet_v2", image_size=(48, 64), batch=3)["data"]
    )
    other = zoo.sample_input("mobilenet_v2", seed=1, image_size=(48, 64), batch=3)["data"]
    drawn = [*one, *other]
    assert all((a != b).any() for i, a in enumerate(drawn) for b in drawn[:i])


@pytest.mark.parametrize("name", marked())
def test_a_model_and_its_name_give_the_same_input(
    name: str, full: Callable[[str], onnx.ModelProto]
) -> None:
    by_model, by_name = zoo.sample_input(full(name)), zoo.sample_input(name)
    assert list(by_model) == list(by_name) == ["data"]
    np.testing.assert_array_equal(by_model["data"], by_name["data"])


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": (1, 3, "height", 32)},
        {"x": (1, 4, 32, 32)},
        {"x": (1, 3)},
        {"x": (1, 3, 32, 32), "y": (1, 3, 32, 32)},
    ],
    ids=str,
)
def test_a_model_that_takes_no_picture_is_refused(inputs: dict[str, tuple[int, ...]]) -> None:
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    node = helper.make_node("Relu", ["x"], ["r"])
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([node], "g", infos, [result]))
    with pytest.raises(InputError, match=r"\[N, 3, H, W\]") as caught:
        zoo.sample_input(model)
    assert caught.value.name == "model"
