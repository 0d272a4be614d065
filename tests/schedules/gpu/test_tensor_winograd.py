"""Winograd's algorithm of float16 on tensor cores: definition, choice, code, results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tvm import te

import tvm_edge
from tests.onnx_models import reference
from tests.schedules.gpu.graphs import conv
from tests.schedules.gpu.harness import ORIN
from tests.schedules.gpu.units import convolved, evaluated, in_blocks, out_of_blocks
from tvm_edge.compiler.driver import compile_with
from tvm_edge.relay_passes.ir.expressions import bindings_of, is_call
from tvm_edge.schedules.conv_config import ConvConfig
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.gpu.algorithm import choose_config
from tvm_edge.schedules.gpu.tensor_space import tensor_config, tensor_configs
from tvm_edge.schedules.gpu.tensor_tile import choose_tensor_tile
from tvm_edge.schedules.gpu.tensor_winograd import (
    frequency_filters,
    frequency_images,
    frequency_products,
    frequency_results,
    products_of,
)
from tvm_edge.tuning.conv_problem import make_problem
from tvm_edge.tuning.repeat_convolution import repeat_convolution

WINOGRAD = ConvConfig("winograd", 8, 2)


def same(channels: int, size: int, filters: int) -> ConvWorkload:
    """A 3x3 convolution whose result is as large as its image."""
    image = (1, channels, size, size, filters)
    return ConvWorkload(*image, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, "float16")


WORKLOADS = {
    "odd": ConvWorkload(2, 24, 7, 9, 40, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, "float16"),
    "not padded": ConvWorkload(1, 9, 8, 5, 16, (3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1, "float16"),
    "uneven": ConvWorkload(1, 16, 4, 6, 33, (3, 3), (1, 1), (2, 0, 1, 3), (1, 1), 1, "float16"),
    "one pixel": ConvWorkload(1, 8, 1, 1, 8, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, "float16"),
}


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))
def test_definition_and_filters(workload: ConvWorkload) -> None:
    rng = np.random.default_rng(1)
    shape = (workload.batch, workload.channels, workload.height, workload.width)
    image = rng.uniform(-1, 1, shape).astype("float16")
    weights = rng.uniform(-1, 1, (workload.filters, workload.channels, 3, 3)).astype("float16")

    def make(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        products = frequency_products(frequency_images(x, workload), w, workload)
        return frequency_results(products, workload)

    made = evaluated([in_blocks(image), frequency_filters(weights, workload)], make)
    expected = convolved(image, weights, workload)
    error = np.abs(out_of_blocks(made, workload.filters) - expected).max()
    # Each of 16 sums has the error of its filters, its image and its result.
    assert error <= 2e-3 * np.abs(expected).max()


def test_images_that_float16_holds_are_not_infinite() -> None:
    """An element of the transform is a sum of four of the image."""
    workload = WORKLOADS["one pixel"]
    workload = replace(workload, height=4, width=4)
    image = np.full((1, 8, 4, 4), 60000, "float16")
    made = evaluated([in_blocks(image)], lambda x: frequency_images(x, workload))
    assert np.isfinite(made).all() and np.abs(made).max() >= 59000


def test_filters_of_candidates_are_within_float16() -> None:
    """Each copy in a candidate's model has the problem's by another power of two."""
    own = same(128, 7, 128)
    module = repeat_convolution(replace(own, dtype="float32"), make_problem(own), 24, sampled=True)
    calls = [binding.value for binding in bindings_of(module["main"])]
    copies = [call.args[1].value.numpy() for call in calls if is_call(call, "relax.nn.conv2d")]
    largest = [np.abs(frequency_filters(copy, own)).max() for copy in copies]
    assert len(set(largest)) == 24 and np.isfinite(largest).all() and max(largest) > 30_000


def test_filters_beyond_float16_are_convolved_directly() -> None:
    """Float16 holds each of them, and not the sums that the algorithm makes of them."""
    assert np.isinf(frequency_filters(np.full((8, 8, 3, 3), 8000, "float16"), same(8, 4, 8))).any()
    rules = {kernel.rule for kernel in model("jetson-orin-nano", 8000)[0].report.kernels}
    assert "tensor_blocks" in rules and "tensor_winograd" not in rules


@pytest.mark.parametrize(
    ("workload", "bandwidth", "algorithm"),
    [
        (same(512, 28, 512), 68, "winograd"),
        (same(256, 56, 256), 51, "tensor"),  # the L2 cache has no room for its frequencies
        (same(256, 56, 256), 2000, "winograd"),
        (same(3, 224, 64), 2000, "tensor"),
        (same(32, 7, 32), 2000, "tensor"),
        (replace(same(512, 28, 512), strides=(2, 2)), 2000, "tensor"),
    ],
    ids=str,
)
def test_choice(workload: ConvWorkload, bandwidth: float, algorithm: str) -> None:
    spec = replace(ORIN, bandwidth_gbs=bandwidth)
    assert choose_config(workload, spec).algorithm == algorithm
    assert choose_config(workload, spec, winograd=False).algorithm == "tensor"
    for dtype in ("int8", "float32"):
        other = tensor_config(replace(workload, dtype=dtype), dtype, spec)
        assert other is not None and other.algorithm == "tensor"


@pytest.mark.parametrize("sizes", [(128, 56, 256), (256, 56, 256), (256, 28, 512)], ids=str)
def test_work_groups_that_share_a_core_hide_each_others_ends(sizes: tuple[int, int, int]) -> None:
    """On 8 multiprocessors of an H200 tiles of 128 filters took 4 to 6 % less than those of 256."""
    tile = choose_tensor_tile(products_of(same(*sizes)), replace(ORIN, cores=8))
    assert (tile.rows, tile.columns) == (128, 112)


def test_products_are_not_in_parts() -> None:
    own = same(512, 7, 512)
    tiles = {config.knobs for config in tensor_configs(own, ORIN) if config.m}
    assert tiles and all("parts=1" in knobs for knobs in tiles)
    assert products_of(own).products == 16


def model(
    target: object, filters: float | None = None
) -> tuple[tvm_edge.CompiledModel, dict[str, np.ndarray], object]:
    """One convolution with an epilogue, by Winograd's algorithm; all filters may be one number."""
    graph = conv(1, 24, 9, 13, outputs=64, kernel=(3, 3), pads=[1] * 4)
    constants = dict(list(graph.values.items())[:-1])
    if filters is not None:
        (name,) = (each for each, value in constants.items() if value.ndim == 4)
        constants[name] = np.full_like(constants[name], filters)
    workload = ConvWorkload(1, 24, 9, 13, 64, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, "float16")
    compiled = compile_with(
        graph.model(),
        target,
        {workload: WINOGRAD},
        precision="float16",
        fallback="none",
        input_values=constants,
    )
    return compiled, graph.values, graph.model()


def test_compiled() -> None:
    """Without a device: nvcc takes the source, and the report says which rules they were."""
    compiled, _, _ = model("jetson-orin-nano")
    rules = [kernel.rule for kernel in compiled.report.kernels]
    assert rules.count("tensor_winograd") == 2 and rules.count("tensor_blocks") == 1
    assert set(compiled.report.layouts.values()) == {"NCHW8c, Winograd"}


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
def test_results(gpu: str) -> None:
    compiled, values, onnx_model = model(gpu)
    assert "tensor_winograd" in {kernel.rule for kernel in compiled.report.kernels}
    actual = compiled.run({each.name: values[each.name] for each in compiled.inputs})
    for output, value in reference(onnx_model, values).items():
        assert np.abs(actual[output] - value).max() <= 5e-3 * np.abs(value).max(), output


@pytest.mark.parametrize("gpu", ["cuda"], indirect=True)
def test_results_of_turing(gpu: str, turing: None) -> None:
    test_results(gpu)
