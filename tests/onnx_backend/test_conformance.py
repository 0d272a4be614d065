"""ONNX's own operator tests: a sample with a stated outcome for each.

``conformance.txt`` was drawn by ``cases.sample()`` before any case was run. A line is a name, the
operator, and ``pass``, or the error that refuses the case and why: ``unsupported`` is
UnsupportedOperatorError.
``make conformance`` runs all cases.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import tvm_edge
from tests.marks import sampled
from tests.onnx_backend.cases import load_cases, operator_of, run_case
from tvm_edge import onnx_backend

FAILURES = Path(__file__).parent / "expected_failures.txt"
_LINES = (Path(__file__).parent / "conformance.txt").read_text().splitlines()
_ROWS = [line.split(maxsplit=2) for line in _LINES if not line.startswith("#")]
EXPECTED = {name: outcome.strip() for name, _, outcome in _ROWS}
# The list names them, as onnx calculates every case's results when they are loaded.
OPERATORS = {name: operator for name, operator, _ in _ROWS}
_FIRST = {operator: name for name, operator in reversed(OPERATORS.items())}

# In `make test`: the first case of each operator, and all that are refused.
ON_CPU = [
    name
    if _FIRST[OPERATORS[name]] == name or outcome != "pass"
    else pytest.param(name, marks=pytest.mark.full)
    for name, outcome in EXPECTED.items()
]

# Every sixth of those that pass, in the order of their names' hashes; a quarter in `make test`.
ON_GPU = sorted(
    (name for name, outcome in EXPECTED.items() if outcome == "pass"),
    key=lambda name: hashlib.sha256(name.encode()).hexdigest(),
)[::6]


def conforms(name: str, device: str) -> None:
    """Run a case and hold it to the list."""
    case = load_cases().get(name)
    if case is None:
        pytest.skip("not in the installed version of onnx")
    outcome = EXPECTED[name]
    if outcome == "pass":
        run_case(case, device)
        return
    kind = outcome.split(":")[0]
    if kind == "wrong":
        with pytest.raises(AssertionError):
            run_case(case, device)
        return
    error = tvm_edge.UnsupportedOperatorError if kind == "unsupported" else getattr(tvm_edge, kind)
    with pytest.raises(tvm_edge.TvmEdgeError) as caught:
        run_case(case, device)
    assert type(caught.value) is error


@pytest.mark.filterwarnings("ignore::tvm_edge.errors.TvmEdgeWarning")  # weights that are infinite
@pytest.mark.parametrize("name", ON_CPU)
def test_on_the_cpu(name: str) -> None:
    conforms(name, "CPU")


@pytest.mark.filterwarnings("ignore::tvm_edge.errors.TvmEdgeWarning")
@pytest.mark.parametrize("name", sampled(ON_GPU, 4))
@pytest.mark.parametrize("device", ["OPENCL", "CUDA"])
def test_on_a_gpu(name: str, device: str) -> None:
    if not onnx_backend.supports_device(device):
        pytest.skip(f"no {device} device on this machine")
    conforms(name, device)


def test_the_list_of_all_cases_agrees_with_the_sample() -> None:
    """``expected_failures.txt``, which `make conformance` holds to all cases."""
    failures = {name for name, outcome in EXPECTED.items() if outcome != "pass"}
    lines = FAILURES.read_text().splitlines()
    listed = {line.split()[0] for line in lines if not line.startswith("#")}
    assert failures == listed & set(EXPECTED)
    assert listed <= set(load_cases())
    assert len(load_cases()) - len(listed) >= 1500


def test_the_list_names_the_operators() -> None:
    cases = load_cases()
    named = {name: OPERATORS[name] for name in OPERATORS if name in cases}
    assert named == {name: operator_of(cases[name]) for name in named}


def test_the_sample_is_large_and_mostly_passes() -> None:
    """Most of the sample passes; a list edited until nothing fails would show here."""
    passing = [name for name, outcome in EXPECTED.items() if outcome == "pass"]
    assert len(EXPECTED) >= 300
    assert len(passing) / len(EXPECTED) > 0.85
    assert len(ON_GPU) >= 40
