"""All of ONNX's own cases of detection and resampling operators, on the CPU and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from tests.marks import sampled
from tests.onnx_backend.cases import load_cases, operator_of, run_case
from tests.onnx_models import session
from tvm_edge import onnx_backend

_OPERATORS = ("GridSample", "NonMaxSuppression", "NonZero", "Resize", "RoiAlign")

# ONNX divides by the rounded length in its text, as do ONNX Runtime and PyTorch; its reference
# takes the length before rounding.
_AS_ONNX_RUNTIME = (
    "test_resize_downsample_scales_cubic_align_corners",
    "test_resize_downsample_scales_linear_align_corners",
)

NAMES = sorted(name for name, case in load_cases().items() if operator_of(case) in _OPERATORS)


def check(name: str, device: str) -> None:
    case = load_cases()[name]
    if name not in _AS_ONNX_RUNTIME:
        run_case(case, device)
        return
    opened = session(case.model)
    for inputs, _ in case.data_sets:
        names = [tensor.name for tensor in opened.get_inputs()]
        expected = opened.run(None, dict(zip(names, inputs, strict=True)))
        outputs = onnx_backend.prepare(case.model, device).run(inputs)
        np.testing.assert_allclose(outputs[0], expected[0], rtol=1e-5)


@pytest.mark.parametrize("name", sampled(NAMES, 4))
def test_on_the_cpu(name: str) -> None:
    check(name, "CPU")


@pytest.mark.parametrize("name", sampled(NAMES, 8))
def test_on_a_gpu(name: str, gpu: str) -> None:
    check(name, "OPENCL")


def test_there_are_cases_of_each() -> None:
    """MaxRoiPool has none."""
    assert {operator_of(load_cases()[name]) for name in NAMES} == set(_OPERATORS)
