"""Convolutions, products and windows in channel blocks of 16 bytes, on tensor cores."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import tvm_edge
from tests.onnx_models import reference
from tests.quantized_models import (
    assert_same_numbers,
    inputs_of,
    network,
    quantized,
    with_intermediates,
)
from tests.schedules.gpu.graphs import conv, matrices, residual
from tests.schedules.gpu.harness import ORIN
from tests.schedules.gpu.int8_models import SHAPES, model_of
from tests.schedules.gpu.units import convolved, evaluated, in_blocks, out_of_blocks
from tests.schedules.harness import Graph
from tvm_edge.compiler.driver import compile_with
from tvm_edge.hardware import resolve_target
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.pixel_cells import (
    as_cells,
    cell_filters,
    pack_cells,
)
from tvm_edge.schedules.gpu.tensor_conv import (
    BLOCKS,
    TensorConv,
    conv2d_tensor,
    dense_tensor,
    dense_workload,
    pack_stacks,
)
from tvm_edge.schedules.gpu.tensor_tile import (
    TensorTile,
    choose_tensor_tile,
    possible_tensor_tiles,
    suits,
)
from tvm_edge.schedules.gpu.unit_window import depthwise_units, pool_units

GRAPHS = {
    "3x3": conv(1, 16, 7, 9, outputs=20, kernel=(3, 3), pads=[1] * 4),
    "strided": conv(2, 9, 13, 11, outputs=33, kernel=(3, 2), strides=[2, 3], pads=[1, 0, 2, 1]),
    "dilated": conv(1, 24, 12, 12, outputs=48, kernel=(3, 3), dilations=[2, 2]),
    "1x1": conv(1, 40, 6, 6, outputs=16, kernel=(1, 1), epilogue=False),
    "parts": conv(1, 256, 7, 7, outputs=64, kernel=(3, 3), pads=[1] * 4),
    "first": conv(1, 3, 33, 34, outputs=32, kernel=(3, 3), strides=[2, 2], pads=[1] * 4),
    "patch": conv(1, 64, 20, 21, outputs=64, kernel=(3, 3), pads=[1] * 4),
    "patches": conv(2, 33, 29, 30, outputs=32, kernel=(3, 2), dilations=[1, 2], pads=[1, 0, 2, 1]),
    "depthwise": conv(1, 32, 9, 8, outputs=32, kernel=(3, 3), group=32, pads=[1] * 4),
    "product": matrices((5, 24), (24, 40)),
    "residual": residual(),
}
RULES = {"depthwise": "unit_window"}
DATA = {"product": (0,), "residual": (0, 3)}
"""Inputs that stay inputs: the others, the last one excepted, are weights."""

CONVOLUTIONS = {
    "3x3": ConvWorkload(1, 16, 7, 9, 20, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "strided": ConvWorkload(2, 9, 13, 11, 33, (3, 2), (2, 3), (1, 0, 2, 1), (1, 1), 1),
    "dilated": ConvWorkload(1, 24, 12, 12, 48, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 1),
    "1x1": ConvWorkload(1, 40, 6, 5, 130, (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
}


DTYPES = list(BLOCKS)
TURING = {"kind": "cuda", "arch": "sm_75"}


def drawn(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    if dtype == "int8":
        return rng.integers(-128, 128, shape, "int8")
    return rng.uniform(-1, 1, shape).astype(dtype)


def assert_rounded(actual: np.ndarray, expected: np.ndarray, dtype: str = "float16") -> None:
    """One rounding to float16, or of filters to tf32, and sums in float32; int32 is exact."""
    allowed = 0.0 if dtype == "int8" else 2.0**-10 * np.abs(expected).max()
    assert np.abs(actual - expected).max() <= allowed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("workload", CONVOLUTIONS.values(), ids=list(CONVOLUTIONS))
def test_definition_and_filters(workload: ConvWorkload, dtype: str) -> None:
    rng = np.random.default_rng(1)
    zero = -7 if dtype == "int8" else 0
    image = drawn(rng, dtype, workload.batch, workload.channels, workload.height, workload.width)
    weights = drawn(rng, dtype, workload.filters, workload.channels, *workload.kernel)
    packed = pack_stacks(weights, TensorConv.of(workload, dtype))
    made = evaluated(
        [in_blocks(image), packed], lambda x, w: conv2d_tensor(x, w, workload, zero=zero)
    )
    expected = convolved(image, weights, workload, zero)
    assert_rounded(out_of_blocks(made, workload.filters), expected, dtype)


def test_filters_are_rounded_to_tf32() -> None:
    """To the nearest number of 10 bits of mantissa, and halves away from zero, as CUDA does."""
    workload = ConvWorkload(1, 4, 1, 1, 16, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1)
    weights = np.zeros((16, 4, 1, 1), "float32")
    weights[0, :, 0, 0] = 1 + 2**-11, 1 + 2**-12, -1 - 2**-11, np.inf
    (packed,) = pack_stacks(weights, TensorConv.of(workload, "float32"))[0, 0]
    assert packed[0].tolist() == [1 + 2**-10, 1, -1 - 2**-10, np.inf]


@pytest.mark.parametrize("columns", [16, 40, 136])
def test_products(columns: int) -> None:
    rng = np.random.default_rng(2)
    rows, weights = drawn(rng, "float16", 3, 24), drawn(rng, "float16", 24, columns)
    conv = TensorConv.of(dense_workload(3, 24, columns), "float16")
    packed = pack_stacks(weights.T[:, :, None, None], conv)
    made = evaluated([rows, packed], lambda x, w: dense_tensor(x, w, columns))
    assert_rounded(made, rows.astype("float64") @ weights.astype("float64"))


@pytest.mark.diagonals(2)
@pytest.mark.parametrize(
    ("size", "kernel", "padding"),
    [
        ((12, 14), (3, 3), (1, 1, 1, 1)),
        ((11, 13), (3, 3), (0, 0, 0, 0)),
        ((11, 13), (3, 3), (1, 1, 1, 1)),
        ((16, 15), (7, 7), (3, 3, 3, 3)),
        ((13, 12), (5, 3), (1, 0, 2, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("channels", "dtype"), [(1, "float16"), (3, "float16"), (3, "int8"), (5, "int8")]
)
def test_cells_of_pixels(
    size: tuple[int, int],
    kernel: tuple[int, int],
    padding: tuple[int, int, int, int],
    channels: int,
    dtype: str,
) -> None:
    workload = ConvWorkload(2, channels, *size, 16, kernel, (2, 2), padding, (1, 1), 1)
    cells = as_cells(workload, dtype)
    assert cells is not None
    few = channels * kernel[0] * kernel[1] <= 4 * BLOCKS[dtype]
    assert (cells.kernel == (1, 1)) == few
    _assert_cells(workload, dtype)


@pytest.mark.parametrize(
    ("channels", "kernel", "strides", "dilation"),
    [
        (3, (3, 3), (1, 1), (1, 1)),
        (1, (5, 5), (1, 2), (1, 1)),
        (2, (3, 3), (3, 1), (1, 2)),
        (4, (2, 4), (1, 1), (2, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_cells_that_are_windows(
    channels: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    dtype: str,
) -> None:
    """Windows of every stride: a pixel of the result has one."""
    workload = ConvWorkload(2, channels, 13, 11, 24, kernel, strides, (2, 1, 0, 3), dilation, 1)
    cells = as_cells(workload, dtype)
    assert cells is not None and cells.kernel == (1, 1)
    assert cells.channels < channels * kernel[0] * kernel[1] + BLOCKS[dtype]
    _assert_cells(workload, dtype)


def _assert_cells(workload: ConvWorkload, dtype: str) -> None:
    """The convolution of cells is that of pixels."""
    rng = np.random.default_rng(3)
    zero = 5 if dtype == "int8" else 0
    cells = as_cells(workload, dtype)
    assert cells is not None and cells.output == workload.output
    image = drawn(rng, dtype, workload.batch, workload.channels, workload.height, workload.width)
    weights = drawn(rng, dtype, workload.filters, workload.channels, *workload.kernel)
    packed = evaluated([image], lambda x: pack_cells(x, workload, zero)).astype(dtype)
    filters = pack_stacks(cell_filters(weights, workload), TensorConv.of(cells, dtype))
    made = evaluated([packed, filters], lambda x, w: conv2d_tensor(x, w, cells, zero=zero))
    expected = convolved(image, weights, workload, zero)
    assert_rounded(out_of_blocks(made, workload.filters), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_depthwise(dtype: str) -> None:
    rng = np.random.default_rng(4)
    zero = -7 if dtype == "int8" else 0
    workload = ConvWorkload(1, 12, 9, 8, 12, (3, 3), (2, 1), (1, 1, 0, 1), (1, 2), 12)
    image, weights = drawn(rng, dtype, 1, 12, 9, 8), drawn(rng, dtype, 12, 1, 3, 3)
    filters = np.zeros((3, 3, 12 if dtype == "float32" else 16), dtype)
    filters[..., :12] = weights[:, 0].transpose(1, 2, 0)
    made = evaluated(
        [in_blocks(image), filters], lambda x, w: depthwise_units(x, w, workload, zero)
    )
    assert_rounded(out_of_blocks(made, 12), convolved(image, weights, workload, zero), dtype)


@pytest.mark.parametrize(
    ("maximum", "counts_padding", "dtype"),
    [(True, False, dtype) for dtype in DTYPES]
    + [(False, counts, dtype) for counts in (True, False) for dtype in ("float16", "float32")],
)
def test_pools(maximum: bool, counts_padding: bool, dtype: str) -> None:
    rng = np.random.default_rng(5)
    image = drawn(rng, dtype, 1, 8, 7, 9)
    made = evaluated(
        [in_blocks(image)],
        lambda x: pool_units(
            x,
            (4, 5),
            [(3, 3), (2, 2), (1, 1), (1, 1)],
            maximum=maximum,
            counts_padding=counts_padding,
        ),
    )
    fill = -np.inf if maximum else np.nan if not counts_padding else 0.0
    padded = np.pad(image.astype("float64"), [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    expected = windows.max((-2, -1)) if maximum else np.nanmean(windows, (-2, -1))
    assert_rounded(out_of_blocks(made, 8), expected, dtype)


@pytest.mark.parametrize("cores", [1, 8, 132])
@pytest.mark.parametrize("workload", CONVOLUTIONS.values(), ids=list(CONVOLUTIONS))
def test_tiles_fit(workload: ConvWorkload, cores: int) -> None:
    spec, conv = replace(ORIN, cores=cores), TensorConv.of(workload, "int8")
    tiles = possible_tensor_tiles(conv, spec)
    assert tiles and choose_tensor_tile(conv, spec) == tiles[0]
    assert all(tile.items <= 1024 and tile.local_bytes(conv) <= 99 << 10 for tile in tiles)


def test_pixels_that_a_stride_skips_go_through_the_cache() -> None:
    conv = TensorConv.of(CONVOLUTIONS["strided"], "float16")
    assert {tile.cached for tile in possible_tensor_tiles(conv, ORIN)} == {1}
    for name in ("3x3", "1x1"):
        conv = TensorConv.of(CONVOLUTIONS[name], "float16")
        assert {tile.cached for tile in possible_tensor_tiles(conv, ORIN)} == {0}


def test_tiles_of_other_convolutions_are_refused() -> None:
    tile = TensorTile(128, 112, 4, 7, 1, 8, 3)
    wide = ConvWorkload(1, 64, 14, 14, 128, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1)
    assert suits(tile, TensorConv.of(wide, "float16"), ORIN)
    assert not suits(tile, TensorConv.of(replace(wide, filters=96), "float16"), ORIN)
    assert not suits(replace(tile, depth=16, stages=4), TensorConv.of(wide, "float16"), ORIN)


def compiled_with_weights(
    name: str, target: object, precision: str = "float16"
) -> tuple[tvm_edge.CompiledModel, Graph]:
    graph = GRAPHS[name]
    inputs = list(graph.values)
    data = [inputs[i] for i in DATA.get(name, (-1,))]
    weights = {each: value for each, value in graph.values.items() if each not in data}
    model = tvm_edge.compile(
        graph.model(), target, precision=precision, fallback="none", input_values=weights
    )
    return model, graph


@pytest.mark.diagonals(3)
@pytest.mark.parametrize(
    ("name", "precision"),
    [(name, "float16") for name in GRAPHS]
    + [(name, "tf32") for name in ("strided", "depthwise", "product")],
)
def test_chosen_and_compiled(name: str, precision: str) -> None:
    """Without a device: nvcc takes the source, and the report says which rule it was."""
    compiled, _ = compiled_with_weights(name, "jetson-orin-nano", precision)
    rules = {kernel.rule for kernel in compiled.report.kernels}
    assert RULES.get(name, "tensor_blocks") in rules


def test_a_quantised_network_is_chosen_and_compiled() -> None:
    """Without a device: convolutions, pools and what packs an image have their vectors."""
    model = quantized(network(), form="QDQ", activations="uint8")
    compiled = tvm_edge.compile(model, "jetson-orin-nano", fallback="none")
    rules = Counter(kernel.rule for kernel in compiled.report.kernels)
    tensor = sum(count for rule, count in rules.items() if "tensor_blocks" in rule)
    assert tensor >= 4 and rules["unit_window"] == 3 and rules["unit_vectors"] >= 1
    assert not any("dp4a" in rule for rule in rules)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("workload", CONVOLUTIONS.values(), ids=list(CONVOLUTIONS))
def test_tiles_of_turing_fit(workload: ConvWorkload, dtype: str) -> None:
    """Two stages in its shared memory, and the units of a third in registers."""
    spec, conv = resolve_target(TURING).spec, TensorConv.of(workload, dtype)
    cores = spec.tensor_cores
    assert cores is not None
    tiles = possible_tensor_tiles(conv, spec)
    assert tiles and choose_tensor_tile(conv, spec) == tiles[0]
    assert all(tile.stages == 2 and tile.local_bytes(conv) <= 64 << 10 for tile in tiles)
    assert all(tile.registers(cores) <= 255 for tile in tiles)
    for change in ({"stages": 3}, {"cached": 1}):
        assert not suits(replace(tiles[0], **change), conv, spec)
    wide = TensorConv.of(
        ConvWorkload(1, 64, 14, 14, 128, (1, 1), (1, 1), (0,) * 4, (1, 1), 1), dtype
    )
    assert not suits(TensorTile(128, 112, 4, 7, 1, 8, 2), wide, spec)
    assert suits(TensorTile(128, 112, 4, 7, 1, 8, 2), wide, ORIN)


@pytest.mark.parametrize("name", ["3x3", "parts", "depthwise", "product"])
def test_chosen_and_compiled_for_turing(name: str) -> None:
    compiled, _ = compiled_with_weights(name, TURING)
    rules = {kernel.rule for kernel in compiled.report.kernels}
    assert RULES.get(name, "tensor_blocks") in rules


@pytest.mark.parametrize("name", ["3x3", "product"])
def test_device_too_small_for_tiles_keeps_its_kernels(name: str) -> None:
    small = {"kind": "cuda", "arch": "sm_87", "max_num_threads": 32}
    spec = resolve_target(small).spec
    assert spec.tensor_cores and spec.max_work_group_size == 32
    compiled, _ = compiled_with_weights(name, small)
    assert "tensor_blocks" not in {kernel.rule for kernel in compiled.report.kernels}


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
@pytest.mark.parametrize(("precision", "error"), [("float16", 5e-3), ("tf32", 2e-3)])
@pytest.mark.parametrize("name", list(GRAPHS))
def test_results(name: str, precision: str, error: float, gpu: str) -> None:
    compiled, graph = compiled_with_weights(name, gpu, precision)
    actual = compiled.run({each.name: graph.values[each.name] for each in compiled.inputs})
    for output, value in reference(graph.model(), graph.values).items():
        assert np.abs(actual[output] - value).max() <= error * np.abs(value).max(), output


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
@pytest.mark.parametrize("name", list(GRAPHS))
def test_results_of_turing(name: str, gpu: str, turing: None) -> None:
    """On any newer GPU: that the code has no newer instructions is for the compiler to say."""
    test_results(name, "float16", 5e-3, gpu)


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_results_of_int8_of_turing(dtype: str, gpu: str, turing: None) -> None:
    test_results_of_int8(dtype, gpu)


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_results_of_int8(dtype: str, gpu: str) -> None:
    graph = model_of(list(SHAPES), dtype)
    compiled = tvm_edge.compile(graph.model(), gpu, fallback="none")
    assert any("tensor_blocks" in kernel.rule for kernel in compiled.report.kernels)
    assert_same_numbers(compiled, graph.model(), graph.values)


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
@pytest.mark.parametrize(("form", "activations"), [("QDQ", "uint8"), ("QOperator", "int8")])
def test_a_quantised_network_has_the_bits_of_other_kernels(
    form: str, activations: str, gpu: str
) -> None:
    model = with_intermediates(quantized(network(), form=form, activations=activations))
    feeds = inputs_of(model, 7)
    compiled = tvm_edge.compile(model, gpu, fallback="none")
    assert_same_numbers(compiled, model, feeds)
    other = compile_with(model, gpu, {}, without=["BlockLayout"], fallback="none")
    assert not any("tensor_blocks" in kernel.rule for kernel in other.report.kernels)
    expected = other.run(feeds)
    for name, value in compiled.run(feeds).items():
        assert np.array_equal(value, expected[name]), name
