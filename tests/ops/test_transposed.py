"""Transposed convolutions that ONNX allows, and ONNX Runtime does not compute."""

from __future__ import annotations

import platform
from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import helper

import tvm_edge
from tests.onnx_models import make_model, random_input

X86 = platform.machine() in ("x86_64", "AMD64")
OTHER_LANES = (
    ({"kind": "llvm", "mcpu": "x86-64"}, {"kind": "llvm", "mcpu": "x86-64-v3"}) if X86 else ()
)
"""Vectors of 4 and 8 lanes: a line of 9 columns has a remainder in both, and none in 16."""

CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((5,), {"strides": [1], "dilations": [2], "output_padding": [1], "pads": [0, 0]}),
    ((5,), {"strides": [2], "dilations": [3], "output_padding": [2], "pads": [1, 1]}),
    # Cut at the end by less than what is added there, and by more.
    (
        (4, 5),
        {
            "strides": [2, 1],
            "dilations": [3, 3],
            "output_padding": [2, 2],
            "pads": [1, 0, 3, 1],
            "group": 2,
        },
    ),
    (
        (2, 3, 2),
        {
            "strides": [1, 2, 1],
            "dilations": [2, 3, 1],
            "output_padding": [1, 2, 0],
            "pads": [0, 1, 0, 0, 0, 1],
        },
    ),
]


def transposed(
    x: np.ndarray,
    weights: np.ndarray,
    *,
    strides: list[int],
    dilations: list[int],
    output_padding: list[int],
    pads: list[int],
    group: int = 1,
) -> np.ndarray:
    """Each pixel times the weights, added where they go, in float64."""
    rank, inputs, outputs = x.ndim - 2, x.shape[1] // group, weights.shape[1]
    image, window = x.shape[2:], weights.shape[2:]
    full = [
        strides[i] * (image[i] - 1) + output_padding[i] + (window[i] - 1) * dilations[i] + 1
        for i in range(rank)
    ]
    result = np.zeros((len(x), group * outputs, *full))
    for pixel in product(*map(range, image)):
        for tap in product(*map(range, window)):
            place = [pixel[i] * strides[i] + tap[i] * dilations[i] for i in range(rank)]
            for g in range(group):
                own = slice(g * inputs, (g + 1) * inputs)
                values = x[(slice(None), own, *pixel)].astype("float64") @ weights[own][
                    (slice(None), slice(None), *tap)
                ].astype("float64")
                result[(slice(None), slice(g * outputs, (g + 1) * outputs), *place)] += values
    kept = [slice(pads[i], full[i] - pads[i + rank]) for i in range(rank)]
    return result[(slice(None), slice(None), *kept)]


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(("size", "attributes"), CASES)
@pytest.mark.parametrize("constant", [False, True], ids=["inputs", "weights"])
def test_output_padding_of_a_stride_or_more(
    size: tuple[int, ...], attributes: dict[str, Any], constant: bool
) -> None:
    """ONNX wants it below the dilation or the stride."""
    group = attributes.get("group", 1)
    x = random_input((1, 4, *size))
    weights = random_input((4, 3, *[3, 3, 2][: len(size)]), 1)
    bias = random_input((3 * group,), 2)
    feeds = {"x": x} if constant else {"x": x, "w": weights}
    model = make_model(
        [helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)],
        {name: value.shape for name, value in feeds.items()},
        ["y"],
        {"b": bias, **({"w": weights} if constant else {})},
    )
    expected = transposed(x, weights, **attributes)
    expected += bias.reshape(-1, *[1] * len(size))
    for target in ("llvm", *OTHER_LANES):
        actual = tvm_edge.compile(model, target).run(feeds)["y"]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("window", [(2, 2), (3, 1)])
@pytest.mark.parametrize("channels", [1, 5, 24])
def test_open_images_that_are_enlarged(channels: int, window: tuple[int, int]) -> None:
    """Windows that do not overlap: no kernel of one element after the other."""
    weights, bias = random_input((6, channels, *window), 1), random_input((channels,), 2)
    attributes: dict[str, Any] = {"strides": list(window)}
    model = make_model(
        [helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)],
        {"x": ("n", 6, "h", "w_")},
        ["y"],
        {"w": weights, "b": bias},
    )
    compiled = tvm_edge.compile(model, "llvm")
    assert "fallback" not in {kernel.origin for kernel in compiled.report.kernels}
    for shape in ((1, 6, 5, 7), (2, 6, 16, 33)):
        x = random_input(shape, 3)
        defaults: dict[str, Any] = {
            "pads": [0] * 4,
            "dilations": [1, 1],
            "output_padding": [0, 0],
        }
        expected = transposed(x, weights, **attributes, **defaults) + bias.reshape(-1, 1, 1)
        np.testing.assert_allclose(compiled.run({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)


BLOCKS: list[tuple[int, int, tuple[int, int], dict[str, Any]]] = [
    (24, 40, (4, 4), {"strides": [2, 2], "pads": [1] * 4, "output_padding": [0, 0]}),
    # Phases with fewer taps, some without any; a result that no phase fills.
    (16, 16, (3, 2), {"strides": [2, 3], "pads": [1, 0, 1, 0], "output_padding": [1, 0]}),
    (16, 8, (5, 1), {"strides": [4, 2], "pads": [2, 0, 1, 0], "output_padding": [0, 1]}),
    (8, 3, (4, 3), {"strides": [2, 2], "pads": [1, 0, 1, 1], "output_padding": [0, 0]}),
    (32, 16, (3, 3), {"strides": [1, 1], "pads": [0, 1, 2, 1], "output_padding": [0, 0]}),
]


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(("channels", "filters", "kernel", "attributes"), BLOCKS)
@pytest.mark.parametrize("opened", [False, True], ids=["fixed", "open"])
def test_phases_in_blocks(
    channels: int, filters: int, kernel: tuple[int, int], attributes: dict[str, Any], opened: bool
) -> None:
    """Phase by phase, activation included, never by loops through the zeros between pixels."""
    x = random_input((2, channels, 5, 9))
    weights, bias = random_input((channels, filters, *kernel), 1), random_input((filters,), 2)
    model = make_model(
        [
            helper.make_node("ConvTranspose", ["x", "w", "b"], ["t"], **attributes),
            helper.make_node("Relu", ["t"], ["y"]),
        ],
        {"x": ("n", channels, "h", 9) if opened else x.shape},
        ["y"],
        {"w": weights, "b": bias},
    )
    expected = transposed(x, weights, dilations=[1, 1], **attributes) + bias.reshape(-1, 1, 1)
    for target in ("llvm", *OTHER_LANES[1:]):
        compiled = tvm_edge.compile(model, target)
        origins = {kernel.origin for kernel in compiled.report.kernels}
        assert "fallback" not in origins or (opened and filters < 8)
        actual = compiled.run({"x": x})["y"]
        np.testing.assert_allclose(actual, np.maximum(expected, 0), atol=1e-6 * expected.max())
