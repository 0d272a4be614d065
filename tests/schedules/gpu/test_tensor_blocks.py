"""Convolutions, products and windows of float16 in blocks of eight channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te

import tvm_edge
from tests.onnx_models import reference
from tests.schedules.gpu.graphs import conv, matrices, residual
from tests.schedules.gpu.harness import ORIN
from tests.schedules.harness import Graph
from tvm_edge.hardware import resolve_target
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.halves_window import depthwise_halves, pool_halves
from tvm_edge.schedules.gpu.pixel_pairs import as_pairs, pack_pairs, pair_filters
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

GRAPHS = {
    "3x3": conv(1, 16, 7, 9, outputs=20, kernel=(3, 3), pads=[1] * 4),
    "strided": conv(2, 9, 13, 11, outputs=33, kernel=(3, 2), strides=[2, 3], pads=[1, 0, 2, 1]),
    "dilated": conv(1, 24, 12, 12, outputs=48, kernel=(3, 3), dilations=[2, 2]),
    "1x1": conv(1, 40, 6, 6, outputs=16, kernel=(1, 1), epilogue=False),
    "parts": conv(1, 256, 7, 7, outputs=64, kernel=(3, 3), pads=[1] * 4),
    "first": conv(1, 3, 33, 34, outputs=32, kernel=(3, 3), strides=[2, 2], pads=[1] * 4),
    "depthwise": conv(1, 32, 9, 8, outputs=32, kernel=(3, 3), group=32, pads=[1] * 4),
    "product": matrices((5, 24), (24, 40)),
    "residual": residual(),
}
RULES = {"depthwise": "halves_window"}
DATA = {"product": (0,), "residual": (0, 3)}
"""Inputs that stay inputs: the others, the last one excepted, are weights."""

CONVOLUTIONS = {
    "3x3": ConvWorkload(1, 16, 7, 9, 20, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "strided": ConvWorkload(2, 9, 13, 11, 33, (3, 2), (2, 3), (1, 0, 2, 1), (1, 1), 1),
    "dilated": ConvWorkload(1, 24, 12, 12, 48, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 1),
    "1x1": ConvWorkload(1, 40, 6, 5, 130, (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
}


def evaluated(given: list[np.ndarray], make: Callable[..., te.Tensor]) -> np.ndarray:
    """Evaluate a definition on the CPU, as it stands."""
    tensors = [
        te.placeholder(value.shape, str(value.dtype), f"in{i}") for i, value in enumerate(given)
    ]
    result = make(*tensors)
    func = te.create_prim_func([*tensors, result]).with_attr("global_symbol", "main")
    out = tvm.runtime.tensor(np.zeros([int(d) for d in result.shape], str(result.dtype)))
    tvm.compile(func, target="llvm")(*map(tvm.runtime.tensor, given), out)
    return out.numpy().astype("float64")


def halves(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype("float16")


def in_blocks(image: np.ndarray) -> np.ndarray:
    """``[N, C, H, W]`` as ``[N, C/8, H, W, 8]``, filled up with anything but zeros."""
    missing = -image.shape[1] % 8
    whole = np.pad(image, [(0, 0), (0, missing), (0, 0), (0, 0)], constant_values=3)
    split = whole.reshape(whole.shape[0], -1, 8, *whole.shape[2:])
    return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2))


def out_of_blocks(image: np.ndarray, channels: int) -> np.ndarray:
    moved = image.transpose(0, 1, 4, 2, 3)
    return moved.reshape(moved.shape[0], -1, *moved.shape[3:])[:, :channels]


def convolved(image: np.ndarray, weights: np.ndarray, w: ConvWorkload) -> np.ndarray:
    """The convolution in float64, tap by tap."""
    top, left, bottom, right = w.padding
    padded = np.pad(image.astype("float64"), [(0, 0), (0, 0), (top, bottom), (left, right)])
    lines, columns = w.output
    result = np.zeros((w.batch, w.filters, lines, columns))
    for y in range(w.kernel[0]):
        for x in range(w.kernel[1]):
            rows = slice(y * w.dilation[0], y * w.dilation[0] + (lines - 1) * w.strides[0] + 1)
            across = slice(x * w.dilation[1], x * w.dilation[1] + (columns - 1) * w.strides[1] + 1)
            seen = padded[:, :, rows, across][:, :, :: w.strides[0], :: w.strides[1]]
            tap = weights[:, :, y, x].astype("float64")
            if w.depthwise:
                result += seen * tap[None, :, 0, None, None]
            else:
                result += np.einsum("nchw,oc->nohw", seen, tap)
    return result


def assert_rounded(actual: np.ndarray, expected: np.ndarray) -> None:
    """One rounding to float16, and sums in float32."""
    assert np.abs(actual - expected).max() <= 2.0**-10 * np.abs(expected).max()


@pytest.mark.parametrize("workload", CONVOLUTIONS.values(), ids=list(CONVOLUTIONS))
def test_definition_and_filters(workload: ConvWorkload) -> None:
    rng = np.random.default_rng(1)
    image = halves(rng, workload.batch, workload.channels, workload.height, workload.width)
    weights = halves(rng, workload.filters, workload.channels, *workload.kernel)
    packed = pack_stacks(weights, TensorConv.of(workload, "float16"))
    made = evaluated([in_blocks(image), packed], lambda x, w: conv2d_tensor(x, w, workload))
    assert_rounded(out_of_blocks(made, workload.filters), convolved(image, weights, workload))


@pytest.mark.parametrize("columns", [16, 40, 136])
def test_products(columns: int) -> None:
    rng = np.random.default_rng(2)
    rows, weights = halves(rng, 3, 24), halves(rng, 24, columns)
    conv = TensorConv.of(dense_workload(3, 24, columns), "float16")
    packed = pack_stacks(weights.T[:, :, None, None], conv)
    made = evaluated([rows, packed], lambda x, w: dense_tensor(x, w, columns))
    assert_rounded(made, rows.astype("float64") @ weights.astype("float64"))


@pytest.mark.parametrize(
    ("size", "kernel", "padding"),
    [
        ((12, 14), (3, 3), (1, 1, 1, 1)),
        ((11, 13), (3, 3), (0, 0, 0, 0)),
        ((16, 16), (7, 7), (3, 3, 3, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pairs_of_pixels(
    size: tuple[int, int],
    kernel: tuple[int, int],
    padding: tuple[int, int, int, int],
    channels: int,
) -> None:
    rng = np.random.default_rng(3)
    workload = ConvWorkload(2, channels, *size, 16, kernel, (2, 2), padding, (1, 1), 1)
    pairs = as_pairs(workload, "float16")
    assert pairs is not None and pairs.output == workload.output
    image, weights = halves(rng, 2, channels, *size), halves(rng, 16, channels, *kernel)
    packed = evaluated([image], pack_pairs).astype("float16")
    filters = pack_stacks(pair_filters(weights, workload), TensorConv.of(pairs, "float16"))
    made = evaluated([packed, filters], lambda x, w: conv2d_tensor(x, w, pairs))
    assert_rounded(out_of_blocks(made, 16), convolved(image, weights, workload))


def test_depthwise() -> None:
    rng = np.random.default_rng(4)
    workload = ConvWorkload(1, 12, 9, 8, 12, (3, 3), (2, 1), (1, 1, 0, 1), (1, 2), 12)
    image, weights = halves(rng, 1, 12, 9, 8), halves(rng, 12, 1, 3, 3)
    filters = np.zeros((3, 3, 16), "float16")
    filters[..., :12] = weights[:, 0].transpose(1, 2, 0)
    made = evaluated([in_blocks(image), filters], lambda x, w: depthwise_halves(x, w, workload))
    assert_rounded(out_of_blocks(made, 12), convolved(image, weights, workload))


@pytest.mark.parametrize("maximum", [True, False])
@pytest.mark.parametrize("counts_padding", [True, False])
def test_pools(maximum: bool, counts_padding: bool) -> None:
    rng = np.random.default_rng(5)
    image = halves(rng, 1, 8, 7, 9)
    made = evaluated(
        [in_blocks(image)],
        lambda x: pool_halves(
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
    assert_rounded(out_of_blocks(made, 8), expected)


@pytest.mark.parametrize("cores", [1, 8, 132])
@pytest.mark.parametrize("workload", CONVOLUTIONS.values(), ids=list(CONVOLUTIONS))
def test_tiles_fit(workload: ConvWorkload, cores: int) -> None:
    spec, conv = replace(ORIN, cores=cores), TensorConv.of(workload, "float16")
    tiles = possible_tensor_tiles(conv, spec)
    assert tiles and choose_tensor_tile(conv, spec) == tiles[0]
    assert all(tile.items <= 1024 and tile.local_bytes <= 99 << 10 for tile in tiles)


def test_tiles_of_other_convolutions_are_refused() -> None:
    tile = TensorTile(128, 112, 4, 7, 1, 8, 3)
    wide = ConvWorkload(1, 64, 14, 14, 128, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1)
    assert suits(tile, TensorConv.of(wide, "float16"), ORIN)
    assert not suits(tile, TensorConv.of(replace(wide, filters=96), "float16"), ORIN)
    assert not suits(replace(tile, depth=16, stages=4), TensorConv.of(wide, "float16"), ORIN)


def compiled_with_weights(name: str, target: object) -> tuple[tvm_edge.CompiledModel, Graph]:
    graph = GRAPHS[name]
    inputs = list(graph.values)
    data = [inputs[i] for i in DATA.get(name, (-1,))]
    weights = {each: value for each, value in graph.values.items() if each not in data}
    model = tvm_edge.compile(
        graph.model(), target, precision="mixed", fallback="none", input_values=weights
    )
    return model, graph


@pytest.mark.parametrize("name", list(GRAPHS))
def test_chosen_and_compiled(name: str, tmp_path: Path) -> None:
    """Without a device: nvcc takes the source, and the report says which rule it was."""
    compiled, _ = compiled_with_weights(name, "jetson-orin-nano")
    rules = {kernel.rule for kernel in compiled.report.kernels}
    assert RULES.get(name, "tensor_blocks") in rules
    compiled.export(tmp_path / "model.tvme")


def test_turing_keeps_its_kernels() -> None:
    turing = {"kind": "cuda", "arch": "sm_75"}
    assert not resolve_target(turing).spec.tensor_cores
    assert resolve_target({"kind": "cuda", "arch": "sm_87"}).spec.tensor_cores
    compiled, _ = compiled_with_weights("3x3", turing)
    assert "tensor_blocks" not in {kernel.rule for kernel in compiled.report.kernels}


@pytest.mark.parametrize("name", ["3x3", "product"])
def test_device_too_small_for_tiles_keeps_its_kernels(name: str) -> None:
    small = {"kind": "cuda", "arch": "sm_87", "max_num_threads": 32}
    spec = resolve_target(small).spec
    assert spec.tensor_cores and spec.max_work_group_size == 32
    compiled, _ = compiled_with_weights(name, small)
    assert "tensor_blocks" not in {kernel.rule for kernel in compiled.report.kernels}


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
@pytest.mark.parametrize("name", list(GRAPHS))
def test_results(name: str, gpu: str) -> None:
    compiled, graph = compiled_with_weights(name, gpu)
    actual = compiled.run({each.name: graph.values[each.name] for each in compiled.inputs})
    for output, value in reference(graph.model(), graph.values).items():
        assert np.abs(actual[output] - value).max() <= 5e-3 * np.abs(value).max(), output
