"""What a user may get wrong is refused by name, with what is allowed."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tvm_edge import zoo
from tvm_edge.errors import InputError, MissingDependencyError


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("image_size", 31, "at least 32"),
        ("image_size", (224, 31), "at least 32"),
        ("image_size", 0, "at least 32"),
        ("image_size", -224, "at least 32"),
        ("image_size", 224.0, "height, width"),
        ("image_size", (224.0, 224), "an integer"),
        ("image_size", (224,), "height, width"),
        ("image_size", (3, 224, 224), "height, width"),
        ("image_size", "224", "height, width"),
        ("width", 0, "above 0"),
        ("width", -1.0, "above 0"),
        ("width", float("nan"), "above 0"),
        ("width", float("inf"), "above 0"),
        ("width", "1", "above 0"),
        ("batch", 0, "at least 1"),
        ("batch", -1, "at least 1"),
        ("batch", 1.5, "an integer"),
        ("batch", True, "an integer"),
        ("seed", -1, "at least 0"),
        ("seed", None, "an integer"),
    ],
)
def test_options_of_build(option: str, value: Any, allowed: str) -> None:
    with pytest.raises(InputError, match=allowed) as caught:
        zoo.build("mobilenet_v2", **{option: value})
    assert caught.value.name == option
    assert allowed in caught.value.expected
    assert option in str(caught.value)


def test_a_detector_has_its_own_least_size() -> None:
    with pytest.raises(InputError, match="at least 33"):
        zoo.build("ssd_mobilenet_v1", image_size=32)


@pytest.mark.parametrize(
    ("option", "value"), [("image_size", 1), ("batch", 0), ("seed", -1), ("seed", 0.5)]
)
def test_options_of_sample_input(option: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        zoo.sample_input("mobilenet_v2", **{option: value})
    assert caught.value.name == option


@pytest.mark.parametrize("call", [zoo.build, zoo.sample_input])
def test_an_unknown_name(call: Any) -> None:
    with pytest.raises(InputError, match="did you mean 'mobilenet_v2'") as caught:
        call("mobilenet_v3")
    assert caught.value.name == "name"


def test_integers_of_numpy_are_integers() -> None:
    options: dict[str, Any] = {"image_size": np.int64(64), "batch": np.int32(2)}
    model = zoo.build("mobilenet_v2", width=np.float32(0.25), **options)
    assert zoo.sample_input(model)["data"].shape == (2, 3, 64, 64)


def test_without_onnx_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'tvm-edge\[onnx\]'"):
        zoo.build("mobilenet_v2")
