"""``precision="mixed"`` keeps float32 where estimates say that it is faster; the report says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.compiler.steps import lowered
from tests.onnx_models import make_model
from tvm_edge.report import PrecisionInfo

PASCAL = {"kind": "cuda", "arch": "sm_61"}
SMALL = {"kind": "cuda", "arch": "sm_87", "max_num_threads": 32}


def network(groups: int = 1, channels: int = 64, size: int = 14) -> onnx.ModelProto:
    """Two dense convolutions around one of `groups`, and a large matrix."""
    generator = np.random.default_rng(0)
    shapes = {
        "w0": (channels, 3, 3, 3),
        "w1": (channels, channels // groups, 3, 3),
        "w2": (channels, channels, 1, 1),
        "w3": (channels, 8192),
    }
    weights = {n: 0.1 * generator.standard_normal(s).astype("float32") for n, s in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="first", pads=[1] * 4),
        helper.make_node("Conv", ["a", "w1"], ["b"], name="middle", pads=[1] * 4, group=groups),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="last"),
        helper.make_node("GlobalAveragePool", ["c"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("MatMul", ["f", "w3"], ["y"], name="matrix"),
    ]
    return make_model(nodes, {"x": (1, 3, size, size)}, ["y"], weights)


def chosen(model: onnx.ModelProto, target: Any, precision: str = "mixed") -> PrecisionInfo:
    report = lowered(model, target, precision=precision, tuning_logs=False).report
    assert report is not None and report.precision is not None
    return report.precision


def test_tensor_cores_are_taken() -> None:
    found = chosen(network(size=56), "jetson-orin-nano")
    assert {found.operators[name] for name in ("first", "middle", "last", "matrix")} == {"float16"}
    assert not found.reasons and 0 < found.estimated_us < found.float32_us
    assert "of float32's latency by the estimate" in found.line()


@pytest.mark.parametrize(
    ("target", "groups", "said"),
    [
        ("jetson-orin-nano", 4, "for one group"),
        (SMALL, 1, "no tile of tensor cores fits work-groups of 32 items"),
        (PASCAL, 1, "has no tensor cores for float16"),
    ],
    ids=["grouped", "small", "pascal"],
)
def test_without_a_kernel_of_tensor_cores_float32_stays(
    target: Any, groups: int, said: str
) -> None:
    model = network(groups)
    found = chosen(model, target)
    assert found.operators["middle"] == "float32"
    reason = found.reasons["middle"]
    assert reason.startswith("by the estimate ") and said in reason and "float32" in reason
    half, whole = (float(word) for word in reason.replace("(", " ").split() if _is_number(word))
    assert half > whole
    if groups > 1:  # the 1x1 convolution after it would gain less than a pass over the image takes
        assert found.reasons["last"].endswith("does not pay for the conversions around it")
    # Weights that are read once: half of the bytes.
    assert found.operators["matrix"] == "float16"
    assert found.estimated_us <= found.float32_us
    forced = chosen(model, target, "float16")
    assert forced.operators["middle"] == "float16" and not forced.estimated_us


def _is_number(word: str) -> bool:
    return word.count(".") == 1 and word.replace(".", "").isdigit()


@pytest.mark.diagonals(6)
@pytest.mark.parametrize(
    "target", ["jetson-orin-nano", "jetson-agx-orin", PASCAL, SMALL, "mali-g76"]
)
@pytest.mark.parametrize("groups", [1, 8, 64])
@pytest.mark.parametrize("size", [7, 56])
def test_float32_is_never_faster_by_the_estimate(target: Any, groups: int, size: int) -> None:
    found = chosen(network(groups, size=size), target)
    assert 0 < found.estimated_us <= found.float32_us


def test_other_gpus_store_float16_as_before() -> None:
    """Their float32 arithmetic is as fast on what is stored in half of the bytes."""
    found = chosen(network(4), "mali-g76")
    assert not found.reasons
    assert {found.operators[name] for name in ("first", "middle", "last")} == {"float16"}
