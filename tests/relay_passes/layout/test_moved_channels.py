"""Channels that a graph moves while its images are in blocks: split, shuffled, put together."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tvm
from tvm import te

from tests.onnx_models import random_input
from tests.schedules.blocked_harness import OPENCL_SPECS, SPECS, Conv, check, direct
from tests.schedules.harness import Graph, this_cpu
from tvm_edge.schedules import cpu
from tvm_edge.schedules.blocked import repack_image
from tvm_edge.schedules.cpu.gather_channels import gather_channels

SPEC = SPECS[0]
ONE = {"kernel": (1, 1), "pads": (0, 0, 0, 0)}


def shuffle(graph: Graph, data: str, channels: int, size: tuple[int, int]) -> str:
    apart = graph.constant(np.array([0, 2, channels // 2, *size]))
    joined = graph.constant(np.array([0, channels, *size]))
    data = graph.op("Transpose", graph.op("Reshape", data, apart), perm=[0, 2, 1, 3, 4])
    return graph.op("Reshape", data, joined)


def test_units_of_shufflenet_gather_channels_once() -> None:
    """Split, concatenation and shuffle of 58 channels: each image is written once, in blocks."""
    graph, size = Graph(), (7, 5)
    data = Conv(channels=32, filters=116, image=size, batch=2).build(graph, "first")
    for unit in range(2):
        kept, other = graph.ops("Split", 2, data, graph.constant(np.array([58, 58])), axis=1)
        for part, conv in (
            ("expand", Conv(channels=58, filters=58, **ONE)),
            ("window", Conv(channels=58, filters=58, groups=58, epilogue="bias")),
            ("project", Conv(channels=58, filters=58, **ONE)),
        ):
            other = conv.build(graph, f"{part}{unit}", other)
        data = shuffle(graph, graph.op("Concat", kept, other, axis=1), 116, size)
    graph.output(Conv(channels=116, filters=64, **ONE).build(graph, "last", data))
    compiled = check(graph, SPEC, direct)
    assert compiled.transforms() == ["pack", "unpack"]
    kinds = Counter(kernel.rule for kernel in compiled.report.kernels)
    # One gather for the second half of each split, one before the last convolution.
    assert kinds == {"elementwise": 2, "conv2d_blocked": 6, "window_blocked": 2, "handwritten": 3}


def test_a_cpu_behind_opencl_moves_channels() -> None:
    graph = Graph()
    data = Conv(channels=16, filters=36, image=(3, 5)).build(graph, "first")
    data = shuffle(graph, data, 36, (3, 5))
    graph.output(Conv(channels=36, filters=16, **ONE).build(graph, "last", data))
    kinds = {kernel.rule for kernel in check(graph, OPENCL_SPECS[0], direct).report.kernels}
    assert "handwritten" in kinds


@pytest.mark.parametrize("parts", [2, 3])
def test_a_split_into_equal_parts(parts: int) -> None:
    graph = Graph()
    data = Conv(channels=32, filters=72).build(graph, "first")
    for i, part in enumerate(graph.ops("Split", parts, data, axis=1)):
        conv = Conv(channels=72 // parts, filters=32, **ONE)
        graph.output(conv.build(graph, f"last{i}", part))
    assert Counter(check(graph, SPEC, direct).transforms()) == {"pack": 1, "unpack": parts}


def test_a_concatenation_that_does_not_fill_blocks() -> None:
    graph = Graph()
    data = graph.input(2, 32, 5, 6)
    parts = [
        Conv(channels=32, filters=filters, **ONE).build(graph, f"part{filters}", data)
        for filters in (24, 40, 33)
    ]
    joined = graph.op("Relu", graph.op("Concat", *parts, axis=1))
    graph.output(Conv(channels=97, filters=32, **ONE).build(graph, "last", joined))
    compiled = check(graph, SPEC, direct)
    assert compiled.transforms() == ["pack", "unpack"]
    assert [k.rule for k in compiled.report.kernels].count("handwritten") == 1


def test_moved_channels_that_somebody_reads_plain() -> None:
    """A value that only moves channels may be an output, or be reshaped into something else."""
    graph, size = Graph(), (4, 4)
    data = Conv(channels=32, filters=48, image=size).build(graph, "first")
    left, right = graph.ops("Split", 2, data, graph.constant(np.array([20, 28])), axis=1)
    graph.output(left)
    graph.output(graph.op("Reshape", right, graph.constant(np.array([1, -1]))))
    shuffled = shuffle(graph, data, 48, size)
    graph.output(shuffled)
    graph.output(Conv(channels=48, filters=32).build(graph, "last", shuffled))
    across = graph.ops("Split", 2, data, graph.constant(np.array([1, 3])), axis=2)[1]
    graph.output(Conv(channels=48, filters=32, image=(3, 4)).build(graph, "lines", across))
    check(graph, SPEC, direct)


@pytest.mark.parametrize(
    ("channels", "before", "after"),
    [(64, 16, 32), (64, 32, 16), (48, 16, 32), (24, 8, 16), (24, 16, 8), (20, 8, 16), (33, 16, 8)],
)
def test_blocks_of_another_size(channels: int, before: int, after: int) -> None:
    """Whole or filled up with the last channel, as if they had been packed so from the first."""
    image = random_input((2, channels, 3, 5))
    given = packed(image, before)
    source = te.placeholder(given.shape, "float32", "image")
    result = repack_image(source, channels, after)
    func = cpu.schedule(te.create_prim_func([source, result]), SPEC).func
    library = tvm.compile(func.with_attr("global_symbol", "main"), target="llvm")
    found = tvm.runtime.empty([int(dim) for dim in result.shape], "float32")
    library["main"](tvm.runtime.tensor(given), found)
    expected = packed(image, after)
    np.testing.assert_array_equal(found.numpy().reshape(expected.shape), expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("block", [4, 16, 32])
def test_any_channels_of_several_images(block: int, dtype: str) -> None:
    """From one vector, two, and so many that all have to be shuffled."""
    random = np.random.default_rng(block)
    counts = (5, 2 * block, 3 * block + 1)
    images = [random.integers(-99, 99, (2, c, 3, 5)).astype(dtype) for c in counts]
    order = [(2, c) for c in reversed(range(block))] + [(1, c) for c in range(block)]
    order += [(c % 2, c // 2) for c in range(8)]
    order += [(int(i), int(random.integers(counts[i]))) for i in random.integers(3, size=2 * block)]
    given = [packed(image, block) for image in images]
    for picks in (order, order[: block - 1]):  # several blocks, and one
        func = gather_channels([array.shape for array in given], picks, dtype)
        library = tvm.compile(func.with_attr("global_symbol", "main"), target=this_cpu())
        expected = packed(np.stack([images[i][:, c] for i, c in picks], axis=1), block)
        found = tvm.runtime.empty(expected.shape, dtype)
        library["main"](*map(tvm.runtime.tensor, given), found)
        np.testing.assert_array_equal(found.numpy(), expected)


def packed(image: np.ndarray, block: int) -> np.ndarray:
    batch, channels, *size = image.shape
    whole = np.concatenate([image, image[:, -1:].repeat(-channels % block, axis=1)], axis=1)
    blocks = whole.reshape(batch, -1, block, *size)
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 4, 2))
