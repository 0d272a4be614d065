"""All of ONNX's own cases of sorts, scans and distinct elements, on the CPU and on a GPU."""

from __future__ import annotations

import pytest

from tests.marks import sampled
from tests.onnx_backend.cases import load_cases, operator_of, run_case

_OPERATORS = ("CumProd", "CumSum", "TopK", "Unique")

NAMES = sorted(
    name
    for name, case in load_cases().items()
    if operator_of(case) in _OPERATORS and "bfloat16" not in name  # no type of ours
)


@pytest.mark.parametrize("name", sampled(NAMES, 5))
def test_on_the_cpu(name: str) -> None:
    run_case(load_cases()[name], "CPU")


@pytest.mark.parametrize("name", sampled(NAMES, 9))
def test_on_a_gpu(name: str, gpu: str) -> None:
    run_case(load_cases()[name], "OPENCL")


def test_there_are_cases_of_each() -> None:
    assert {operator_of(load_cases()[name]) for name in NAMES} == set(_OPERATORS)
