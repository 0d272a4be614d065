"""ROIAlign and ROI pooling against ONNX Runtime, and what they make of any numbers for regions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

import tvm_edge
from tests.onnx_models import make_model, reference
from tests.schedules.vision.harness import run_operator
from tvm_edge import ops

# Sums of some tens of products, in another order than the reference's.
CLOSE = 1e-5


@pytest.fixture(params=["llvm", "opencl"])
def target(request: pytest.FixtureRequest) -> str:
    """Targets of this machine; no kernel here asks for local memory."""
    kind = str(request.param)
    if kind != "llvm" and not (tvm.runtime.enabled(kind) and tvm.device(kind, 0).exist):
        pytest.skip(f"no {kind} device on this machine")
    return kind


def random_maps(seed: int, *shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def random_regions(seed: int, count: int, side: float, dtype: str = "float32") -> np.ndarray:
    """Corners of regions in a square picture, some over its edges."""
    corners = np.random.default_rng(seed).uniform(-0.3 * side, 1.3 * side, (count, 2, 2))
    return np.concatenate([corners.min(1), corners.max(1)], 1).astype(dtype)


def random_pictures(seed: int, count: int, batch: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, batch, count)


def align_model(
    shape: tuple[int, ...], regions: int, *, opset: int = 16, dtype: str = "float32", **how: Any
) -> onnx.ModelProto:
    """A RoiAlign of ``x``, regions ``r`` and batch indices ``p``."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    dtypes = {"x": kind, "r": kind, "y": kind, "p": TensorProto.INT64}
    node = helper.make_node("RoiAlign", ["x", "r", "p"], ["y"], **how)
    inputs: dict[str, tuple[int, ...]] = {"x": shape, "r": (regions, 4), "p": (regions,)}
    return make_model([node], inputs, ["y"], dtypes=dtypes, opset=opset)


def pool_model(shape: tuple[int, ...], regions: int, **how: Any) -> onnx.ModelProto:
    """A MaxRoiPool of ``x`` and regions ``r``."""
    node = helper.make_node("MaxRoiPool", ["x", "r"], ["y"], **how)
    return make_model([node], {"x": shape, "r": (regions, 5)}, ["y"])


def run(model: onnx.ModelProto, target: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The result of a model that has to stay on its target."""
    how: dict[str, Any] = {} if target == "llvm" else {"fallback": "none"}
    return tvm_edge.compile(model, target, **how).run(inputs)["y"]


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    ("opset", "coordinates", "ratio", "mode"),
    [
        (16, "half_pixel", 0, "avg"),
        (16, "half_pixel", 3, "max"),
        (16, "output_half_pixel", 2, "avg"),
        (10, None, 0, "max"),
    ],
)
def test_roi_align(target: str, opset: int, coordinates: str | None, ratio: int, mode: str) -> None:
    """Many regions, and channels that fill no vector; opset 10 has other defaults."""
    how: dict[str, Any] = (
        {} if coordinates is None else {"coordinate_transformation_mode": coordinates}
    )
    shape, count = (2, 17, 9, 13), 11
    model = align_model(
        shape,
        count,
        opset=opset,
        mode=mode,
        sampling_ratio=ratio,
        output_height=3,
        output_width=5,
        spatial_scale=0.3,
        **how,
    )
    inputs = {
        "x": random_maps(0, *shape),
        "r": random_regions(1, count, 40.0),
        "p": random_pictures(2, count, 2),
    }
    inputs["r"][0, 2:] = inputs["r"][0, :2] + 0.5  # less than a pixel
    expected = reference(model, inputs)["y"]
    np.testing.assert_allclose(run(model, target, inputs), expected, atol=CLOSE, rtol=0)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("shape", [(1, 5, 60, 70), (1, 130, 4, 3), (3, 1, 1, 1)])
def test_roi_align_of_any_shape(target: str, shape: tuple[int, ...]) -> None:
    """One region of a large map, several blocks of channels, a single pixel."""
    count = 1 if shape[2] > 9 else 5
    model = align_model(shape, count, output_height=2, output_width=7)
    inputs = {
        "x": random_maps(3, *shape),
        "r": random_regions(4, count, 1.5 * shape[2]),
        "p": random_pictures(5, count, shape[0]),
    }
    expected = reference(model, inputs)["y"]
    np.testing.assert_allclose(run(model, target, inputs), expected, atol=CLOSE, rtol=0)


@pytest.mark.parametrize(("dtype", "close"), [("float64", 1e-12), ("float16", 4e-3)])
def test_roi_align_of_other_types(dtype: str, close: float) -> None:
    """Half precision is calculated in single and rounded once: half a unit in the last place."""
    shape, count = (1, 3, 8, 8), 4
    inputs = {
        "x": random_maps(6, *shape, dtype=dtype),
        "r": random_regions(7, count, 8.0, dtype),
        "p": np.zeros(count, "int64"),
    }
    result = run(align_model(shape, count, dtype=dtype, output_height=2), "llvm", inputs)
    wide = "float64" if dtype == "float64" else "float32"
    model = align_model(shape, count, dtype=wide, output_height=2)
    expected = reference(
        model, {**inputs, "x": inputs["x"].astype(wide), "r": inputs["r"].astype(wide)}
    )
    assert result.dtype == dtype
    np.testing.assert_allclose(result, expected["y"], atol=close, rtol=0)


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    ("shape", "scale"), [((2, 19, 9, 13), 0.3), ((1, 3, 40, 50), 1.0), ((1, 1, 1, 1), 2.0)]
)
def test_max_roi_pool(target: str, shape: tuple[int, ...], scale: float) -> None:
    """Regions over the edges, of which some bins are empty; corners on halves."""
    count = 9
    model = pool_model(shape, count, pooled_shape=[3, 4], spatial_scale=scale)
    regions = random_regions(8, count, shape[2] / scale)
    regions[:4] = np.round(regions[:4] * scale * 2) / 2 / scale
    regions[4] = np.array([-4, 0, -0.5, 6]) / scale  # ends in front of the first column
    inputs = {
        "x": random_maps(9, *shape),
        "r": np.insert(regions, 0, random_pictures(10, count, shape[0]), axis=1),
    }
    expected = reference(model, inputs)["y"]
    np.testing.assert_array_equal(run(model, target, inputs), expected)


NOWHERE = np.array(
    [
        [np.nan, 0, 3, 3],
        [0, 0, 3, np.nan],
        [0, 0, np.inf, 3],
        [-np.inf, -np.inf, np.inf, np.inf],
        [1e30, 0, 2e30, 3],
        [1e38, 1e38, 3e38, 3e38],
    ],
    "float32",
)
"""Regions without a point that a map could have a value at."""


@pytest.mark.diagonals(2)
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align_of_regions_that_are_nowhere(target: str, mode: str) -> None:
    """Neither a crash nor a loop without end; ONNX Runtime reads anywhere in memory."""
    x, pictures = random_maps(11, 1, 3, 6, 7), np.zeros(len(NOWHERE), "int64")
    (result,) = run_operator(
        target,
        lambda x, r, p: ops.roi_align(x, r, p, output_width=2, mode=mode),
        x,
        NOWHERE,
        pictures,
    )
    np.testing.assert_array_equal(result, 0)


def test_roi_align_of_regions_far_larger_than_the_map(target: str) -> None:
    """Points outside of the map count, and are not looked at one by one as in ONNX Runtime."""
    shape, regions = (1, 2, 6, 7), np.array([[-171, -129, 177, 137]], "float32")
    model = align_model(shape, 1, output_height=3, output_width=3)
    compiled = tvm_edge.compile(model, target)
    inputs = {"x": random_maps(12, *shape) + 100, "r": regions, "p": np.zeros(1, "int64")}
    expected = reference(model, inputs)["y"]
    assert expected.max() > 0
    np.testing.assert_allclose(compiled.run(inputs)["y"], expected, atol=CLOSE)
    for times in (1e6, 1e25):  # it would take days
        result = compiled.run({**inputs, "r": regions * np.float32(times)})["y"]
        assert (np.abs(result) < expected.max()).all()


def test_regions_of_pictures_that_are_not_there(target: str) -> None:
    """The nearest one: nothing outside of the maps is read."""
    x, regions = random_maps(13, 2, 3, 6, 7), random_regions(14, 4, 6.0)
    wrong = np.array([-3, 2, 1 << 40, 1])

    def aligned(pictures: np.ndarray) -> np.ndarray:
        return run_operator(target, ops.roi_align, x, regions, pictures)[0]

    np.testing.assert_array_equal(aligned(wrong), aligned(np.array([0, 1, 1, 1])))

    def pooled(pictures: list[float]) -> np.ndarray:
        rows = np.insert(regions, 0, pictures, axis=1)
        return run_operator(target, lambda x, r: ops.roi_pool(x, r, (2, 2)), x, rows)[0]

    np.testing.assert_array_equal(pooled([np.nan, -np.inf, 1e20, 5]), pooled([0, 0, 1, 1]))


def test_max_roi_pool_of_any_numbers(target: str) -> None:
    """Regions that are nowhere have empty bins; NaN as a coordinate is 0, as in the map never."""
    x = random_maps(15, 1, 3, 6, 7)
    x[0, 0, 0, :2] = np.nan, -np.inf
    regions = np.array(
        [
            [0, 1e30, 0, 2e30, 3],
            [0, -np.inf, -1e30, np.inf, 1e30],
            [0, 0, 0, np.nan, 2],
            [0, 0, 0, 1, 0],
        ],
        "float32",
    )
    (result,) = run_operator(target, lambda x, r: ops.roi_pool(x, r, (1, 1)), x, regions)
    np.testing.assert_array_equal(result[0], 0)
    np.testing.assert_array_equal(result[1, :, 0, 0], np.nanmax(x, (0, 2, 3)))
    np.testing.assert_array_equal(result[2, :, 0, 0], np.nanmax(x[:, :, :3, :1], (0, 2, 3)))
    assert result[3, 0, 0, 0] == -np.inf


def test_as_many_regions_as_there_are(target: str) -> None:
    """Their number is known after the run only, as behind NonMaxSuppression; it may be 0."""
    model = make_model(
        [
            helper.make_node("NonZero", ["keep"], ["found"]),
            helper.make_node("Squeeze", ["found", "axis"], ["kept"]),
            helper.make_node("Gather", ["r", "kept"], ["rs"]),
            helper.make_node("Gather", ["p", "kept"], ["ps"]),
            helper.make_node("RoiAlign", ["x", "rs", "ps"], ["y"], output_height=2),
        ],
        {"x": (2, 3, 9, 8), "r": (6, 4), "p": (6,), "keep": (6,)},
        ["y"],
        {"axis": np.array([0], "int64")},
        dtypes={"p": TensorProto.INT64, "keep": TensorProto.BOOL},
    )
    compiled = tvm_edge.compile(model, target)
    assert "roi_align" in {kernel.name for kernel in compiled.report.kernels}
    for kept in ([0, 1, 0, 1, 1, 0], [1] * 6, [0] * 6):
        inputs = {
            "x": random_maps(16, 2, 3, 9, 8),
            "r": random_regions(17, 6, 9.0),
            "p": random_pictures(18, 6, 2),
            "keep": np.array(kept, "bool"),
        }
        expected = reference(model, inputs)["y"]
        result = compiled.run(inputs)["y"]
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, atol=CLOSE)


def test_no_regions() -> None:
    node = helper.make_node("RoiAlign", ["x", "r", "p"], ["y"], output_height=2)
    constants = {"r": np.zeros((0, 4), "float32"), "p": np.zeros(0, "int64")}
    model = make_model([node], {"x": (1, 3, 4, 4)}, ["y"], constants)
    result = tvm_edge.compile(model, "llvm").run({"x": random_maps(19, 1, 3, 4, 4)})["y"]
    assert result.shape == (0, 3, 2, 1)


def by_tvm(build: Any, *values: np.ndarray) -> np.ndarray:
    """The result of TVM's own kernel of an operator."""
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{i}", relax.TensorType(v.shape, str(v.dtype))) for i, v in enumerate(values)
    ]
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(build(*params)))
    program = tvm.compile(builder.get(), target="llvm")
    machine = relax.VirtualMachine(program, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, values)).numpy()


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(("aligned", "ratio"), [(True, 0), (False, -1)])
def test_relax_roi_align_is_tvms(target: str, aligned: bool, ratio: int) -> None:
    """Its "aligned" does not move regions by half a pixel."""
    x = random_maps(20, 2, 3, 9, 8)
    rows = np.insert(random_regions(21, 5, 18.0), 0, random_pictures(22, 5, 2), axis=1)

    def build(x: relax.Expr, r: relax.Expr) -> relax.Expr:
        return relax.op.vision.roi_align(x, r, (3, 2), 0.5, ratio, aligned)

    (result,) = run_operator(target, build, x, rows)
    np.testing.assert_allclose(result, by_tvm(build, x, rows), atol=CLOSE)


def test_relax_roi_align_by_maximum_is_tvms() -> None:
    """The maximum of points, where ONNX has that of their weighted corners."""
    x, rows = random_maps(24, 1, 3, 9, 8), np.array([[0, -1, 2, 7, 8]], "float32")

    def build(x: relax.Expr, r: relax.Expr) -> relax.Expr:
        return relax.op.vision.roi_align(x, r, (3, 2), 1.0, 2, True, mode="max")

    (result,) = run_operator("llvm", build, x, rows)
    np.testing.assert_allclose(result, by_tvm(build, x, rows), atol=CLOSE)


def test_relax_roi_pool_is_tvms(target: str) -> None:
    """It rounds -0.5 up, where ONNX Runtime rounds it away from zero."""
    x = random_maps(23, 1, 3, 9, 8)
    regions = np.array([[0, -1, -3, 7, 9], [0, 3, 5, 4, 11], [0, 40, 0, 50, 3]], "float32")

    def build(x: relax.Expr, r: relax.Expr) -> relax.Expr:
        return relax.op.vision.roi_pool(x, r, (3, 2), 0.5)

    (result,) = run_operator(target, build, x, regions)
    np.testing.assert_array_equal(result, by_tvm(build, x, regions))


@pytest.mark.parametrize(
    ("regions", "pictures", "attributes", "fragment"),
    [
        ((2, 5), (2,), {}, "4 numbers"),
        ((2, 4, 1), (2,), {}, "rank 2"),
        ((2, 4), (3,), {}, "mismatch"),
        ((2, 4), (2, 1), {}, "rank 1"),
        ((2, 4), (2,), {"mode": "median"}, "median"),
        ((2, 4), (2,), {"output_height": 0}, "0x1"),
        ((2, 4), (2,), {"sampling_ratio": 1 << 30}, "sampling_ratio"),
        ((2, 4), (2,), {"coordinate_transformation_mode": "pixel"}, "pixel"),
    ],
)
def test_impossible_regions_are_refused(
    regions: tuple[int, ...], pictures: tuple[int, ...], attributes: dict[str, Any], fragment: str
) -> None:
    node = helper.make_node("RoiAlign", ["x", "r", "p"], ["y"], **attributes)
    values = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("x", TensorProto.FLOAT, (1, 3, 4, 4)),
            ("r", TensorProto.FLOAT, regions),
            ("p", TensorProto.INT64, pictures),
            ("y", TensorProto.FLOAT, [*"abcd"]),
        )
    ]
    graph = helper.make_graph([node], "g", values[:3], values[3:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    errors = (tvm_edge.InvalidModelError, tvm_edge.UnsupportedOperatorError)
    with pytest.raises(errors, match=fragment):
        tvm_edge.compile(model, "llvm")


@pytest.mark.parametrize(
    ("shapes", "fragment"),
    [
        (((3, 4, 4), (2, 4), (2,)), "four dimensions"),
        (((1, 3, 4, 4), (2, 4, 1), (2,)), "two"),
        (((1, 3, 4, 4), (2, 5), (2,)), "4 numbers"),
        (((1, 3, 4, 4), (2, 4), (3,)), "2 regions and 3"),
        (((1, 3, 4, 4), (2, 4), (2, 1)), "vector"),
    ],
)
def test_the_operator_refuses_other_ranks(
    shapes: tuple[tuple[int, ...], ...], fragment: str
) -> None:
    data, regions, pictures = (
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, shape, dtype in zip("xrp", shapes, ("float32", "float32", "int64"), strict=True)
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [data, regions, pictures]):
        with pytest.raises(ValueError, match=fragment):
            builder.emit(ops.roi_align(data, regions, pictures))
        builder.emit_func_output(data)
