"""Candidates of convolutions of bytes are exact, and one that is off by a number is seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm

from tests.marks import sampled
from tests.tuning.made import conv
from tvm_edge.hardware import resolve_target
from tvm_edge.runtime.candidates import kernel_candidate, relative_error
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.schedules.cpu.dot_products import DOT_PRODUCTS
from tvm_edge.tuning.candidates import Shared, build_candidate
from tvm_edge.tuning.conv_problem import TOLERANCE, convolve, make_problem, rounding_of
from tvm_edge.tuning.features import features
from tvm_edge.tuning.tasks import Task, extract_layout_tasks, legal_configs

CPU = resolve_target("llvm")

pytestmark = pytest.mark.skipif(
    not CPU.spec.dot_product, reason="this CPU has no dot products of 8 bits"
)

BYTES = {"dtype": DOT_PRODUCTS[CPU.spec.dot_product].image if CPU.spec.dot_product else "uint8"}
WORKLOADS = {
    "dense": conv(channels=40, filters=24, width=13, **BYTES),
    "first layer": conv(channels=3, strides=(2, 1), padding=(0, 1, 2, 1), **BYTES),
    "pixels of 3 images": conv(batch=3, kernel=(1, 1), padding=(0,) * 4, **BYTES),
    "groups": conv(channels=64, filters=32, groups=2, **BYTES),
    "depthwise": conv(channels=40, filters=40, groups=40, kernel=(3, 5), **BYTES),
    "depthwise, strided": conv(channels=32, filters=32, groups=32, strides=(2, 2), **BYTES),
}


@pytest.mark.parametrize("name", sampled(tuple(WORKLOADS), 4))
def test_candidates_are_exact(name: str) -> None:
    """Both ends of a space, with the same operands."""
    workload = WORKLOADS[name]
    configs, problem = legal_configs(workload, CPU), make_problem(workload, 3)
    assert problem.expected.dtype == BYTES["dtype"] and len(np.unique(problem.expected)) > 100
    shared: Shared = {}
    for config in (configs[0], configs[-1]):
        candidate = build_candidate(workload, config, problem, "llvm", shared)
        assert candidate.error() == 0.0
        assert candidate.seconds(0.0) > 0
    assert len(shared) == 1


def test_a_product_that_is_missing_is_seen() -> None:
    """One number of one filter, and one pixel of the padding's value."""
    workload = WORKLOADS["dense"]
    right, config = make_problem(workload), legal_configs(workload, CPU)[0]
    filters = right.filters.copy()
    place = np.unravel_index(np.abs(filters.astype("int32")).argmax(), filters.shape)
    filters[place] = 0
    wrong = replace(right, filters=filters)
    assert build_candidate(workload, config, wrong, "llvm", {}).error() > TOLERANCE
    sums = convolve(right.image, right.filters, workload, padding=0.0)
    expected = rounding_of(workload).of(sums + right.bias[:, None, None])
    zeros = replace(right, expected=expected)
    assert build_candidate(workload, config, zeros, "llvm", {}).error() > TOLERANCE


@pytest.mark.parametrize("mark", [np.iinfo(BYTES["dtype"]).min, np.iinfo(BYTES["dtype"]).max])
def test_a_pixel_that_is_not_written_is_seen(mark: int) -> None:
    """Whatever was in its place before."""
    right = make_problem(WORKLOADS["pixels of 3 images"])
    shape = (*right.expected.shape, 1)
    expected = right.expected.copy()
    expected[0, 0, 0, 0] = mark

    def all_but_one(
        _image: object, _filters: object, _bias: object, out: tvm.runtime.Tensor
    ) -> None:
        found = expected.reshape(shape).copy()
        found[0, 0, 0, 0] = out.numpy()[0, 0, 0, 0]
        out.copyfrom(found)

    operands = replace(right, expected=expected)
    candidate = kernel_candidate(all_but_one, operands, [right.filters], shape)
    assert candidate.error() > TOLERANCE


def test_differences_of_bytes_do_not_wrap() -> None:
    assert relative_error(np.array([0, 4], "uint8"), np.array([1, 4], "uint8")) == 0.25
    assert relative_error(np.array([127, 1], "int8"), np.array([-128, 1], "int8")) == 255 / 128


def test_sums_and_their_bytes_are_what_numpy_makes_of_them() -> None:
    workload: ConvWorkload = WORKLOADS["groups"]
    problem, rounding = make_problem(workload), rounding_of(workload)
    own = problem.image[0, 32:, 3:6, 4:7].astype("int64") * problem.filters[20].astype("int64")
    steps = np.rint((own.sum() + problem.bias[20]) * rounding.scale) + rounding.zero
    limits = np.iinfo(rounding.dtype)
    assert problem.expected[0, 20, 4, 5] == np.clip(steps, limits.min, limits.max)


def test_layouts_of_bytes_are_no_tasks() -> None:
    assert not extract_layout_tasks(dict.fromkeys(WORKLOADS.values(), 1), CPU)


def test_the_cost_model_tells_bytes_from_float32() -> None:
    for name in ("dense", "depthwise"):
        workload = WORKLOADS[name]
        configs = legal_configs(workload, CPU)
        rows = features(Task(workload, 1, configs))
        assert np.isfinite(rows).all() and (rows[:, -1] == 1).all()
        assert len(np.unique(rows[:, 12:], axis=0)) == len(configs)
    float32 = conv()
    assert not features(Task(float32, 1, legal_configs(float32, CPU)))[:, -1].any()
