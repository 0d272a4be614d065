"""Pictures prepared in the model, beside NumPy of what OpenCV and torchvision do."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_edge
from tests.frontend.picture_network import network
from tests.onnx_models import conv_relu, make_model
from tvm_edge import InputError, Picture

Array = np.ndarray

# Levels of a picture from 0 to 255: float32 interpolates.
EXACT = 1e-3


def seen(model: onnx.ModelProto, picture: Picture, data: Array) -> Array:
    compiled = tvm_edge.compile(model, "llvm", preprocess={"data": picture}, tuning_logs=False)
    assert compiled.inputs[0].shape == data.shape
    assert compiled.inputs[0].dtype == str(data.dtype)
    result: Array = compiled.run({"data": data})["y"]
    return result


def photo(height: int, width: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (1, height, width, 3), dtype="uint8")


def inter_linear(picture: Array, height: int, width: int) -> Array:
    """OpenCV's INTER_LINEAR of one picture (H, W, C), in float64."""

    def along(axis: int, new: int, value: Array) -> Array:
        old = value.shape[axis]
        at = (np.arange(new) + 0.5) * (old / new) - 0.5
        low = np.floor(at).astype(int)
        part = at - low
        part[(low < 0) | (low >= old - 1)] = 0
        low = np.clip(low, 0, old - 1)
        shape = [-1 if each == axis else 1 for each in range(value.ndim)]
        part = part.reshape(shape)
        high = np.minimum(low + 1, old - 1)
        return value.take(low, axis) * (1 - part) + value.take(high, axis) * part

    return along(1, width, along(0, height, picture.astype("float64")))


def letterboxed(picture: Array, height: int, width: int, fill: float) -> Array:
    """ultralytics' letterbox of one picture."""
    ratio = min(height / picture.shape[0], width / picture.shape[1])
    new = round(picture.shape[0] * ratio), round(picture.shape[1] * ratio)
    whole = np.full((height, width, 3), float(fill))
    top, left = (round((a - b) / 2 - 0.1) for a, b in zip((height, width), new, strict=True))
    whole[top : top + new[0], left : left + new[1]] = inter_linear(picture, *new)
    return whole


@pytest.mark.parametrize("old", [(30, 40), (17, 64), (64, 33), (9, 7), (32, 32)], ids=str)
def test_letterbox(old: tuple[int, int]) -> None:
    data = photo(*old)
    picture = Picture(size=old, color="BGR->RGB", resize="letterbox", std=255)
    found = seen(network(32, 32), picture, data)
    expected = letterboxed(data[0], 32, 32, 114)[..., ::-1].transpose(2, 0, 1) / 255
    assert np.abs(found[0] - expected).max() < EXACT / 255


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("old", [(30, 40), (61, 13), (8, 200)], ids=str)
def test_bilinear_with_mean_and_std(old: tuple[int, int], opset: int) -> None:
    data, mean, std = photo(*old, seed=1), (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
    picture = Picture(size=old, resize="bilinear", mean=mean, std=std)
    found = seen(network(24, 28, opset=opset), picture, data)
    expected = (inter_linear(data[0], 24, 28) - mean) / std
    assert np.abs(found[0] - expected.transpose(2, 0, 1)).max() < EXACT


def test_antialias_is_that_of_pil() -> None:
    from PIL import Image

    data = photo(90, 70, seed=2)
    picture = Picture(size=(90, 70), resize="bilinear", antialias=True)
    found = seen(network(24, 28), picture, data)[0]
    for channel in range(3):
        plane = Image.fromarray(data[0, :, :, channel].astype("float32"), mode="F")
        expected = np.asarray(plane.resize((28, 24), Image.Resampling.BILINEAR))
        assert np.abs(found[channel] - expected).max() < 1e-2


@pytest.mark.parametrize("old", [(50, 40), (40, 61)], ids=str)
def test_crop_of_the_centre(old: tuple[int, int]) -> None:
    """As torchvision's Resize(32) and CenterCrop((24, 25))."""
    data = photo(*old, seed=3)
    found = seen(network(24, 25), Picture(size=old, crop=32), data)[0]
    short = min(old)
    new = int(32 * old[0] / short), int(32 * old[1] / short)
    whole = inter_linear(data[0], *new)
    top, left = round((new[0] - 24) / 2), round((new[1] - 25) / 2)
    expected = whole[top : top + 24, left : left + 25].transpose(2, 0, 1)
    assert np.abs(found - expected).max() < EXACT


def test_a_network_with_channels_last_and_integers() -> None:
    data = photo(16, 12, seed=4)
    same = network(16, 12, last=True, dtype=TensorProto.UINT8)
    np.testing.assert_array_equal(seen(same, Picture(color="RGB→BGR"), data), data[..., ::-1])
    small = seen(
        network(8, 6, last=True, dtype=TensorProto.UINT8),
        Picture(size=(16, 12), resize="bilinear"),
        data,
    )
    expected = inter_linear(data[0], 8, 6)
    assert np.abs(small[0] - expected).max() <= 0.5 + EXACT


def test_planes_of_floats() -> None:
    data = np.random.default_rng(5).random((1, 3, 20, 30), dtype="float32")
    picture = Picture(layout="NCHW", dtype="float32", size=(20, 30), resize="bilinear")
    found = seen(network(10, 16), picture, data)[0]
    expected = inter_linear(data[0].transpose(1, 2, 0), 10, 16).transpose(2, 0, 1)
    assert np.abs(found - expected).max() < 1e-5


def test_any_number_of_pictures() -> None:
    model = conv_relu(batch="n")
    model.opset_import[0].version = 18
    picture = Picture(size=(20, 30), resize="letterbox", std=255)
    compiled = tvm_edge.compile(model, "llvm", preprocess={"data": picture}, tuning_logs=False)
    data = np.concatenate([photo(20, 30, seed) for seed in range(3)])
    whole = compiled.run({"data": data})["pooled"]
    alone = tvm_edge.compile(conv_relu(), "llvm", tuning_logs=False)
    for index, each in enumerate(data):
        ready = letterboxed(each, 16, 16, 114).transpose(2, 0, 1)[None].astype("float32") / 255
        expected = alone.run({"data": ready})["pooled"]
        assert np.abs(whole[index] - expected[0]).max() < 1e-4


def test_it_is_in_the_report_and_in_few_kernels() -> None:
    picture = Picture(size=(30, 40), color="BGR→RGB", resize="letterbox", mean=3, std=255)
    compiled = tvm_edge.compile(
        network(32, 32), "llvm", preprocess={"data": picture}, tuning_logs=False
    )
    assert len(compiled.report.kernels) == 2, "resized as it lies, padded and normalised"
    operators = [operator.op_type for operator in compiled.report.operators]
    assert {"Cast", "Transpose", "Slice", "Resize", "Pad", "Sub", "Div"} <= set(operators)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layout": "HWC"}, "use one of NHWC, NCHW"),
        ({"dtype": "int8"}, "use one of uint8"),
        ({"color": "HSV"}, "BGR→RGB"),
        ({"resize": "cubic"}, "bilinear, letterbox"),
        ({"size": 640}, "a height and a width"),
        ({"size": (0, 3)}, "a height and a width"),
        ({"mean": "much"}, "a number"),
        ({"std": 0}, "cannot be 0"),
        ({"crop": 0}, "a number of pixels"),
        ({"crop": 32, "resize": "letterbox"}, "leave out one"),
    ],
)
def test_impossible_pictures(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Picture(**fields)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (network(8, 8), {"image": Picture()}, "no input of the model"),
        (network(8, 8), {"data": "NHWC"}, "tvm_edge.Picture"),
        (network(8, 8), {"data": Picture(size=(9, 9))}, "say how to resize"),
        (network(8, 8), {"data": Picture(mean=(1, 2))}, "one for each"),
        (network(8, 8), {"data": Picture(size=(9, 9), crop=6)}, "the network takes 8×8"),
        (network(8, 8, opset=9), {"data": Picture()}, "opset 11 or newer"),
        (
            network(8, 8, opset=13),
            {"data": Picture(size=(9, 9), resize="bilinear", antialias=True)},
            "opset 18",
        ),
        (
            make_model([helper.make_node("Relu", ["data"], ["y"])], {"data": (4, 8)}, ["y"]),
            {"data": Picture()},
            "four axes",
        ),
        (
            make_model(
                [helper.make_node("Relu", ["data"], ["y"])], {"data": (1, 3, "h", "w")}, ["y"]
            ),
            {"data": Picture()},
            "input_shapes",
        ),
    ],
)
def test_pictures_that_do_not_fit(
    model: onnx.ModelProto, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        tvm_edge.compile(model, "llvm", preprocess=given)


def test_several_models() -> None:
    models = {"a": network(8, 8), "b": network(8, 8)}
    compiled = tvm_edge.compile(models, "llvm", preprocess={"a/data": Picture()})
    assert [spec.dtype for spec in compiled.inputs] == ["uint8", "float32"]


@pytest.mark.parametrize("color", ["RGB", "BGR→RGB"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_picture_is_resized_as_it_lies(color: str, dtype: str) -> None:
    """No copy of it in planes is written first, which would be larger than all else here."""
    picture = Picture(size=(90, 120), resize="bilinear", color=color, dtype=dtype)
    preprocess = {"data": picture}
    compiled = tvm_edge.compile(network(9, 12), "llvm", preprocess=preprocess, tuning_logs=False)
    assert compiled.report.memory is not None
    assert compiled.report.memory.activations < 90 * 120 * 3
    data = photo(90, 120).astype(dtype)
    expected = inter_linear(data[0], 9, 12)[..., :: -1 if color != "RGB" else 1]
    found = compiled.run({"data": data})["y"][0].transpose(1, 2, 0)
    assert np.abs(found - expected).max() < EXACT
