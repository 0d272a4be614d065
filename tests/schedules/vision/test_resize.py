"""Resize and GridSample against ONNX Runtime: the same elements on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper

import tvm_edge
from tests.marks import in_full
from tests.onnx_models import make_model, random_input, reference

# Some tens of products, summed in another order.
CLOSE = 2e-5


@pytest.fixture(params=["llvm", "opencl"])
def target(request: pytest.FixtureRequest) -> str:
    """Targets of this machine; no kernel here asks for local memory."""
    kind = str(request.param)
    if kind != "llvm" and not (tvm.runtime.enabled(kind) and tvm.device(kind, 0).exist):
        pytest.skip(f"no {kind} device on this machine")
    return kind


def resize_model(shape: tuple[int, ...], *, dtype: str = "float32", **how: Any) -> onnx.ModelProto:
    """A Resize of ``x`` with constant ``roi``, ``scales`` or ``sizes``; the rest are attributes."""
    constants = {
        name: np.asarray(how.pop(name), kind)
        for name, kind in (("roi", "float32"), ("scales", "float32"), ("sizes", "int64"))
        if name in how
    }
    names = [name if name in constants else "" for name in ("roi", "scales", "sizes")]
    while not names[-1]:
        names.pop()
    node = helper.make_node("Resize", ["x", *names], ["y"], **how)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return make_model(
        [node], {"x": shape}, ["y"], constants, dtypes={"x": kind, "y": kind}, opset=19
    )


def run(model: onnx.ModelProto, target: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    how: dict[str, Any] = {} if target == "llvm" else {"fallback": "none"}
    return tvm_edge.compile(model, target, **how).run(inputs)["y"]


def test_pixels_repeated_by_whole_factors(target: str) -> None:
    """On a CPU in vectors of a line, with a rest, or lines shorter than one."""
    shapes = {(1, 3, 5, 33): [1, 1, 2, 2], (2, 2, 4, 16): [1, 1, 1, 4], (1, 2, 3, 7): [1, 1, 8, 2]}
    nodes = [
        helper.make_node(
            "Resize",
            [f"x{i}", "", f"s{i}"],
            [f"y{i}"],
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        for i in range(len(shapes))
    ]
    scales = {f"s{i}": np.asarray(s, "float32") for i, s in enumerate(shapes.values())}
    inputs = {f"x{i}": random_input(shape, i) for i, shape in enumerate(shapes)}
    given = dict(zip(inputs, shapes, strict=True))
    model = make_model(nodes, given, [f"y{i}" for i in range(len(shapes))], scales)
    how: dict[str, Any] = {} if target == "llvm" else {"fallback": "none"}
    compiled = tvm_edge.compile(model, target, **how)
    found = compiled.run(inputs)
    for name, expected in reference(model, inputs).items():
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    ("coordinates", "nearest"),
    [
        ("half_pixel", "round_prefer_floor"),
        ("half_pixel", "ceil"),
        ("asymmetric", "floor"),
        ("align_corners", "round_prefer_ceil"),
    ],
)
def test_nearest_elements_are_the_same_everywhere(
    target: str, coordinates: str, nearest: str
) -> None:
    """Coordinates fall on halves and whole numbers, of which a device rounds some away."""
    model = resize_model(
        (1, 2, 6, 10),
        sizes=[1, 2, 21, 35],
        mode="nearest",
        nearest_mode=nearest,
        coordinate_transformation_mode=coordinates,
    )
    inputs = {"x": random_input((1, 2, 6, 10))}
    np.testing.assert_array_equal(run(model, target, inputs), reference(model, inputs)["y"])


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "how",
    [
        {"scales": [1, 1, 1.3, 0.8], "roi": [0, 0, 0.1, -0.2, 1, 1, 0.8, 1.3]},
        {"sizes": [1, 9], "axes": [3, 2], "roi": [0.2, 0.9, 0.5, -0.1]},
    ],
    ids=["scales", "axes"],
)
def test_crops(mode: str, how: dict[str, Any]) -> None:
    """Parts over the edges, which have the extrapolation value; reversed, and of one element."""
    model = resize_model(
        (1, 2, 7, 10),
        mode=mode,
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=9.0,
        **how,
    )
    inputs = {"x": random_input((1, 2, 7, 10))}
    expected = reference(model, inputs)["y"]
    assert (expected == 9).any() and (expected != 9).any()
    np.testing.assert_allclose(run(model, "llvm", inputs), expected, atol=CLOSE)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_lengths_are_rounded_in_single_precision(mode: str) -> None:
    """2.3 times 10 is 23, although 2.3 is a little less as a float32."""
    model = resize_model((2, 7, 10), scales=[1, 0.6, 2.3], mode=mode)
    if mode == "cubic":  # ONNX Runtime has it of four dimensions only
        model = resize_model((1, 2, 7, 10), scales=[1, 1, 0.6, 2.3], mode=mode)
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    inputs = {"x": random_input(shape)}
    expected = reference(model, inputs)["y"]
    assert expected.shape[-1] == 23
    np.testing.assert_allclose(run(model, "llvm", inputs), expected, atol=CLOSE)


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_integers_by_interpolation(dtype: str) -> None:
    """Sums are cut off, so that those next to a whole number may be one less."""
    model = resize_model((1, 2, 7, 10), dtype=dtype, scales=[1, 1, 0.6, 2.3], mode="linear")
    inputs = {"x": np.random.default_rng(0).integers(0, 200, (1, 2, 7, 10)).astype(dtype)}
    result, expected = run(model, "llvm", inputs), reference(model, inputs)["y"]
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result.astype(int), expected.astype(int), atol=1)
    assert (result == expected).mean() > 0.9


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    ("padding", "mode"),
    [
        ("zeros", "linear"),
        ("zeros", "nearest"),
        ("border", "linear"),
        ("border", "cubic"),
        ("reflection", "nearest"),
        pytest.param("reflection", "cubic", marks=pytest.mark.full),  # TVM writes 16 long terms
    ],
)
def test_grid_sample_of_any_points(target: str, padding: str, mode: str) -> None:
    """NaN and infinity have a place, where ONNX Runtime converts them to any integer."""
    node = helper.make_node(
        "GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding, align_corners=1
    )
    shape = (1, 2, 5, 7)
    model = make_model([node], {"x": shape, "grid": (1, 6, 9, 2)}, ["y"], opset=20)
    grid = np.random.default_rng(1).uniform(-2, 2, (1, 6, 9, 2)).astype("float32")
    grid[0, 1] *= 40
    how: dict[str, Any] = {} if target == "llvm" else {"fallback": "none"}
    compiled = tvm_edge.compile(model, target, **how)
    inputs = {"x": random_input(shape), "grid": grid}
    np.testing.assert_allclose(compiled.run(inputs)["y"], reference(model, inputs)["y"], atol=CLOSE)

    grid[0, :3] = 0.25
    meant = grid.copy()
    grid[0, 0, :, 0], meant[0, 0, :, 0] = np.nan, -1 if padding != "zeros" else -9
    grid[0, 1, :, 1], meant[0, 1, :, 1] = [np.inf, 1e30, 1e9] * 3, 9
    grid[0, 2, :, 0], meant[0, 2, :, 0] = [-np.inf, -1e30, -1e9] * 3, -9
    result = compiled.run({**inputs, "grid": grid})["y"]
    expected = reference(model, {**inputs, "grid": meant})["y"]
    assert np.isfinite(result).all()
    rows = [0, 3, 4, 5] if padding == "reflection" else [*range(6)]
    np.testing.assert_allclose(result[:, :, rows], expected[:, :, rows], atol=CLOSE)


LINES = [
    ((1, 3, 7, 10), {"sizes": [1, 3, 21, 33], "mode": "linear"}),
    ((2, 1, 40, 19), {"sizes": [2, 1, 9, 5], "mode": "linear"}),
    (
        (1, 2, 9, 1),
        {"sizes": [1, 2, 1, 20], "mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    ),
    (
        (1, 5, 6, 8),
        {
            "sizes": [1, 5, 13, 48],
            "mode": "linear",
            "coordinate_transformation_mode": "align_corners",
        },
    ),
    ((1, 2, 12, 9), {"sizes": [1, 2, 30, 4], "mode": "cubic", "exclude_outside": 1}),
    ((1, 2, 3, 18), {"sizes": [1, 2, 50, 18], "mode": "cubic", "cubic_coeff_a": -0.5}),
]


@pytest.mark.parametrize(("shape", "how"), LINES)
def test_lines_on_a_cpu(shape: tuple[int, ...], how: dict[str, Any]) -> None:
    """Up and down, of planes too few for the cores, which share their rows."""
    model = resize_model(shape, **how)
    inputs = {"x": random_input(shape)}
    compiled = tvm_edge.compile(model, "llvm")
    assert [kernel.name for kernel in compiled.report.kernels] == ["resize"]
    expected = reference(model, inputs)["y"]
    np.testing.assert_allclose(compiled.run(inputs)["y"], expected, atol=CLOSE)

    half = {"x": inputs["x"].astype("float16")}
    result = tvm_edge.compile(resize_model(shape, dtype="float16", **how), "llvm").run(half)["y"]
    assert result.dtype == "float16"
    np.testing.assert_allclose(result, expected, atol=2e-3)


@pytest.mark.parametrize(
    ("mode", "padding", "align"),
    [
        ("nearest", "reflection", 1),
        ("linear", "border", 0),
        ("cubic", "zeros", 0),
        *in_full(
            *(
                (mode, padding, align)
                for mode in ("nearest", "linear", "cubic")
                for padding in ("zeros", "border", "reflection")
                for align in (0, 1)
            )
        ),
    ],
)
def test_lists_of_points_on_a_cpu(mode: str, padding: str, align: int) -> None:
    """More points than a list has, and few of them."""
    node = helper.make_node(
        "GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding, align_corners=align
    )
    for shape, points in (((2, 3, 5, 8), (2, 11, 13, 2)), ((1, 5, 2, 6), (1, 2, 3, 2))):
        model = make_model([node], {"x": shape, "grid": points}, ["y"], opset=20)
        grid = np.random.default_rng(3).uniform(-1.6, 1.6, points).astype("float32")
        inputs = {"x": random_input(shape), "grid": grid}
        compiled = tvm_edge.compile(model, "llvm")
        assert "grid_sample" in {kernel.name for kernel in compiled.report.kernels}
        expected = reference(model, inputs)["y"]
        np.testing.assert_allclose(compiled.run(inputs)["y"], expected, atol=CLOSE)


def test_what_is_outside_is_not_read(target: str) -> None:
    """Zero times infinity would be no number."""
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], padding_mode="zeros")
    model = make_model([node], {"x": (1, 1, 2, 2), "grid": (1, 1, 2, 2)}, ["y"], opset=20)
    inputs = {
        "x": np.full((1, 1, 2, 2), np.inf, "float32"),
        "grid": np.asarray([[[[-3, 0], [0, 5]]]], "float32"),
    }
    how: dict[str, Any] = {} if target == "llvm" else {"fallback": "none"}
    result = tvm_edge.compile(model, target, **how).run(inputs)["y"]
    np.testing.assert_array_equal(result, reference(model, inputs)["y"])
    np.testing.assert_array_equal(result, 0)
