"""Reference of candidates: it agrees with ONNX Runtime and detects any wrong value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.onnx_models import make_model, reference, relative_error
from tests.tuning.made import conv
from tvm_edge.runtime.candidates import Operands
from tvm_edge.runtime.candidates import relative_error as error_of
from tvm_edge.schedules.conv_workload import ConvWorkload
from tvm_edge.tuning.conv_problem import TOLERANCE, convolve, make_problem

SHAPES = {
    "plain": conv(),
    "strides": conv(strides=(2, 3), height=11, width=14),
    "unequal padding": conv(padding=(0, 1, 2, 3), kernel=(2, 3)),
    "dilation": conv(dilation=(2, 3), padding=(2, 3, 2, 3)),
    "groups": conv(groups=4, filters=8),
    "depthwise": conv(groups=16),
    "batch": conv(batch=2, channels=3, filters=5),
    "all": conv(batch=2, groups=2, strides=(3, 2), dilation=(1, 2), padding=(1, 0, 0, 2)),
}


def of_onnx_runtime(workload: ConvWorkload, problem: Operands) -> np.ndarray:
    """Convolution, bias and ReLU of a problem."""
    w = workload
    conv_node = helper.make_node(
        "Conv",
        ["x", "w", "b"],
        ["c"],
        strides=w.strides,
        pads=w.padding,
        dilations=w.dilation,
        group=w.groups,
    )
    model = make_model(
        [conv_node, helper.make_node("Relu", ["c"], ["y"])],
        {"x": problem.image.shape},
        ["y"],
        {"w": problem.filters, "b": problem.bias},
    )
    return reference(model, {"x": problem.image})["y"]


@pytest.mark.parametrize("name", SHAPES)
def test_agrees_with_onnx_runtime(name: str) -> None:
    workload = SHAPES[name]
    problem = make_problem(workload)
    expected = of_onnx_runtime(workload, problem)
    assert problem.expected.shape == expected.shape == (*expected.shape[:2], *workload.output)
    assert relative_error(problem.expected, expected) < 1e-6  # sums of float32 in another order
    assert error_of(expected, problem.expected) < 1e-6
    sums = convolve(problem.image, problem.filters, workload) + problem.bias[:, None, None]
    assert sums.dtype == "float64" and (sums < 0).any(), "some of what ReLU cuts off"


def test_the_same_for_a_seed_and_another_for_another(tmp_path: Path) -> None:
    one, same, other = (make_problem(conv(), seed) for seed in (1, 1, 2))
    assert np.array_equal(one.expected, same.expected)
    assert not np.array_equal(one.image, other.image)
    one.save(tmp_path / "problem.npz")
    loaded = Operands.load(tmp_path / "problem.npz")
    for name in ("image", "filters", "bias", "expected"):
        assert np.array_equal(getattr(loaded, name), getattr(one, name))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_is_an_infinite_error(wrong: float) -> None:
    problem = make_problem(conv())
    actual = problem.expected.copy()
    actual[0, 3, 5, 7] = wrong
    assert error_of(actual, problem.expected) == float("inf")


def test_one_wrong_value_is_an_error_relative_to_the_largest() -> None:
    problem = make_problem(conv())
    actual = problem.expected.copy()
    actual[0, 3, 5, 7] += 0.5 * problem.expected.max()
    assert error_of(problem.expected, problem.expected) == 0.0
    assert error_of(actual, problem.expected) == pytest.approx(0.5)
    assert error_of(actual, problem.expected) > TOLERANCE
